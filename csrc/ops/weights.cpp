#include "ops/weights.h"

namespace rnnpack::ops {

CellKind cell_kind(int64_t cell) {
  RNNPACK_CHECK(cell >= 0 && cell < kCellKinds, "cell must be from 0 to ", kCellKinds - 1,
                " (lstm, gru, rnn_tanh, rnn_relu), got ", cell);
  return static_cast<CellKind>(cell);
}

LayerShape check_weights(CellKind cell, const WeightTensors& t) {
  const ScalarType dtype = type_of(*t.weight_ih);
  check_floating(*t.weight_ih, "weight_ih", 2);
  check_tensor(*t.weight_hh, "weight_hh", dtype, 2);
  const int64_t gates = traits(cell).gates;
  const int64_t rows = t.weight_hh->size(0);
  const int64_t hidden = rows / gates;
  RNNPACK_CHECK(rows > 0 && rows % gates == 0, "weight_hh must have ", gates,
                " * hidden_size rows, got shape ", shape_text(*t.weight_hh));
  const LayerShape shape{cell, t.weight_ih->size(1), hidden,
                         t.weight_hr == nullptr ? 0 : t.weight_hh->size(1)};
  if (t.weight_hr != nullptr) {
    RNNPACK_CHECK(cell == CellKind::kLstm, "only an LSTM can have a projection (weight_hr)");
    RNNPACK_CHECK(shape.projection > 0, "weight_hh must have proj_size > 0 columns, got shape ",
                  shape_text(*t.weight_hh));
    check_tensor(*t.weight_hr, "weight_hr", dtype, 2);
    check_sizes(*t.weight_hr, "weight_hr", {shape.projection, hidden});
  }
  check_sizes(*t.weight_ih, "weight_ih", {rows, shape.input});
  check_sizes(*t.weight_hh, "weight_hh", {rows, shape.output()});
  for (const auto& [bias, name] :
       {std::pair{t.bias_ih, "bias_ih"}, std::pair{t.bias_hh, "bias_hh"}}) {
    if (bias == nullptr) continue;
    check_tensor(*bias, name, dtype, 1);
    check_sizes(*bias, name, {rows});
  }
  return shape;
}

DType panels_type(const Tensor& weight, std::optional<ScalarType> dtype) {
  const ScalarType own = type_of(weight), type = dtype.value_or(own);
  RNNPACK_CHECK(type == own || (own == ScalarType::Float &&
                                (type == ScalarType::BFloat16 || type == ScalarType::Half)),
                "weights of ", dtype_name(own), " cannot be kept in ", dtype_name(type),
                ": give their own dtype, or bfloat16 or float16 for float32 ones");
  return dtype_of(type);
}

DType check_storage(const Tensor& input, const Tensor& weight) {
  RNNPACK_CHECK(type_of(weight) == type_of(input) || type_of(weight) == ScalarType::Float,
                "weights must be ", dtype_name(type_of(input)),
                " as the input is, or float32 to be rounded to it; got ",
                dtype_name(type_of(weight)));
  return dtype_of(input);
}

LayerWeights plain_weights(const WeightTensors& t, Dense& dense) {
  LayerWeights weights{};
  weights.dtype = dtype_of(*t.weight_ih);
  const auto matrix = [&dense](const Tensor& tensor, const void*& data, int64_t& ld) {
    const Tensor& rows = dense.rows(tensor);
    data = rows.data_ptr();
    ld = rows.stride(0);
  };
  matrix(*t.weight_ih, weights.weight_ih, weights.ld_ih);
  matrix(*t.weight_hh, weights.weight_hh, weights.ld_hh);
  if (t.weight_hr != nullptr) matrix(*t.weight_hr, weights.weight_hr, weights.ld_hr);
  if (t.bias_ih != nullptr) weights.bias_ih = floats(dense.floats(*t.bias_ih));
  if (t.bias_hh != nullptr) weights.bias_hh = floats(dense.floats(*t.bias_hh));
  return weights;
}

}  // namespace rnnpack::ops
