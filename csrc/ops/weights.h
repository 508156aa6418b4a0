// Weight tensors of one layer and direction, checked, as the engine takes them.
#pragma once

#include "engine/problem.h"
#include "ops/tensors.h"

namespace rnnpack::ops {

struct WeightTensors {
  const Tensor* weight_ih;
  const Tensor* weight_hh;
  const Tensor* bias_ih;  // null: no bias
  const Tensor* bias_hh;
  const Tensor* weight_hr;  // null: no projection
};

CellKind cell_kind(int64_t cell);

// The sizes that weight_hh and weight_hr tell; input is what weight_ih takes. Every tensor is
// checked against them.
LayerShape check_weights(CellKind cell, const WeightTensors& tensors);

// The type of panels made of `weight`: `dtype`, which is its own or, of float32, a 16-bit one;
// none: its own.
DType panels_type(const Tensor& weight, std::optional<ScalarType> dtype);

// The type in which a call with this input multiplies plain weights like `weight`: the input's, to
// which float32 weights are rounded.
DType check_storage(const Tensor& input, const Tensor& weight);

LayerWeights plain_weights(const WeightTensors& tensors, Dense& dense);

}  // namespace rnnpack::ops
