#include "engine/plan.h"

#include <algorithm>

#include "engine/row_set.h"

namespace rnnpack {

namespace {

// Starting a team costs 30 us once its threads sleep, as they do between the steps of a stream in
// real time. 4e5 multiply-adds are 8 us or more on one core.
constexpr int64_t kTeamWork = 400'000;
// While they still spin from the last team it costs 1.5 us near by: in multiply-adds of two threads
// for each ns that a line takes from core to core. A larger team is taken to cost as much more.
constexpr int64_t kAwakeTeamWorkPerNs = 2'000;
constexpr int64_t kLeastTeamWork = 80'000;  // for any distance of cores
// What a step's barrier costs, in multiply-adds for each ns that a line takes from core to core:
// the barrier is four such ways, the lines of h that follow it some more, and one row makes about
// 30 multiply-adds in a ns.
constexpr int64_t kBarrierWorkPerNs = 220;
// Below and above these no machine's barrier decides.
constexpr int64_t kLeastBarrierWork = 10'000, kMostBarrierWork = 1'000'000;

bool worth_a_barrier(int64_t step_work, const Machine& machine) {
  if (step_work < kLeastBarrierWork) return false;
  return step_work >= kMostBarrierWork || step_work >= kBarrierWorkPerNs * machine.handover_ns();
}

// Each group packs all weights, or waits for those that others have packed, where threads that
// share units need their own alone: 25 us more at hidden 128, as much as the barriers of so many
// steps.
constexpr int64_t kStepsOfRowGroups = 8;

int64_t step_work(const Problem& p) {
  const int64_t gates = traits(p.cell).gates * p.hidden;
  return p.rows.count * (gates * p.output_size() + p.hidden * p.projection);
}

int64_t total_work(const Problem& p) {
  const int64_t skipped = p.h_0 == nullptr && p.rows.steps > 0 ? 1 : 0;  // recurrent products
  int64_t work = 0;
  for (int64_t l = 0; l < p.layers; ++l) {
    work += p.directions *
            (step_work(p) * (p.rows.steps - skipped) +
             p.rows.count * p.rows.steps * traits(p.cell).gates * p.hidden * p.shape(l).input);
  }
  return work;
}

int64_t packed_bytes(const Problem& p) {
  int64_t bytes = 0;
  for (int64_t l = 0; l < p.layers; ++l) bytes += p.directions * p.shape(l).packed_bytes();
  return bytes;
}

int largest_divisor(int n, int limit) {
  for (int d = std::min(n, limit); d > 1; --d) {
    if (n % d == 0) return d;
  }
  return 1;
}

}  // namespace

int worthwhile_threads(const Problem& p, const Machine& machine) {
  if (machine.threads <= 1) return 1;
  const int64_t work = total_work(p);
  if (work >= kTeamWork) return machine.threads;
  const bool awake = work >= kLeastTeamWork && machine.team_awake() &&
                     work >= kAwakeTeamWorkPerNs * machine.handover_ns() * machine.threads / 2;
  return awake ? machine.threads : 1;
}

Plan make_plan(const GemmKernels& kernels, const Problem& p, const Machine& machine) {
  Plan plan{1, 1, 1, 1, std::max<int64_t>(p.rows.steps, 1), 1};
  int threads = machine.threads;

  // Rows first: groups of rows never wait for each other. But each reads all the weights: that pays
  // over several steps, and it takes enough rows to compute with while they come: 4 where the
  // recurrent ones come from its own cache or from the next one (2 from its own where kernels have
  // something else to compute in the meantime), more from memory.
  const int64_t recurrent_bytes =
      step_work(p) / std::max<int64_t>(p.rows.count, 1) * size_of(p.storage);
  const bool two_will_do = kernels.streamed_rows >= 2 && recurrent_bytes <= machine.l2_bytes / 2;
  const int64_t rows_wanted = two_will_do ? 2 : recurrent_bytes <= machine.l2_bytes * 4 ? 4 : 16;
  if (p.rows.steps >= kStepsOfRowGroups) {
    plan.row_groups = largest_divisor(
        threads, static_cast<int>(std::min<int64_t>(p.rows.count / rows_wanted, threads)));
  }
  threads /= plan.row_groups;
  // Each group packs its own where they stay in its cache: lines that another thread has packed
  // come later than packing them takes.
  if (!p.direct && p.weights[0].packed == nullptr && packed_bytes(p) <= machine.l2_bytes)
    plan.packings = plan.row_groups;

  // Directions and layers side by side where the weights of one stay in the cache of its one
  // thread. Larger ones are better shared, half of them in each cache, one direction or layer at a
  // time.
  const bool lanes_fit = recurrent_bytes <= machine.l2_bytes / 4 * 3;
  if (threads > 1 && lanes_fit && p.directions == 2) {
    plan.lanes = 2;
  } else if (threads > 1 && lanes_fit && p.layers > 1 && p.rows.steps >= 16) {
    // A wavefront only where all lanes get the same number of layers.
    plan.lanes = largest_divisor(static_cast<int>(p.layers), threads);
    if (plan.lanes > 1) plan.segment_steps = std::clamp<int64_t>(p.rows.steps / 16, 4, 64);
  }
  if (plan.lanes > threads) plan.lanes = 1;
  const int64_t blocks = p.shape(0).gates().blocks();
  if (threads > plan.lanes && worth_a_barrier(step_work(p) / plan.row_groups, machine))
    plan.unit_threads = static_cast<int>(std::min<int64_t>(threads / plan.lanes, blocks));
  plan.threads = plan.row_groups * plan.lanes * plan.unit_threads;

  const int64_t step_gates =
      ceil_div(p.rows.count, plan.row_groups) * p.shape(0).gates().columns() * 4;
  plan.chunk_steps =
      std::clamp<int64_t>(machine.l2_bytes / 8 / std::max<int64_t>(step_gates, 1), 1, 64);
  plan.chunk_steps = std::min(plan.chunk_steps, plan.segment_steps);

  const int64_t group_rows = largest_group(p.rows, plan.row_groups);
  const bool few_rows = !p.direct && group_rows > 0 && group_rows <= kernels.streamed_rows &&
                        group_rows * plan.row_groups == p.rows.count;
  const int64_t ahead_steps = few_rows ? kernels.pipelined_rows / group_rows : 0;
  plan.pipelined = few_rows && p.rows.steps >= 2 * ahead_steps;
  if (plan.pipelined) {
    plan.chunk_steps = ahead_steps;
    if (plan.segment_steps < p.rows.steps)
      plan.segment_steps = round_up(plan.segment_steps, plan.chunk_steps);
  }
  return plan;
}

}  // namespace rnnpack
