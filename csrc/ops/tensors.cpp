#include "ops/tensors.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "base/align.h"
#include "base/cpu.h"
#include "engine/team.h"
#include "kernels/table.h"

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace rnnpack::ops {

namespace {

constexpr int kMaxDim = 3;
constexpr int64_t kHugePage = int64_t{2} << 20;

bool fill_nan() {
  static const bool asked = std::getenv("RNNPACK_FILL_NAN") != nullptr;
  return asked;
}

void poison(void* memory, int64_t bytes) {
  // All ones are a NaN in every floating type.
  if (fill_nan() && bytes > 0) std::memset(memory, 0xff, static_cast<size_t>(bytes));
}

}  // namespace

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

ScalarType type_of(const Tensor& tensor) {
  static const int32_t float_code = aoti_torch_dtype_float32();
  int32_t code = 0;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_dtype(tensor.get(), &code));
  return code == float_code ? ScalarType::Float : tensor.scalar_type();
}

std::string shape_text(const Tensor& tensor) {
  std::ostringstream text;
  text << "[";
  for (int64_t i = 0; i < tensor.dim(); ++i) text << (i > 0 ? ", " : "") << tensor.size(i);
  text << "]";
  return text.str();
}

namespace {

int32_t type_code(ScalarType dtype) {
  switch (dtype) {
    case ScalarType::Float: return aoti_torch_dtype_float32();
    case ScalarType::BFloat16: return aoti_torch_dtype_bfloat16();
    case ScalarType::Half: return aoti_torch_dtype_float16();
    default: return aoti_torch_dtype_uint8();
  }
}

Tensor empty(const int64_t* sizes, size_t dim, ScalarType dtype) {
  // The shim's allocator: a dispatched new_empty costs about 1 us, a third of a whole call.
  int64_t strides[kMaxDim];
  int64_t stride = 1;
  for (size_t i = dim; i-- > 0;) {
    strides[i] = stride;
    stride *= std::max<int64_t>(sizes[i], 1);
  }
  AtenTensorHandle handle = nullptr;
  TORCH_ERROR_CODE_CHECK(aoti_torch_empty_strided(static_cast<int64_t>(dim), sizes, strides,
                                                  type_code(dtype), aoti_torch_device_type_cpu(), 0,
                                                  &handle));
  Tensor result(handle);
  poison(result.data_ptr(),
         result.numel() * (dtype == ScalarType::Byte ? 1 : size_of(dtype_of(result))));
  return result;
}

}  // namespace

Tensor empty(std::initializer_list<int64_t> sizes, ScalarType dtype) {
  return empty(sizes.begin(), sizes.size(), dtype);
}

Tensor empty_like(const Tensor& tensor, ScalarType dtype) {
  int64_t sizes[kMaxDim];
  for (int64_t i = 0; i < tensor.dim(); ++i) sizes[i] = tensor.size(i);
  return empty(sizes, static_cast<size_t>(tensor.dim()), dtype);
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
  RNNPACK_CHECK(type_of(tensor) == dtype, name, " must be ", dtype_name(dtype), ", got ",
                dtype_name(type_of(tensor)));
  RNNPACK_CHECK(tensor.dim() == dim, name, " must have ", dim, " dimensions, got shape ",
                shape_text(tensor));
  check_memory(tensor, name);
}

void check_floating(const Tensor& tensor, const char* name, int64_t dim) {
  const ScalarType dtype = type_of(tensor);
  RNNPACK_CHECK(
      dtype == ScalarType::Float || dtype == ScalarType::BFloat16 || dtype == ScalarType::Half,
      name, " must be float32, bfloat16 or float16, got ", dtype_name(dtype));
  check_tensor(tensor, name, dtype, dim);
}

DType dtype_of(ScalarType floating) {
  switch (floating) {
    case ScalarType::BFloat16: return DType::kBFloat16;
    case ScalarType::Half: return DType::kHalf;
    default: return DType::kFloat;
  }
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

const Tensor& Dense::keep(Tensor copy) {
  copies_.push_back(std::make_unique<Tensor>(std::move(copy)));
  return *copies_.back();
}

const Tensor& Dense::rows(const Tensor& tensor) {
  const int64_t last = tensor.dim() - 1;
  return tensor.size(last) <= 1 || tensor.stride(last) == 1
             ? tensor
             : keep(torch::stable::contiguous(tensor));
}

const Tensor& Dense::floats(const Tensor& tensor) {
  if (type_of(tensor) == ScalarType::Float) return rows(tensor);
  const Tensor& dense = whole(tensor);
  Tensor copy = empty_like(tensor, ScalarType::Float);
  kernels().to_floats[index(dtype_of(dense))](dense.numel(), dense.data_ptr(), ops::floats(copy));
  return keep(std::move(copy));
}

const Tensor& Dense::whole(const Tensor& tensor) {
  return tensor.is_contiguous() ? tensor : keep(torch::stable::contiguous(tensor));
}

const float* Dense::state(const std::optional<Tensor>& tensor) {
  return tensor ? ops::floats(floats(whole(*tensor))) : nullptr;
}

Result::Result(const Tensor& tensor) : tensor_(tensor) {
  if (type_of(tensor) != ScalarType::Float) floats_ = empty_like(tensor, ScalarType::Float);
}

const Tensor& Result::take() {
  if (floats_) {
    kernels().from_floats[index(dtype_of(tensor_))](tensor_.numel(), data(), tensor_.data_ptr());
    floats_.reset();
  }
  return tensor_;
}

int thread_limit() {
  uint32_t threads = 1;
  TORCH_ERROR_CODE_CHECK(torch_get_num_threads(&threads));
  return team_limit();
}

Machine machine(const Problem& problem) {
  Machine machine{thread_limit(), l2_cache_bytes(), &handover_ns, &team_awake};
  machine.threads = worthwhile_threads(problem, machine);
  return machine;
}

void prefer_huge_pages(void* memory, int64_t bytes) {
#if defined(__linux__)
  // Whole pages only: what lies around may be another's. A hint: where the kernel refuses, pages
  // stay small.
  const auto first = round_up(reinterpret_cast<int64_t>(memory), kHugePage);
  const auto last = (reinterpret_cast<int64_t>(memory) + bytes) / kHugePage * kHugePage;
  if (last > first)
    madvise(reinterpret_cast<void*>(first), static_cast<size_t>(last - first), MADV_HUGEPAGE);
#else
  (void)memory, (void)bytes;
#endif
}

namespace {

#if defined(__linux__)
// New pages, of which the kernel can make large ones; what malloc gives may have been small ones
// before. Null: out of memory.
void* map_huge_pages(int64_t size) {
  const auto bytes = static_cast<size_t>(size + kHugePage);
  void* all = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (all == MAP_FAILED) return nullptr;
  char* start = static_cast<char*>(all);
  char* aligned = start + (round_up(reinterpret_cast<int64_t>(start), kHugePage) -
                           reinterpret_cast<int64_t>(start));
  if (aligned > start) munmap(start, static_cast<size_t>(aligned - start));
  const int64_t behind = start + bytes - (aligned + size);
  if (behind > 0) munmap(aligned + size, static_cast<size_t>(behind));
  prefer_huge_pages(aligned, size);
  return aligned;
}
#endif

// Scratch that the thread's last call left: memory that is new has to be cleared by the system,
// which took a fifth of the time of a small batch. No more of it than malloc itself would keep.
constexpr int64_t kMostKept = int64_t{32} << 20;
thread_local Scratch::Block kept;

}  // namespace

Scratch::Block::Block(int64_t bytes) {
#if defined(__linux__)
  mapped_ = bytes >= kHugePage;
  size_ = round_up(std::max<int64_t>(bytes, 1), mapped_ ? kHugePage : kCacheLine);
  memory_ =
      mapped_ ? map_huge_pages(size_) : std::aligned_alloc(kCacheLine, static_cast<size_t>(size_));
#else
  size_ = round_up(std::max<int64_t>(bytes, 1), kCacheLine);
  memory_ = std::aligned_alloc(kCacheLine, static_cast<size_t>(size_));
#endif
  if (memory_ == nullptr)
    fail("out of memory: ", bytes, " bytes of scratch; split the batch or the sequence");
}

Scratch::Block::~Block() {
#if defined(__linux__)
  if (mapped_) {
    munmap(memory_, static_cast<size_t>(size_));
    return;
  }
#endif
  std::free(memory_);
}

void Scratch::Block::swap(Block& other) {
  std::swap(memory_, other.memory_);
  std::swap(size_, other.size_);
  std::swap(mapped_, other.mapped_);
}

Scratch::Scratch(int64_t bytes) {
  if (kept.size() < bytes) {
    Block fresh(bytes);
    block_.swap(fresh);
  } else {
    block_.swap(kept);
  }
  poison(block_.memory(), bytes);
}

Scratch::~Scratch() {
  if (block_.size() > kept.size() && block_.size() <= kMostKept) block_.swap(kept);
}

}  // namespace rnnpack::ops
