// The engine's entry points.
#pragma once

#include <cstdint>

#include "engine/plan.h"
#include "engine/problem.h"
#include "kernels/table.h"

namespace rnnpack {

// Packs one layer and direction. packed: shape.packed_bytes(), cache-line aligned; what pads the
// parts to cache lines is not written.
void pack_layer(const KernelTable& kernels, const LayerShape& shape, const LayerWeights& weights,
                void* packed);

// Sets the groups of weights that a call packs for itself: as wide as the registers hold the sums
// of the rows that will read them.
void choose_groups(const KernelTable& kernels, Problem& problem);

// Runs a whole stack. scratch: forward_scratch_bytes(...) bytes, cache-line aligned.
int64_t forward_scratch_bytes(const Problem& problem, const Plan& plan);
void run_forward(const KernelTable& kernels, const Problem& problem, const Plan& plan,
                 void* scratch);

// Gradients of one layer and direction. Reads the forward's problem (plain weights, reserve, input,
// output) and the gradients of its results; writes those of its arguments, dense, where a pointer
// is given. Rows of grad_input past a sequence's end are not written. Where the forward's reserve
// has no gates they are rebuilt from input, output and the reserve's c.
struct BackwardProblem {
  Problem forward;
  SequenceView grad_output;  // data null: zero
  float* grad_h_0;           // [count, output]; in: gradient of h_n, out: of h_0
  float* grad_c_0;  // [count, hidden]; in: gradient of c_n, out: of c_0; null for cells without a
                    // cell state
  SequenceView grad_input;
  float* grad_weight_ih;  // as the weights
  float* grad_weight_hh;
  float* grad_weight_hr;
  float* grad_bias_ih;  // [gates * hidden]
  float* grad_bias_hh;

  bool recompute() const { return forward.reserve_gates == nullptr; }
};
int64_t backward_scratch_bytes(const BackwardProblem& problem, const Plan& plan);
void run_backward(const KernelTable& kernels, const BackwardProblem& problem, const Plan& plan,
                  void* scratch);

}  // namespace rnnpack
