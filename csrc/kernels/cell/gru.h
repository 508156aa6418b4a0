// GRU (Cho et al. 2014) with the reset after the linear, as torch.nn.GRU and cuDNN write it:
//   r = sigmoid(.)  z = sigmoid(.)  n = tanh(n_ih + r * n_hh)
//   h = n + z * (h_prev - n)
// Slots: r, z, n_hh (recurrent part, with bias_hh), n_ih (input part, with bias_ih). Kept for the
// backward pass: r, z, n_hh, n.
#pragma once

#include "kernels/activation/activation.h"
#include "kernels/cell/blocks.h"

namespace rnnpack::RNNPACK_ISA {

inline void gru_forward(const CellForward& call) {
  // Between the passes the slot of n_ih holds what tanh takes.
  const auto to_gates = [&](auto access, int64_t row, int64_t, int64_t column, int64_t stride)
                            RNNPACK_INLINE_LAMBDA {
    float* gates = call.gates[row] + column;
    const Vec r = sigmoid(access.padded(gates));
    access.padded(gates + 3 * stride,
                  fma(r, access.padded(gates + 2 * stride), access.padded(gates + 3 * stride)));
    access.padded(gates + stride, sigmoid(access.padded(gates + stride)));
    if (call.keep_gates) access.padded(gates, r);
  };
  const auto to_h = [&](auto access, int64_t row, int64_t unit, int64_t column, int64_t stride)
                        RNNPACK_INLINE_LAMBDA {
    float* gates = call.gates[row] + column;
    const Vec z = access.padded(gates + stride);
    const Vec n = tanh(access.padded(gates + 3 * stride));
    access.tensor(call.h[row] + unit, fma(z, access.tensor(call.h_prev[row] + unit) - n, n));
    if (call.keep_gates) access.padded(gates + 3 * stride, n);
  };
  for_each_vector_in_two_passes(call.layout, call.rows, call.first_block, call.last_block, to_gates,
                                to_h);
}

// Leaves in dh what reaches h_prev directly, dh * z; the gates' share is added by the recurrent
// product.
inline void gru_backward(const CellBackward& call) {
  const int64_t hidden = call.layout.hidden;
  for_each_vector(call.layout, 0, call.rows, call.first_block, call.last_block,
                  [&](auto access, int64_t row, int64_t unit, int64_t column, int64_t stride)
                      RNNPACK_INLINE_LAMBDA {
    const float* gates = call.gates[row] + column;
    const Vec r = access.padded(gates);
    const Vec z = access.padded(gates + stride);
    const Vec n_hh = access.padded(gates + 2 * stride);
    const Vec n = access.padded(gates + 3 * stride);
    Vec dh = access.padded(call.dh[row] + unit);
    if (call.grad_output != nullptr) dh = dh + access.tensor(call.grad_output[row] + unit);

    const Vec dn = dh * (1.0f - z) * (1.0f - n * n);
    access.padded(call.dh[row] + unit, dh * z);
    float* dgates = call.dgates[row] + unit;
    access.tensor(dgates, dn * n_hh * (r * (1.0f - r)));
    access.tensor(dgates + hidden,
                  dh * (access.tensor(call.h_prev[row] + unit) - n) * (z * (1.0f - z)));
    access.tensor(dgates + 2 * hidden, dn * r);
    access.tensor(dgates + 3 * hidden, dn);
  });
}

}  // namespace rnnpack::RNNPACK_ISA
