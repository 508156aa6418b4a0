// The engine's entry points.
#pragma once

#include <cstdint>

#include "engine/plan.h"
#include "engine/problem.h"
#include "kernels/table.h"

namespace rnnpack {

// Packs one layer and direction. packed: shape.packed_floats() floats, cache-line aligned, all written.
void pack_layer(const KernelTable& kernels, const LayerShape& shape, const LayerWeights& weights, float* packed);

// Runs a whole stack. scratch: forward_scratch_bytes(...) bytes, cache-line aligned.
int64_t forward_scratch_bytes(const Problem& problem, const Plan& plan);
void run_forward(const KernelTable& kernels, const Problem& problem, const Plan& plan, void* scratch);

// Gradients of one layer and direction through time. Reads the forward's problem (plain weights, reserve, output); writes
//   dgates:   rows like `input`, slots * hidden floats each: gradients of the pre-gates, by slot
//   dh_total: with a projection, rows like `input`, projection floats: gradient of h; and
//   hidden:   with a projection, rows like `input`, hidden floats: o * tanh(c), which weight_hr multiplies
//   grad_h_0, grad_c_0: in: gradients of h_n and c_n; out: of h_0 and c_0. [count, output], [count, hidden]
// Where the forward's reserve has no gates they are rebuilt from input, output and the reserve's c.
// Rows past a sequence's end are not written. The large products that remain are the caller's.
struct BackwardProblem {
  Problem forward;
  SequenceView grad_output;  // data null: zero
  SequenceView dgates;
  SequenceView dh_total;
  SequenceView hidden;
  float* grad_h_0;
  float* grad_c_0;

  bool recompute() const { return forward.reserve_gates == nullptr; }
};
int64_t backward_scratch_bytes(const BackwardProblem& problem, const Plan& plan);
void run_backward(const KernelTable& kernels, const BackwardProblem& problem, const Plan& plan, void* scratch);

}  // namespace rnnpack
