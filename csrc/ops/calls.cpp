#include "ops/calls.h"

#include <algorithm>

#include "ops/infer.h"
#include "ops/stream.h"

namespace rnnpack::ops {

namespace {

std::optional<Tensor> owned(TensorHandle handle) {
  return handle == nullptr ? std::nullopt : std::optional<Tensor>(std::in_place, handle);
}

// The tensors of a call, owned.
struct Owned {
  explicit Owned(const CallTensors& tensors)
      : input(tensors.input), h_0(owned(tensors.h_0)), c_0(owned(tensors.c_0)) {
    weights.reserve(static_cast<size_t>(tensors.weight_count));
    for (int64_t i = 0; i < tensors.weight_count; ++i) weights.emplace_back(tensors.weights[i]);
  }

  // Float32 weights for a 16-bit input are rounded to it in an autocast region; outside of one they
  // are a mistake.
  void check_one_dtype() const {
    RNNPACK_CHECK(!weights.empty() && (type_of(weights[0]) == ScalarType::Byte ||
                                       type_of(weights[0]) == type_of(input)),
                  "weights must have the input's dtype");
  }

  // About how many multiply-adds the call takes.
  int64_t work() const {
    int64_t elements = 0;
    for (const Tensor& weight : weights) elements += weight.numel();
    return input.dim() == 0
               ? 0
               : input.numel() / std::max<int64_t>(input.size(input.dim() - 1), 1) * elements;
  }

  Tensor input;
  std::optional<Tensor> h_0, c_0;
  std::vector<Tensor> weights;
};

// Without Python's lock for as long as this object lives, if there is work for longer than the 0.4
// us that giving it up takes; a lock held for up to some 10 us keeps nobody waiting.
class Unlocked {
 public:
  Unlocked(const PythonLock& lock, int64_t work) : lock_(lock) {
    constexpr int64_t kLongWork = int64_t{1} << 18;  // multiply-adds
    if (work > kLongWork) {
      token_ = lock.give_up();
      given_up_ = true;
    }
  }
  ~Unlocked() {
    if (given_up_) lock_.win_back(token_);
  }
  Unlocked(const Unlocked&) = delete;
  Unlocked& operator=(const Unlocked&) = delete;

 private:
  const PythonLock& lock_;
  void* token_ = nullptr;
  bool given_up_ = false;
};

TensorHandle hand_over(const Tensor& tensor) {
  AtenTensorHandle handle = nullptr;
  TORCH_ERROR_CODE_CHECK(aoti_torch_new_tensor_handle(tensor.get(), &handle));
  return handle;
}

template <class Call>
bool succeeds(const Call& call) {
  try {
    call();
    return true;
  } catch (const std::exception&) {
    return false;
  }
}

bool infer_by_handle(const CallTensors& tensors, const CallStack& stack, const PythonLock& lock,
                     TensorHandle* results) {
  const Owned own(tensors);
  return succeeds([&] {
    own.check_one_dtype();
    const Unlocked unlocked(lock, own.work());
    const auto [output, h_n, c_n] = infer(own.input, own.h_0, own.c_0, own.weights, std::nullopt,
                                          std::nullopt, stack.cell, stack.layers, stack.hidden_size,
                                          stack.proj_size, stack.bidirectional, stack.batch_first);
    results[0] = hand_over(output);
    results[1] = hand_over(h_n);
    if (traits(static_cast<CellKind>(stack.cell)).has_cell_state) results[2] = hand_over(c_n);
  });
}

bool cell_by_handle(const CallTensors& tensors, int64_t kind, const PythonLock& lock,
                    TensorHandle* results) {
  const Owned own(tensors);
  return succeeds([&] {
    own.check_one_dtype();
    const Unlocked unlocked(lock, own.work());
    const auto [h, c] = cell(own.input, own.h_0, own.c_0, own.weights, kind);
    results[0] = hand_over(h);
    if (c) results[1] = hand_over(*c);
  });
}

bool stream_by_handle(void* stream, TensorHandle input, int64_t dim, const PythonLock& lock,
                      TensorHandle* result) {
  const Tensor own(input);
  return succeeds([&] {
    const Unlocked unlocked(lock, stream_work(stream, own));
    *result = hand_over(run_stream(stream, own, dim));
  });
}

bool takes(TensorHandle input) {
  int32_t device = 0, dtype = 0;
  return aoti_torch_get_device_type(input, &device) == AOTI_TORCH_SUCCESS &&
         aoti_torch_get_dtype(input, &dtype) == AOTI_TORCH_SUCCESS &&
         device == aoti_torch_device_type_cpu() &&
         (dtype == aoti_torch_dtype_float32() || dtype == aoti_torch_dtype_bfloat16() ||
          dtype == aoti_torch_dtype_float16());
}

Plainness plainness(TensorHandle tensor) {
  int32_t layout = 0;
  bool contiguous = false;
  int64_t count = 0;
  int64_t* strides = nullptr;  // a nested tensor has none
  if (aoti_torch_get_layout(tensor, &layout) != AOTI_TORCH_SUCCESS ||
      layout != aoti_torch_layout_strided() ||
      aoti_torch_is_contiguous(tensor, &contiguous) != AOTI_TORCH_SUCCESS ||
      aoti_torch_get_strides(tensor, &strides) != AOTI_TORCH_SUCCESS ||
      aoti_torch_get_numel(tensor, &count) != AOTI_TORCH_SUCCESS)
    return Plainness::kNo;
  return contiguous && count != 1 ? Plainness::kYes : Plainness::kAskTorch;
}

void release(TensorHandle handle) { aoti_torch_delete_tensor_object(handle); }

constexpr Calls kCalls{&infer_by_handle, &cell_by_handle, &stream_by_handle,
                       &takes,           &plainness,      &release};

}  // namespace

}  // namespace rnnpack::ops

const rnnpack::Calls* rnnpack_calls() { return &rnnpack::ops::kCalls; }
