// Ops: one layer and direction with what its backward pass needs, and that backward pass.
#pragma once

#include "ops/tensors.h"

namespace rnnpack::ops {

// input: [L, N, F], [sum(batch_sizes), F], or [N, F] without batch_sizes: one step; states [N, .].
// Returns (output, h_n, c_n, reserve); c_n is empty for cells without a cell state. reserve, in one
// dimension, a row's steps together: gates after activation [rows, columns] (not if recompute),
// cell states [rows, padded units], and h [rows, output] (not if recompute: then the backward pass
// takes it from the output). dtype: of the panels; none: that of the weights, which may be 16 bits
// wide. Everything else is float32.
std::tuple<Tensor, Tensor, Tensor, Tensor> train(
    const Tensor& input, const std::optional<Tensor>& h_0, const std::optional<Tensor>& c_0,
    const Tensor& weight_ih, const Tensor& weight_hh, const std::optional<Tensor>& bias_ih,
    const std::optional<Tensor>& bias_hh, const std::optional<Tensor>& weight_hr,
    const std::optional<Tensor>& lengths, const std::optional<Tensor>& batch_sizes, int64_t cell,
    bool reverse, bool recompute, std::optional<ScalarType> dtype);

// Gradients of input, h_0, c_0, weight_ih, weight_hh, bias_ih, bias_hh, weight_hr: bit i of
// `wanted` asks for the i-th, the others come empty. Those of weights have the weights' dtype. Only
// reads `reserve`.
std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor> train_backward(
    const std::optional<Tensor>& grad_output, const std::optional<Tensor>& grad_h_n,
    const std::optional<Tensor>& grad_c_n, const Tensor& input, const std::optional<Tensor>& h_0,
    const std::optional<Tensor>& c_0, const Tensor& weight_ih, const Tensor& weight_hh,
    const std::optional<Tensor>& bias_ih, const std::optional<Tensor>& bias_hh,
    const std::optional<Tensor>& weight_hr, const std::optional<Tensor>& lengths,
    const std::optional<Tensor>& batch_sizes, const std::optional<Tensor>& output,
    const Tensor& reserve, int64_t cell, bool reverse, bool recompute, int64_t wanted,
    std::optional<ScalarType> dtype);

}  // namespace rnnpack::ops
