// One step at a time through a stack whose weights are packed: C functions, called by address.
//
// A dispatched call costs 5 to 8 us, a call by address 0.4 us, and one step of a small layer 2 us:
// docs/performance.md.
#pragma once

#include <cstdint>

#include "ops/tensors.h"

namespace rnnpack::ops {

// input: [N, F] if dim is 2, one step, or [L, N, F] if it is 3; dense, of the stream's dtype, or
// the call fails. Returns the output. stream: from rnnpack_stream_new.
Tensor run_stream(void* stream, const Tensor& input, int64_t dim);
// About how many multiply-adds that takes.
int64_t stream_work(const void* stream, const Tensor& input);

}  // namespace rnnpack::ops

extern "C" {

// A stack of unidirectional layers for a fixed batch. dtype (DType): of input and output. packed:
// per layer the memory of its packed weights, checked by the caller, who keeps it alive, as it does
// h [layers, batch, output] and c (null without a cell state), read and written by every run,
// float32 whatever dtype is. Null: out of memory.
__attribute__((visibility("default"))) void* rnnpack_stream_new(
    int32_t cell, int32_t dtype, int64_t layers, int64_t input_size, int64_t hidden_size,
    int64_t proj_size, int64_t batch, const void* const* packed, float* h, float* c);
__attribute__((visibility("default"))) void rnnpack_stream_delete(void* stream);

// input: [steps, batch, input_size], output: [steps, batch, output], both dense. Returns 0, or 1
// when out of memory. One stream must not run in two threads at once; different ones may.
__attribute__((visibility("default"))) int rnnpack_stream_run(void* stream, int64_t steps,
                                                              const void* input, void* output);
}
