#include "ops/train.h"

#include <algorithm>

#include "engine/engine.h"
#include "ops/infer.h"
#include "ops/sequence.h"
#include "ops/weights.h"

namespace rnnpack::ops {

namespace {

// Up to so many bytes malloc may serve from memory that it keeps (glibc:
// DEFAULT_MMAP_THRESHOLD_MAX).
constexpr int64_t kAlwaysMapped = int64_t{32} << 20;

// The arguments that both passes take, checked, as a problem of one layer and direction.
struct Layer {
  Dense dense;
  Sequence sequence;
  LayerShape shape;
  LayerWeights weights;
  Problem problem{};

  Layer(const Tensor& input, const std::optional<Tensor>& h_0, const std::optional<Tensor>& c_0,
        const WeightTensors& tensors, const std::optional<Tensor>& lengths,
        const std::optional<Tensor>& batch_sizes, int64_t cell, bool reverse,
        std::optional<ScalarType> dtype)
      : sequence(input, false, lengths, batch_sizes, true),
        shape(check_weights(cell_kind(cell), tensors)) {
    weights = plain_weights(tensors, dense);
    const int64_t features = input.size(input.dim() - 1);
    RNNPACK_CHECK(features == shape.input, "input must have ", shape.input, " features, got ",
                  features);
    RNNPACK_CHECK(has_cell_state() || !c_0, "only an LSTM has a cell state (c_0)");
    check_tensor(input, "input", ScalarType::Float, input.dim());
    problem.storage = panels_type(*tensors.weight_ih, dtype);
    problem.cell = shape.cell;
    problem.input_size = shape.input;
    problem.hidden = shape.hidden;
    problem.projection = shape.projection;
    problem.layers = 1;
    problem.directions = 1;
    problem.reverse = reverse;
    problem.rows = sequence.rows();
    problem.input = sequence.view(dense.rows(input));
    problem.weights = &weights;
    problem.h_0 = state(h_0, "h_0", shape.output());
    problem.c_0 = state(c_0, "c_0", shape.hidden);
    // As `infer` does, so that a call has the same bits with and without a gradient.
    problem.direct = is_direct(problem.rows.total());
    choose_groups(kernels(), problem);
  }

  bool has_cell_state() const { return traits(shape.cell).has_cell_state; }
  int64_t rows() const { return problem.rows.count; }
  // Rows of the reserve: all places of the input, so that its size follows from shapes alone.
  int64_t reserve_rows() const {
    return sequence.packed() ? problem.rows.total() : problem.rows.steps * problem.rows.count;
  }
  int64_t gate_floats(bool recompute) const {
    return recompute ? 0 : reserve_rows() * shape.gates().columns();
  }
  int64_t h_floats(bool recompute) const { return recompute ? 0 : reserve_rows() * shape.output(); }
  int64_t reserve_floats(bool recompute) const {
    return gate_floats(recompute) + cell_floats() + h_floats(recompute);
  }
  int64_t cell_floats() const {
    return has_cell_state() ? reserve_rows() * shape.gates().blocks() * kBlockUnits : 0;
  }

  void set_reserve(const Tensor& reserve, bool recompute) {
    problem.reserve_gates = recompute ? nullptr : floats(reserve);
    problem.reserve_c = has_cell_state() ? floats(reserve) + gate_floats(recompute) : nullptr;
    problem.reserve_h =
        recompute ? nullptr : floats(reserve) + gate_floats(recompute) + cell_floats();
  }

  // A tensor like the input with `width` columns, checked; rows dense.
  SequenceView like_input(const Tensor& tensor, const char* name, const Tensor& input,
                          int64_t width) {
    check_tensor(tensor, name, ScalarType::Float, input.dim());
    if (input.dim() == 3) {
      check_sizes(tensor, name, {input.size(0), input.size(1), width});
    } else {
      check_sizes(tensor, name, {input.size(0), width});
    }
    return sequence.view(dense.rows(tensor));
  }

  const float* state(const std::optional<Tensor>& tensor, const char* name, int64_t width) {
    if (!tensor) return nullptr;
    check_tensor(*tensor, name, ScalarType::Float, 2);
    check_sizes(*tensor, name, {rows(), width});
    return floats(dense.whole(*tensor));
  }
};

WeightTensors weight_tensors(const Tensor& weight_ih, const Tensor& weight_hh,
                             const std::optional<Tensor>& bias_ih,
                             const std::optional<Tensor>& bias_hh,
                             const std::optional<Tensor>& weight_hr) {
  const auto pointer = [](const std::optional<Tensor>& tensor) {
    return tensor ? &*tensor : nullptr;
  };
  return {&weight_ih, &weight_hh, pointer(bias_ih), pointer(bias_hh), pointer(weight_hr)};
}

// The gradient of a final state, where the backward pass starts; it turns into the initial state's.
Tensor start_gradient(const float* values, int64_t rows, int64_t width) {
  Tensor gradient = empty({rows, width});
  if (values != nullptr) {
    std::copy_n(values, rows * width, floats(gradient));
  } else {
    std::fill_n(floats(gradient), rows * width, 0.0f);
  }
  return gradient;
}

}  // namespace

std::tuple<Tensor, Tensor, Tensor, Tensor> train(
    const Tensor& input, const std::optional<Tensor>& h_0, const std::optional<Tensor>& c_0,
    const Tensor& weight_ih, const Tensor& weight_hh, const std::optional<Tensor>& bias_ih,
    const std::optional<Tensor>& bias_hh, const std::optional<Tensor>& weight_hr,
    const std::optional<Tensor>& lengths, const std::optional<Tensor>& batch_sizes, int64_t cell,
    bool reverse, bool recompute, std::optional<ScalarType> dtype) {
  Layer layer(input, h_0, c_0, weight_tensors(weight_ih, weight_hh, bias_ih, bias_hh, weight_hr),
              lengths, batch_sizes, cell, reverse, dtype);
  Problem& problem = layer.problem;
  Tensor output = layer.sequence.empty_like_input(layer.shape.output(), ScalarType::Float);
  Tensor h_n = empty({layer.rows(), layer.shape.output()});
  Tensor c_n = layer.has_cell_state() ? empty({layer.rows(), layer.shape.hidden}) : empty({0});
  Tensor reserve = empty({layer.reserve_floats(recompute)});
  const int64_t reserve_bytes =
      layer.reserve_floats(recompute) * static_cast<int64_t>(sizeof(float));
  // What malloc always maps anew and gives back: elsewhere other tensors would get the pages later.
  if (reserve_bytes > kAlwaysMapped) prefer_huge_pages(reserve.data_ptr(), reserve_bytes);

  problem.output = layer.sequence.view(output);
  problem.h_n = floats(h_n);
  problem.c_n = layer.has_cell_state() ? floats(c_n) : nullptr;
  layer.set_reserve(reserve, recompute);
  if (layer.rows() > 0) {
    const Plan plan = make_plan(kernels().gemm[index(problem.storage)], problem, machine(problem));
    const Scratch scratch(forward_scratch_bytes(problem, plan));
    run_forward(kernels(), problem, plan, scratch.data());
  }
  layer.sequence.zero_padding(output);
  return {output, h_n, c_n, reserve};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor> train_backward(
    const std::optional<Tensor>& grad_output, const std::optional<Tensor>& grad_h_n,
    const std::optional<Tensor>& grad_c_n, const Tensor& input, const std::optional<Tensor>& h_0,
    const std::optional<Tensor>& c_0, const Tensor& weight_ih, const Tensor& weight_hh,
    const std::optional<Tensor>& bias_ih, const std::optional<Tensor>& bias_hh,
    const std::optional<Tensor>& weight_hr, const std::optional<Tensor>& lengths,
    const std::optional<Tensor>& batch_sizes, const std::optional<Tensor>& output,
    const Tensor& reserve, int64_t cell, bool reverse, bool recompute, int64_t wanted,
    std::optional<ScalarType> dtype) {
  Layer layer(input, h_0, c_0, weight_tensors(weight_ih, weight_hh, bias_ih, bias_hh, weight_hr),
              lengths, batch_sizes, cell, reverse, dtype);
  const LayerShape& shape = layer.shape;
  check_tensor(reserve, "reserve", ScalarType::Float, 1);
  check_sizes(reserve, "reserve", {layer.reserve_floats(recompute)});
  RNNPACK_CHECK(reserve.is_contiguous(), "reserve must be the dense tensor that `train` returned");
  layer.set_reserve(reserve, recompute);
  RNNPACK_CHECK(output || !recompute, "recompute needs the output of `train`");
  if (output) layer.problem.output = layer.like_input(*output, "output", input, shape.output());

  const auto wants = [wanted](int i) { return (wanted >> i & 1) != 0; };
  const int64_t gate_rows = traits(shape.cell).gates * shape.hidden;
  Tensor grad_input =
      wants(0) ? layer.sequence.empty_like_input(shape.input, ScalarType::Float) : empty({0});
  Tensor grad_h_0 = start_gradient(layer.state(grad_h_n, "grad_h_n", shape.output()), layer.rows(),
                                   shape.output());
  const float* dc_n = layer.state(grad_c_n, "grad_c_n", shape.hidden);
  Tensor grad_c_0 =
      layer.has_cell_state() ? start_gradient(dc_n, layer.rows(), shape.hidden) : empty({0});
  RNNPACK_CHECK(!(wants(1) && !h_0) && !(wants(2) && !c_0),
                "a gradient of an initial state is wanted that is not there");
  RNNPACK_CHECK(!wants(7) || shape.projection > 0,
                "a gradient of weight_hr is wanted, but there is no projection");
  const ScalarType weight_dtype = type_of(weight_ih);
  const auto weight_gradient = [&](int i, std::initializer_list<int64_t> sizes) {
    return Result(wants(i) ? empty(sizes, weight_dtype) : empty({0}, weight_dtype));
  };
  Result grad_weight_ih = weight_gradient(3, {gate_rows, shape.input});
  Result grad_weight_hh = weight_gradient(4, {gate_rows, shape.output()});
  Result grad_bias_ih = weight_gradient(5, {gate_rows});
  Result grad_bias_hh = weight_gradient(6, {gate_rows});
  Result grad_weight_hr = weight_gradient(7, {shape.projection, shape.hidden});
  const auto if_wanted = [&wants](int i, const Result& result) {
    return wants(i) ? result.data() : nullptr;
  };

  BackwardProblem backward{};
  backward.forward = layer.problem;
  if (grad_output)
    backward.grad_output = layer.like_input(*grad_output, "grad_output", input, shape.output());
  backward.grad_h_0 = floats(grad_h_0);
  backward.grad_c_0 = layer.has_cell_state() ? floats(grad_c_0) : nullptr;
  if (wants(0)) backward.grad_input = layer.sequence.view(grad_input);
  backward.grad_weight_ih = if_wanted(3, grad_weight_ih);
  backward.grad_weight_hh = if_wanted(4, grad_weight_hh);
  backward.grad_bias_ih = if_wanted(5, grad_bias_ih);
  backward.grad_bias_hh = if_wanted(6, grad_bias_hh);
  backward.grad_weight_hr = if_wanted(7, grad_weight_hr);
  const Plan plan = make_plan(kernels().gemm[index(layer.problem.storage)], layer.problem,
                              machine(layer.problem));
  const Scratch scratch(backward_scratch_bytes(backward, plan));
  run_backward(kernels(), backward, plan, scratch.data());
  if (wants(0)) layer.sequence.zero_padding(grad_input);
  return {grad_input,
          wants(1) ? grad_h_0 : empty({0}),
          wants(2) ? grad_c_0 : empty({0}),
          grad_weight_ih.take(),
          grad_weight_hh.take(),
          grad_bias_ih.take(),
          grad_bias_hh.take(),
          grad_weight_hr.take()};
}

}  // namespace rnnpack::ops
