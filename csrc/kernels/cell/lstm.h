// LSTM (Hochreiter & Schmidhuber 1997; with forget gate, Gers et al. 2000), as torch.nn.LSTM writes
// it:
//   i = sigmoid(.)  f = sigmoid(.)  g = tanh(.)  o = sigmoid(.)
//   c = f * c_prev + i * g
//   h = o * tanh(c)        (a projection, h = weight_hr h, is a product of its own: engine)
#pragma once

#include "kernels/activation/activation.h"
#include "kernels/cell/blocks.h"

namespace rnnpack::RNNPACK_ISA {

inline void lstm_forward(const CellForward& call) {
  // Between the passes the slot of o holds what sigmoid is 1 over.
  const auto to_c = [&](auto access, int64_t row, int64_t unit, int64_t column, int64_t stride)
                        RNNPACK_INLINE_LAMBDA {
    float* gates = call.gates[row] + column;
    const Vec x_g = access.padded(gates + 2 * stride);
    const Vec i_denominator = sigmoid_denominator(access.padded(gates));
    const Vec f = sigmoid(access.padded(gates + stride));
    const Vec o_denominator = sigmoid_denominator(access.padded(gates + 3 * stride));
    const Vec c = fma(f, access.padded(call.c_prev[row] + unit), gated_tanh(i_denominator, x_g));
    access.padded(call.c[row] + unit, c);
    access.padded(gates + 3 * stride, o_denominator);
    if (call.keep_gates) {
      access.padded(gates, 1.0f / i_denominator);
      access.padded(gates + stride, f);
      access.padded(gates + 2 * stride, tanh(x_g));
    }
  };
  const auto to_h = [&](auto access, int64_t row, int64_t unit, int64_t column, int64_t stride)
                        RNNPACK_INLINE_LAMBDA {
    float* o = call.gates[row] + column + 3 * stride;
    const Vec o_denominator = access.padded(o);
    const Vec c = access.padded(call.c[row] + unit);
    access.tensor(call.h[row] + unit, gated_tanh(o_denominator, c));
    if (call.keep_gates) access.padded(o, 1.0f / o_denominator);
  };
  for_each_vector_in_two_passes(call.layout, call.rows, call.first_block, call.last_block, to_c,
                                to_h);
}

// Derivatives of the lines above, from dh and dc of this step; tanh(c) is computed again rather
// than kept.
inline void lstm_backward(const CellBackward& call) {
  const int64_t hidden = call.layout.hidden;
  for_each_vector(call.layout, 0, call.rows, call.first_block, call.last_block,
                  [&](auto access, int64_t row, int64_t unit, int64_t column, int64_t stride)
                      RNNPACK_INLINE_LAMBDA {
    const float* gates = call.gates[row] + column;
    const Vec i = access.padded(gates);
    const Vec f = access.padded(gates + stride);
    const Vec g = access.padded(gates + 2 * stride);
    const Vec o = access.padded(gates + 3 * stride);
    const Vec c_prev = access.padded(call.c_prev[row] + unit);
    const Vec tanh_c = tanh(access.padded(call.c[row] + unit));
    Vec dh = access.padded(call.dh[row] + unit);
    if (call.grad_output != nullptr) dh = dh + access.tensor(call.grad_output[row] + unit);

    if (call.hidden != nullptr) access.tensor(call.hidden[row] + unit, o * tanh_c);

    const Vec dc = fma(dh * o, 1.0f - tanh_c * tanh_c, access.padded(call.dc[row] + unit));
    access.padded(call.dc[row] + unit, dc * f);
    access.padded(call.dh[row] + unit, Vec{});
    float* dgates = call.dgates[row] + unit;
    access.tensor(dgates, dc * g * (i * (1.0f - i)));
    access.tensor(dgates + hidden, dc * c_prev * (f * (1.0f - f)));
    access.tensor(dgates + 2 * hidden, dc * i * (1.0f - g * g));
    access.tensor(dgates + 3 * hidden, dh * tanh_c * (o * (1.0f - o)));
  });
}

}  // namespace rnnpack::RNNPACK_ISA
