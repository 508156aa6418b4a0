#include "ops/infer.h"

#include <algorithm>

#include "engine/engine.h"
#include "ops/packed.h"
#include "ops/sequence.h"
#include "ops/weights.h"

namespace rnnpack::ops {

namespace {

// Up to so many rows (steps * batch) packing does not pay: docs/performance.md, "Direct or packed".
constexpr int64_t kDirectRows = 16;

// One layer and direction's share of the op's weight list.
WeightTensors unpack_list(const std::vector<Tensor>& weights, size_t first, size_t each) {
  WeightTensors tensors{&weights[first], &weights[first + 1], nullptr, nullptr, nullptr};
  if (each >= 4) {
    tensors.bias_ih = &weights[first + 2];
    tensors.bias_hh = &weights[first + 3];
  }
  if (each % 2 == 1) tensors.weight_hr = &weights[first + each - 1];
  return tensors;
}

// The weights of one layer and direction, checked; storage: the type in which a call with this
// input multiplies them.
LayerShape load_weights(CellKind kind, const Tensor& input, const std::vector<Tensor>& weights,
                        size_t first, size_t each, Dense& dense, LayerWeights& loaded) {
  LayerShape shape{};
  if (each == 1) {
    shape = packed_shape(weights[first]);
    RNNPACK_CHECK(shape.cell == kind, "packed weights are of another cell");
    loaded.packed = packed_panels(weights[first].data_ptr());
  } else {
    const WeightTensors tensors = unpack_list(weights, first, each);
    shape = check_weights(kind, tensors);
    shape.storage = check_storage(input, *tensors.weight_ih);
    loaded = plain_weights(tensors, dense);
  }
  return shape;
}

void check_state(const std::optional<Tensor>& state, const char* name, ScalarType dtype,
                 std::initializer_list<int64_t> sizes) {
  if (!state) return;
  check_tensor(*state, name, dtype, static_cast<int64_t>(sizes.size()));
  check_sizes(*state, name, sizes);
}

void run(Problem& problem) {
  if (problem.rows.count == 0) return;
  if (problem.weights[0].packed == nullptr) choose_groups(kernels(), problem);
  const Plan plan = make_plan(kernels().gemm[index(problem.storage)], problem, machine(problem));
  const Scratch scratch(forward_scratch_bytes(problem, plan));
  run_forward(kernels(), problem, plan, scratch.data());
}

}  // namespace

bool is_direct(int64_t rows) { return rows <= kDirectRows; }

std::tuple<Tensor, Tensor, Tensor> infer(const Tensor& input, const std::optional<Tensor>& h_0,
                                         const std::optional<Tensor>& c_0,
                                         const std::vector<Tensor>& weights,
                                         const std::optional<Tensor>& lengths,
                                         const std::optional<Tensor>& batch_sizes, int64_t cell,
                                         int64_t layers, int64_t hidden_size, int64_t proj_size,
                                         bool bidirectional, bool batch_first) {
  const CellKind kind = cell_kind(cell);
  const int directions = bidirectional ? 2 : 1;
  RNNPACK_CHECK(layers > 0 && layers <= 4096, "num_layers must be from 1 to 4096, got ", layers);
  const int64_t stacks = layers * directions;
  const size_t each = weights.size() / static_cast<size_t>(stacks);
  RNNPACK_CHECK(weights.size() == each * static_cast<size_t>(stacks) && each >= 1 && each <= 5,
                "expected 1 to 5 weights for each of ", stacks, " layers and directions, got ",
                weights.size(), " tensors");

  Dense dense;
  const Sequence sequence(input, batch_first, lengths, batch_sizes);
  Problem problem{};
  problem.cell = kind;
  problem.hidden = hidden_size;
  problem.projection = proj_size;
  problem.layers = layers;
  problem.directions = directions;
  std::vector<LayerWeights> layer_weights(static_cast<size_t>(stacks));
  for (int64_t i = 0; i < stacks; ++i) {
    const auto at = static_cast<size_t>(i);
    const LayerShape shape =
        load_weights(kind, input, weights, at * each, each, dense, layer_weights[at]);
    if (i == 0) {
      problem.storage = shape.storage;
      problem.input_size = shape.input;
    }
    RNNPACK_CHECK(shape.storage == problem.storage, "packed weights of layer ", i / directions,
                  " are kept in another dtype than those of layer 0; pack all layers in one");
    const LayerShape expected = problem.shape(i / directions);
    RNNPACK_CHECK(shape.input == expected.input && shape.hidden == expected.hidden &&
                      shape.projection == expected.projection,
                  "weights of layer ", i / directions, " must take ", expected.input,
                  " features to hidden_size ", expected.hidden, " and proj_size ",
                  expected.projection, ", got ", shape.input, ", ", shape.hidden, " and ",
                  shape.projection);
  }
  const Tensor& dense_input = dense.floats(input);
  const ScalarType dtype = type_of(input);
  const int64_t features = input.size(input.dim() - 1);
  RNNPACK_CHECK(features == problem.input_size, "input must have ", problem.input_size,
                " features, got ", features);

  const int64_t rows = sequence.rows().count;
  const bool has_cell_state = traits(kind).has_cell_state;
  check_state(h_0, "h_0", dtype, {stacks, rows, problem.output_size()});
  check_state(c_0, "c_0", dtype, {stacks, rows, problem.hidden});
  RNNPACK_CHECK(has_cell_state || !c_0, "only an LSTM has a cell state (c_0)");

  Result output(sequence.empty_like_input(directions * problem.output_size(), dtype));
  Result h_n({stacks, rows, problem.output_size()}, dtype);
  Result c_n(has_cell_state ? empty({stacks, rows, problem.hidden}, dtype) : empty({0}, dtype));

  problem.rows = sequence.rows();
  problem.direct = each > 1 && is_direct(problem.rows.total());
  problem.input = sequence.view(dense_input);
  problem.output = sequence.view(output.floats());
  problem.weights = layer_weights.data();
  problem.h_0 = dense.state(h_0);
  problem.c_0 = dense.state(c_0);
  problem.h_n = h_n.data();
  problem.c_n = has_cell_state ? c_n.data() : nullptr;
  run(problem);
  sequence.zero_padding(output.floats());
  return {output.take(), h_n.take(), c_n.take()};
}

std::tuple<Tensor, std::optional<Tensor>> cell(const Tensor& input,
                                               const std::optional<Tensor>& h_0,
                                               const std::optional<Tensor>& c_0,
                                               const std::vector<Tensor>& weights, int64_t cell) {
  const CellKind kind = cell_kind(cell);
  const bool has_cell_state = traits(kind).has_cell_state;
  RNNPACK_CHECK(weights.size() == 1 || weights.size() == 2 || weights.size() == 4,
                "expected 1, 2 or 4 weights of a cell, got ", weights.size());
  const Sequence sequence(input, false, std::nullopt, std::nullopt, true);
  Dense dense;
  LayerWeights layer_weights{};
  const LayerShape shape =
      load_weights(kind, input, weights, 0, weights.size(), dense, layer_weights);
  RNNPACK_CHECK(shape.projection == 0, "packed weights of a cell must be without a projection");
  const ScalarType dtype = type_of(input);
  const int64_t rows = input.size(0);
  check_sizes(input, "input", {rows, shape.input});
  RNNPACK_CHECK(has_cell_state || !c_0, "only an LSTM has a cell state (c_0)");
  check_state(h_0, "h_0", dtype, {rows, shape.hidden});
  check_state(c_0, "c_0", dtype, {rows, shape.hidden});

  const Tensor& dense_input = dense.floats(input);
  Result h({rows, shape.hidden}, dtype);
  std::optional<Result> c;
  if (has_cell_state) c.emplace({rows, shape.hidden}, dtype);
  Problem problem{};
  problem.storage = shape.storage;
  problem.cell = kind;
  problem.input_size = shape.input;
  problem.hidden = shape.hidden;
  problem.layers = 1;
  problem.directions = 1;
  problem.rows = sequence.rows();
  problem.direct = layer_weights.packed == nullptr && is_direct(rows);
  problem.input = sequence.view(dense_input);
  problem.output = sequence.view(h.floats());
  problem.weights = &layer_weights;
  problem.h_0 = dense.state(h_0);
  problem.c_0 = dense.state(c_0);
  problem.c_n = c ? c->data() : nullptr;
  run(problem);
  return {h.take(), c ? std::optional(c->take()) : std::nullopt};
}

}  // namespace rnnpack::ops
