def pack(model): raise NotImplementedError
