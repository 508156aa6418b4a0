#include "ops/stream.h"

#include <cstdlib>
#include <memory>
#include <new>
#include <vector>

#include "engine/engine.h"
#include "engine/team.h"
#include "ops/packed.h"
#include "ops/tensors.h"

namespace rnnpack::ops {

namespace {

class Stream {
 public:
  Stream(const Problem& problem, DType dtype, const void* const* packed)
      : problem_(problem), dtype_(dtype) {
    for (int64_t layer = 0; layer < problem.layers; ++layer)
      weights_.emplace_back().packed = packed_panels(packed[layer]);
    problem_.weights = weights_.data();
  }

  int64_t work(const Tensor& input) const {
    int64_t elements = 0;
    for (int64_t layer = 0; layer < problem_.layers; ++layer)
      elements += problem_.shape(layer).packed_bytes() / static_cast<int64_t>(sizeof(float));
    return input.numel() / problem_.input_size * elements;
  }

  // As run_stream.
  Tensor run(const Tensor& input, int64_t dim) {
    check_floating(input, "input", dim);
    const int64_t steps = dim == 2 ? 1 : input.size(0), rows = problem_.rows.count;
    RNNPACK_CHECK(dtype_of(input) == dtype_ && input.is_contiguous() &&
                      input.size(dim - 2) == rows && input.size(dim - 1) == problem_.input_size,
                  "input is not as this stream takes it");
    const int64_t width = problem_.output_size();
    Tensor output = dim == 2 ? empty({rows, width}, type_of(input))
                             : empty({steps, rows, width}, type_of(input));
    if (steps > 0) run(steps, input.data_ptr(), output.data_ptr());
    return output;
  }

  void run(int64_t steps, const void* input, void* output) {
    if (dtype_ == DType::kFloat) {
      run_floats(steps, static_cast<const float*>(input), static_cast<float*>(output));
      return;
    }
    const int64_t rows = steps * problem_.rows.count;
    const int64_t inputs = rows * problem_.input_size, outputs = rows * problem_.output_size();
    if (static_cast<int64_t>(wide_.size()) < inputs + outputs)
      wide_.resize(static_cast<size_t>(inputs + outputs));
    kernels().to_floats[index(dtype_)](inputs, input, wide_.data());
    run_floats(steps, wide_.data(), wide_.data() + inputs);
    kernels().from_floats[index(dtype_)](outputs, wide_.data() + inputs, output);
  }

 private:
  void run_floats(int64_t steps, const float* input, float* output) {
    problem_.rows.steps = steps;
    problem_.input = {const_cast<float*>(input), problem_.rows.count * problem_.input_size,
                      problem_.input_size};
    problem_.output = {output, problem_.rows.count * problem_.output_size(),
                       problem_.output_size()};
    const Machine usable = machine(problem_);
    if (steps != planned_steps_ || usable.threads != planned_threads_) {
      const Plan plan = make_plan(kernels().gemm[index(problem_.storage)], problem_, usable);
      const int64_t bytes = forward_scratch_bytes(problem_, plan);
      if (bytes > scratch_bytes_) {
        scratch_ = std::make_unique<Scratch>(bytes);  // may throw: the old plan and memory stay
        scratch_bytes_ = bytes;
      }
      plan_ = plan;
      planned_steps_ = steps;
      planned_threads_ = usable.threads;
    }
    run_forward(kernels(), problem_, plan_, scratch_->data());
  }

  Problem problem_;
  DType dtype_;
  std::vector<float> wide_;  // input and output of a run, where they are not floats
  std::vector<LayerWeights> weights_;
  Plan plan_{};
  int64_t planned_steps_ = -1;
  int planned_threads_ = 0;
  std::unique_ptr<Scratch> scratch_;  // kept from call to call: a step allocates nothing
  int64_t scratch_bytes_ = 0;
};

}  // namespace

Tensor run_stream(void* stream, const Tensor& input, int64_t dim) {
  return static_cast<Stream*>(stream)->run(input, dim);
}

int64_t stream_work(const void* stream, const Tensor& input) {
  return static_cast<const Stream*>(stream)->work(input);
}

}  // namespace rnnpack::ops

extern "C" {

void* rnnpack_stream_new(int32_t cell, int32_t dtype, int64_t layers, int64_t input_size,
                         int64_t hidden_size, int64_t proj_size, int64_t batch,
                         const void* const* packed, float* h, float* c) {
  using namespace rnnpack;
  Problem problem{};
  problem.cell = static_cast<CellKind>(cell);
  problem.storage = ops::packed_storage(packed[0]);
  problem.input_size = input_size;
  problem.hidden = hidden_size;
  problem.projection = proj_size;
  problem.layers = layers;
  problem.directions = 1;
  problem.rows.count = batch;
  // The state is read at the first step and written after the last, so it may be its own successor.
  problem.h_0 = problem.h_n = h;
  problem.c_0 = problem.c_n = c;
  try {
    return new ops::Stream(problem, static_cast<DType>(dtype), packed);
  } catch (const std::exception&) {
    return nullptr;
  }
}

void rnnpack_stream_delete(void* stream) { delete static_cast<rnnpack::ops::Stream*>(stream); }

int rnnpack_stream_run(void* stream, int64_t steps, const void* input, void* output) {
  try {
    static_cast<rnnpack::ops::Stream*>(stream)->run(steps, input, output);
    return 0;
  } catch (const std::exception&) {
    return 1;
  }
}
}
