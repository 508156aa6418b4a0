#include "ops/tensors.h"

#include <algorithm>
#include <cstdlib>
#include <limits>

#include "base/align.h"
#include "engine/team.h"

namespace rnnpack::ops {

namespace {

bool fill_nan() {
  static const bool asked = std::getenv("RNNPACK_FILL_NAN") != nullptr;
  return asked;
}

void poison(void* memory, int64_t bytes) {
  if (fill_nan())
    std::fill_n(static_cast<float*>(memory), bytes / 4, std::numeric_limits<float>::quiet_NaN());
}

const char* dtype_name(ScalarType type) {
  switch (type) {
    case ScalarType::Float: return "float32";
    case ScalarType::Double: return "float64";
    case ScalarType::Half: return "float16";
    case ScalarType::BFloat16: return "bfloat16";
    case ScalarType::Long: return "int64";
    case ScalarType::Byte: return "uint8";
    default: return "another dtype";
  }
}

}  // namespace

std::string shape_text(const Tensor& tensor) {
  std::ostringstream text;
  text << "[";
  for (int64_t i = 0; i < tensor.dim(); ++i) text << (i > 0 ? ", " : "") << tensor.size(i);
  text << "]";
  return text.str();
}

Tensor empty(std::initializer_list<int64_t> sizes, ScalarType dtype) {
  // The shim's allocator: a dispatched new_empty costs about 1 us, a third of a whole call.
  constexpr int kMaxDim = 4;
  int64_t strides[kMaxDim];
  int64_t stride = 1;
  int64_t i = static_cast<int64_t>(sizes.size());
  for (const int64_t* size = sizes.end(); size != sizes.begin();) {
    strides[--i] = stride;
    stride *= std::max<int64_t>(*--size, 1);
  }
  AtenTensorHandle handle = nullptr;
  TORCH_ERROR_CODE_CHECK(aoti_torch_empty_strided(
      static_cast<int64_t>(sizes.size()), sizes.begin(), strides,
      dtype == ScalarType::Float ? aoti_torch_dtype_float32() : aoti_torch_dtype_uint8(),
      aoti_torch_device_type_cpu(), 0, &handle));
  Tensor result(handle);
  if (dtype == ScalarType::Float) poison(result.data_ptr(), result.numel() * 4);
  return result;
}

namespace {

void check_memory(const Tensor& tensor, const char* name) {
  RNNPACK_CHECK(tensor.numel() == 0 || tensor.data_ptr() != nullptr, name,
                " has no memory: its storage was freed, as sharded weights are outside their "
                "layer's forward");
}

}  // namespace

void check_tensor(const Tensor& tensor, const char* name, ScalarType dtype, int64_t dim) {
  RNNPACK_CHECK(tensor.is_cpu(), name, " must be a CPU tensor");
  RNNPACK_CHECK(tensor.scalar_type() == dtype, name, " must be ", dtype_name(dtype), ", got ",
                dtype_name(tensor.scalar_type()));
  RNNPACK_CHECK(tensor.dim() == dim, name, " must have ", dim, " dimensions, got shape ",
                shape_text(tensor));
  check_memory(tensor, name);
}

void check_sizes(const Tensor& tensor, const char* name, std::initializer_list<int64_t> sizes) {
  int64_t i = 0;
  bool same = tensor.dim() == static_cast<int64_t>(sizes.size());
  for (const int64_t size : sizes) same = same && tensor.size(i++) == size;
  if (same) return;
  std::ostringstream expected;
  for (const int64_t size : sizes) expected << (expected.tellp() > 0 ? ", " : "") << size;
  fail(name, " must have shape [", expected.str(), "], got ", shape_text(tensor));
}

const Tensor& Dense::keep_copy(const Tensor& tensor) {
  copies_.push_back(std::make_unique<Tensor>(torch::stable::contiguous(tensor)));
  return *copies_.back();
}

const Tensor& Dense::rows(const Tensor& tensor) {
  const int64_t last = tensor.dim() - 1;
  return tensor.size(last) <= 1 || tensor.stride(last) == 1 ? tensor : keep_copy(tensor);
}

const Tensor& Dense::whole(const Tensor& tensor) {
  return tensor.is_contiguous() ? tensor : keep_copy(tensor);
}

int thread_limit() {
  uint32_t threads = 1;
  TORCH_ERROR_CODE_CHECK(torch_get_num_threads(&threads));
  return team_limit();
}

Scratch::Scratch(int64_t bytes)
    : memory_(std::aligned_alloc(
          kCacheLine, static_cast<size_t>(round_up(std::max<int64_t>(bytes, 1), kCacheLine)))) {
  if (memory_ == nullptr)
    fail("out of memory: ", bytes, " bytes of scratch; split the batch or the sequence");
  poison(memory_.get(), bytes);
}

}  // namespace rnnpack::ops
