// The pointwise part of a step: pre-gates to states, and gradients of states to gradients of
// pre-gates. Equations: lstm.h, gru.h, rnn.h. Both work on blocks of units [first_block,
// last_block) of all rows.
#pragma once

#include <cstdint>

#include "kernels/pack/layout.h"

namespace rnnpack {

// Every operand is one pointer a row. Rows of padded buffers (gates, c, dc, dh) have room for whole
// blocks; what lies past the real units is undefined. Pointers to rows of the caller's tensors (h,
// h_prev, grad_output, dgates) are read and written for real units only.
struct CellForward {
  GateLayout layout;
  int64_t rows;
  int64_t first_block, last_block;
  float* const* gates;  // in: pre-gates; out, if keep_gates: what the backward pass reads
  const float* const*
      c_prev;  // cell state of the step before; may be c itself; null for cells without one
  float* const* c;
  const float* const* h_prev;  // read by GRU only
  float* const* h;
  bool keep_gates;
};

struct CellBackward {
  GateLayout layout;
  int64_t rows;
  int64_t first_block, last_block;
  const float* const* gates;  // as kept by the forward pass
  const float* const* c_prev;
  const float* const* c;
  const float* const* h_prev;
  const float* const* grad_output;  // added to dh; null: nothing to add
  float* const* dh;  // in: gradient of h from later steps; out: what reaches h_prev past the gates
                     // (GRU: dh * z, else 0)
  float* const* dc;  // in: gradient of c; out: gradient of c_prev
  float* const* dgates;  // out: slot s of unit u at [s * hidden + u]
  float* const* hidden;  // out: o * tanh(c), which a projection multiplies; null: not wanted
};

using CellForwardKernel = void (*)(const CellForward&);
using CellBackwardKernel = void (*)(const CellBackward&);

}  // namespace rnnpack
