// Elman RNN (Elman 1990), as torch.nn.RNN writes it: h = tanh(.) or h = relu(.). Kept for the
// backward pass: h.
#pragma once

#include "kernels/activation/activation.h"
#include "kernels/cell/blocks.h"

namespace rnnpack::RNNPACK_ISA {

struct Tanh {
  static RNNPACK_INLINE Vec value(Vec x) { return tanh(x); }
  static RNNPACK_INLINE Vec gradient(Vec dh, Vec h) { return dh * (1.0f - h * h); }
};

struct Relu {
  static RNNPACK_INLINE Vec value(Vec x) { return at_least(Vec{}, x); }
  // A NaN passes, as in torch.
  static RNNPACK_INLINE Vec gradient(Vec dh, Vec h) { return h <= 0.0f ? Vec{} : dh; }
};

template <class Activation>
void rnn_forward(const CellForward& call) {
  for_each_vector(call.layout, 0, call.rows, call.first_block, call.last_block,
                  [&](auto access, int64_t row, int64_t unit, int64_t column, int64_t)
                      RNNPACK_INLINE_LAMBDA {
    float* gates = call.gates[row] + column;
    const Vec h = Activation::value(access.padded(gates));
    access.tensor(call.h[row] + unit, h);
    if (call.keep_gates) access.padded(gates, h);
  });
}

template <class Activation>
void rnn_backward(const CellBackward& call) {
  for_each_vector(call.layout, 0, call.rows, call.first_block, call.last_block,
                  [&](auto access, int64_t row, int64_t unit, int64_t column, int64_t)
                      RNNPACK_INLINE_LAMBDA {
    Vec dh = access.padded(call.dh[row] + unit);
    if (call.grad_output != nullptr) dh = dh + access.tensor(call.grad_output[row] + unit);
    const Vec h = access.padded(call.gates[row] + column);
    access.padded(call.dh[row] + unit, Vec{});
    access.tensor(call.dgates[row] + unit, Activation::gradient(dh, h));
  });
}

}  // namespace rnnpack::RNNPACK_ISA
