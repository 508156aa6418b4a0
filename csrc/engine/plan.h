// How a call's work is shared among threads: a function of the problem and the machine. It changes
// speed, never a bit of the result.
#pragma once

#include <cstdint>

#include "engine/problem.h"
#include "kernels/gemm/gemm.h"

namespace rnnpack {

// threads = row_groups x lanes x unit_threads.
//
// row_groups: groups of rows are independent; they share nothing but the weights and need no
// barrier.
//
// lanes: within a group, the two directions side by side, or the layers in a wavefront over
// segments of time.
//
// unit_threads: within a lane, blocks of hidden units are shared, with a barrier at every step.
struct Plan {
  int threads;
  int row_groups;
  int lanes;
  int unit_threads;
  int64_t segment_steps;   // steps of a layer between barriers of the group's lanes
  int64_t chunk_steps;     // steps of one input product: its gates stay in the second-level cache
                           // until they are used
  bool pipelined = false;  // the input product of the next chunk is computed beside the recurrent
                           // products of this one; all groups have the same one or two rows
  int packings = 1;        // of weights that the call packs: one for all, or one for each group

  // Whether each lane takes every lanes-th layer.
  bool wavefront(const Problem& problem) const { return problem.directions == 1 && lanes > 1; }
  // Segments that a layer must be behind the one below it. A layer that computes ahead of itself
  // needs one more.
  int64_t lag(const Problem& problem) const { return wavefront(problem) && pipelined ? 2 : 1; }
};

// What of the machine a plan depends on.
struct Machine {
  int threads;  // at most
  int64_t l2_bytes;
  int64_t (*handover_ns)();  // see team.h, as for the next; asked only where it decides
  bool (*team_awake)();
};

// How many of the machine's threads a call is worth: one where there is too little work.
int worthwhile_threads(const Problem& problem, const Machine& machine);

// Shares a call among the machine's threads, or among fewer.
Plan make_plan(const GemmKernels& kernels, const Problem& problem, const Machine& machine);

// The same call on one thread: what remains when the team turns out smaller than planned.
inline Plan single_thread(const Plan& plan) {
  return {1, 1, 1, 1, plan.segment_steps, plan.chunk_steps};
}

// Member `index` of `parts` equal shares of [0, count): first and one past last.
struct Range {
  int64_t first, last;
};
inline Range share(int64_t count, int64_t parts, int64_t index) {
  return {count * index / parts, count * (index + 1) / parts};
}

}  // namespace rnnpack
