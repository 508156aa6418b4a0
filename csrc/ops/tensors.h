// Tensors at the door: checks with messages for people, plain pointers for the engine, memory for
// results and scratch.
#pragma once

#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "engine/plan.h"

namespace rnnpack::ops {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

// Raises RuntimeError in Python with the parts joined. The message says what was expected, what
// came and, where it helps, what to do.
template <class... Parts>
[[noreturn]] void fail(const Parts&... parts) {
  std::ostringstream message;
  (message << ... << parts);
  throw std::runtime_error("rnnpack: " + message.str());
}

// A macro, so that the parts of a message are not computed on every call.
#define RNNPACK_CHECK(condition, ...) \
  if (!(condition)) ::rnnpack::ops::fail(__VA_ARGS__)

std::string shape_text(const Tensor& tensor);
// What tensor.scalar_type() tells. That asks for the code of one type after the other, 24 ns and
// twenty times in a call: most are float32.
ScalarType type_of(const Tensor& tensor);
const char* dtype_name(ScalarType type);

// A new uninitialised CPU tensor. With RNNPACK_FILL_NAN in the environment it starts as NaN, so
// that tests see what was not written.
Tensor empty(std::initializer_list<int64_t> sizes, ScalarType dtype = ScalarType::Float);
Tensor empty_like(const Tensor& tensor, ScalarType dtype);

// Fails unless `tensor` is a CPU tensor of this type and number of dimensions, with memory behind
// it.
void check_tensor(const Tensor& tensor, const char* name, ScalarType dtype, int64_t dim);
// The same for float32, bfloat16 and float16.
void check_floating(const Tensor& tensor, const char* name, int64_t dim);
DType dtype_of(ScalarType floating);
inline DType dtype_of(const Tensor& floating) { return dtype_of(type_of(floating)); }
void check_sizes(const Tensor& tensor, const char* name, std::initializer_list<int64_t> sizes);

// Holds copies of tensors that are not dense, or not float32 where floats are asked for, for the
// length of a call.
class Dense {
 public:
  // The tensor itself, or a contiguous copy that lives as long as this object. The innermost stride
  // of the result is 1.
  const Tensor& rows(const Tensor& tensor);
  const Tensor& whole(const Tensor& tensor);
  // As rows; 16-bit tensors become float32.
  const Tensor& floats(const Tensor& tensor);
  // All of a state in float32; null: absent.
  const float* state(const std::optional<Tensor>& tensor);

 private:
  const Tensor& keep(Tensor copy);
  std::vector<std::unique_ptr<Tensor>> copies_;
};

// A result: the engine writes floats, the caller gets them in `dtype`.
class Result {
 public:
  Result(std::initializer_list<int64_t> sizes, ScalarType dtype) : Result(empty(sizes, dtype)) {}
  explicit Result(const Tensor& tensor);

  // A float32 tensor for the engine to write: the result itself where that is its dtype.
  const Tensor& floats() const { return floats_ ? *floats_ : tensor_; }
  float* data() const { return static_cast<float*>(floats().data_ptr()); }
  // The result, rounded to its dtype; once, when everything is written.
  const Tensor& take();

 private:
  Tensor tensor_;
  std::optional<Tensor> floats_;
};

// Asks for large pages behind new memory that nobody has written yet. Weights that are read at
// every step span more small pages than the processor's page table caches hold: LSTM 100 x 1 x 1024
// went from 62 to 45 ms on one core.
void prefer_huge_pages(void* memory, int64_t bytes);

// Scratch of one call, cache-line aligned. Its contents are undefined; its memory serves the
// thread's next call, too.
class Scratch {
 public:
  explicit Scratch(int64_t bytes);
  ~Scratch();
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  void* data() const { return block_.memory(); }

  class Block {
   public:
    Block() = default;
    explicit Block(int64_t bytes);
    ~Block();
    Block(const Block&) = delete;
    Block& operator=(const Block&) = delete;
    void swap(Block& other);
    void* memory() const { return memory_; }
    int64_t size() const { return size_; }

   private:
    void* memory_ = nullptr;
    int64_t size_ = 0;
    bool mapped_ = false;  // by the system itself, in large pages, and not by malloc
  };

 private:
  Block block_;
};

// How many threads a call may use: torch's setting, which a thread that is new to torch learns by
// this question; see team_limit.
int thread_limit();
// The machine, as this thread may use it now and as far as it is worth it for the problem.
Machine machine(const Problem& problem);

inline float* floats(const Tensor& tensor) { return static_cast<float*>(tensor.data_ptr()); }

}  // namespace rnnpack::ops
