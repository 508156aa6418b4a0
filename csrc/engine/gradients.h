// Gradients of weights, biases and input from a chunk's gradients of pre-gates: the products that
// need no order in time.
//
// They are not left to a general matrix library because the sums must not depend on the number of
// threads, and because a long sum in one accumulator loses digits: here a chunk is summed from zero
// and then added to the total.
#pragma once

#include "engine/arena.h"
#include "engine/layer_pass.h"

namespace rnnpack {

// Steps whose gradients are taken together: about 128 rows. A function of the problem alone, as it
// sets the order of sums.
int64_t gradient_chunk_steps(const Problem& problem);

// The rows of a chunk: those of its first step, then of the next, in processing order.
struct ChunkGradients {
  float* dgates;    // [rows, gate_width]: by slot; the width is that of whole panels
  float* dh_total;  // [rows, projection]
  float* hidden;    // [rows, hidden]
  int64_t gate_width, projection, units;

  float* dgates_row(int64_t row) const { return dgates + row * gate_width; }
  float* dh_total_row(int64_t row) const { return dh_total + row * projection; }
  float* hidden_row(int64_t row) const { return hidden + row * units; }
};
ChunkGradients lay_out_chunk(Arena& arena, const Problem& problem);

// One product gradient[j, :] = sum over rows of left[row, j] * right[row, :], of which each thread
// makes a share of j.
struct WeightTotals {
  float* totals;    // [rows of the weight, padded columns]; the gradient itself if none are padded
  float* gradient;  // null: not wanted
  int64_t rows, columns;
};

struct GradientMember {
  float* left;   // [own rows of the largest weight, kGradientBlock]: columns of `left`, transposed
  float* right;  // panels of kGradientBlock rows
  float* input;  // [kGradientBlock, padded input]: gradients of input rows; null where none are
                 // padded
  const float** a;  // row pointers
  const void** source;
  float** c;
};

struct GradientScratch {
  WeightTotals ih, hh, hr;
  float* bias;      // [gate_width]: totals of dgates, which both biases get; null: not wanted
  void* weight_ih;  // panels of weight_ih by its columns, when the input's gradient is wanted
  float* ones;      // [kGradientBlock]
  GradientMember* members;
};
GradientScratch lay_out_gradients(Arena& arena, const BackwardProblem& problem, int threads,
                                  bool measure);

// Neighbouring slots that take the input's product, in gate order: all of them, or for GRU r and z,
// then n.
struct SlotRun {
  int64_t slot, first_gate, gates;
};

class Gradients {
 public:
  Gradients(const KernelTable& kernels, const BackwardProblem& problem,
            const GradientScratch& scratch, const ChunkGradients& chunk, const float* zeros,
            int threads, int index)
      : kernels_(kernels),
        b_(problem),
        p_(problem.forward),
        scratch_(scratch),
        chunk_(chunk),
        zeros_(zeros),
        mine_(scratch.members[index]),
        threads_(threads),
        index_(index) {}

  void start() const;  // packs what the products need
  // Steps [first, last), all of whose dgates are there.
  void add_chunk(int64_t first, int64_t last);
  void finish() const;  // writes the totals to the caller's tensors

 private:
  void add_block(int64_t first_row, int64_t rows, const void* const* inputs,
                 const void* const* states) const;
  void transpose(const WeightTotals& weight, int64_t rows, const float* left, int64_t ld_left,
                 int64_t slot_width, const int* slot_of, const int* held) const;
  void add_weight(const WeightTotals& weight, int64_t rows, const void* const* right) const;
  void add_bias(int64_t first_row, int64_t rows) const;
  PanelMap dgates_panels() const;
  void* run_panels(const SlotRun& run) const;
  void add_input(int64_t first_row, int64_t rows, float* const* outputs) const;

  const KernelTable& kernels_;
  const BackwardProblem& b_;
  const Problem& p_;
  const GradientScratch& scratch_;
  const ChunkGradients& chunk_;
  const float* zeros_;
  const GradientMember& mine_;
  const int threads_, index_;
  bool empty_ = true;  // nothing has been added: the totals hold what was in memory before
};

}  // namespace rnnpack
