// Op: a whole stack without gradients.
#pragma once

#include "ops/tensors.h"

namespace rnnpack::ops {

// weights: per layer and direction either one packed tensor, or weight_ih, weight_hh [, bias_ih,
// bias_hh] [, weight_hr].
// hidden_size, proj_size: repeat what the weights tell, so that shapes follow from arguments alone.
// input: [L, N, F], [N, L, F] if batch_first, or [sum(batch_sizes), F].
// h_0, c_0: [layers * directions, N, .].
// Returns (output, h_n, c_n); c_n is empty for cells without a cell state.
//
// Input, states and results have one dtype: float32, bfloat16 or float16. So have plain weights, or
// they are float32 and are rounded to it when they are multiplied. Packed ones are multiplied in
// the type that they were packed in.
std::tuple<Tensor, Tensor, Tensor> infer(const Tensor& input, const std::optional<Tensor>& h_0,
                                         const std::optional<Tensor>& c_0,
                                         const std::vector<Tensor>& weights,
                                         const std::optional<Tensor>& lengths,
                                         const std::optional<Tensor>& batch_sizes, int64_t cell,
                                         int64_t layers, int64_t hidden_size, int64_t proj_size,
                                         bool bidirectional, bool batch_first);

// One step of one layer, as a cell module takes it: input [N, F], states [N, .]; weights as for one
// layer of `infer`. Returns (h, c), c absent without a cell state. Called by handle alone, calls.h.
std::tuple<Tensor, std::optional<Tensor>> cell(const Tensor& input,
                                               const std::optional<Tensor>& h_0,
                                               const std::optional<Tensor>& c_0,
                                               const std::vector<Tensor>& weights, int64_t cell);

// Whether `infer` multiplies with plain weights as they are (rows = steps * batch) instead of
// packing them in the call.
bool is_direct(int64_t rows);

}  // namespace rnnpack::ops
