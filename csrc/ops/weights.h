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

LayerWeights plain_weights(const WeightTensors& tensors, Dense& dense);

}  // namespace rnnpack::ops
