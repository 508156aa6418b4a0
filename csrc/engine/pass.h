// A pass of a team over a problem: its scratch, and each member at work. A pass brings
//
//   Problem, Scratch
//   static Scratch lay_out(Arena&, const Problem&, const Plan&, bool measure);
//   static void start(const Scratch&, const Problem&, const Plan&);   what must be there before the
//                                                                     members are: barriers, zeros
//   Member(const KernelTable&, const Problem&, const Plan&, const Scratch&, int index), run()
#pragma once

#include <algorithm>

#include "engine/arena.h"
#include "engine/plan.h"
#include "engine/team.h"
#include "kernels/table.h"

namespace rnnpack {

// Enough for the plan and for one thread, whichever it turns out to be.
template <class Pass>
int64_t scratch_bytes(const typename Pass::Problem& problem, const Plan& plan) {
  Arena planned(nullptr), alone(nullptr);
  Pass::lay_out(planned, problem, plan, true);
  if (plan.threads == 1) return planned.used();
  Pass::lay_out(alone, problem, single_thread(plan), true);
  return std::max(planned.used(), alone.used());
}

template <class Pass>
class Run {
 public:
  Run(const KernelTable& kernels, const typename Pass::Problem& problem, const Plan& plan,
      void* memory)
      : kernels_(kernels), problem_(problem), plan_(plan), memory_(memory) {
    scratch_ = prepare(plan);
    run_team(plan.threads, &run_member, this);
  }

 private:
  typename Pass::Scratch prepare(const Plan& plan) const {
    Arena arena(memory_);
    const typename Pass::Scratch scratch = Pass::lay_out(arena, problem_, plan, false);
    Pass::start(scratch, problem_, plan);
    return scratch;
  }

  static void run_member(void* context, int member, int size) {
    Run& run = *static_cast<Run*>(context);
    if (size == run.plan_.threads) {
      run.work(run.plan_, run.scratch_, member);
    } else if (member == 0) {
      // A smaller team than planned, inside another one say: its first member does everything.
      const Plan plan = single_thread(run.plan_);
      run.work(plan, run.prepare(plan), member);
    }
  }

  void work(const Plan& plan, const typename Pass::Scratch& scratch, int member) const {
    typename Pass::Member(kernels_, problem_, plan, scratch, member).run();
  }

  const KernelTable& kernels_;
  const typename Pass::Problem& problem_;
  const Plan plan_;
  void* const memory_;
  typename Pass::Scratch scratch_;
};

}  // namespace rnnpack
