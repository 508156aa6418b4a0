// Ops: one layer and direction with what its backward pass needs, and that backward pass.
#pragma once

#include "ops/tensors.h"

namespace rnnpack::ops {

// input: [L, N, F] or [sum(batch_sizes), F]; states [N, .]. Returns (output, h_n, c_n, reserve); c_n is empty for cells without a cell
// state. reserve: gates after activation [rows, columns] (not if recompute) and cell states [rows, padded units], in one dimension.
std::tuple<Tensor, Tensor, Tensor, Tensor> train(const Tensor& input, const std::optional<Tensor>& h_0, const std::optional<Tensor>& c_0,
                                                 const Tensor& weight_ih, const Tensor& weight_hh, const std::optional<Tensor>& bias_ih,
                                                 const std::optional<Tensor>& bias_hh, const std::optional<Tensor>& weight_hr,
                                                 const std::optional<Tensor>& lengths, const std::optional<Tensor>& batch_sizes,
                                                 int64_t cell, bool reverse, bool recompute);

// batch: rows of the states, which a packed sequence does not tell by its shape. Returns (dgates, grad_h_0, grad_c_0, dh_total, hidden); see engine.h. Only reads `reserve`. dgates, dh_total and hidden are shaped like
// the input, zero past each row's length; dh_total and hidden are empty without a projection.
std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> train_backward(
    const std::optional<Tensor>& grad_output, const std::optional<Tensor>& grad_h_n, const std::optional<Tensor>& grad_c_n,
    const Tensor& input, const std::optional<Tensor>& h_0, const std::optional<Tensor>& c_0, const Tensor& weight_ih,
    const Tensor& weight_hh, const std::optional<Tensor>& bias_ih, const std::optional<Tensor>& bias_hh,
    const std::optional<Tensor>& weight_hr, const std::optional<Tensor>& lengths, const std::optional<Tensor>& batch_sizes,
    const Tensor& output, const Tensor& reserve, int64_t cell, bool reverse, bool recompute, int64_t batch);

}  // namespace rnnpack::ops
