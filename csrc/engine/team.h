// A team of threads and the barrier between time steps.
//
// Rule: a barrier is only legal among threads that surely run at the same time. run_team tells each
// member how large the team really is, and a barrier is made for that size; nothing else in the
// library starts threads, and at::parallel_for (which promises no concurrency) is not used.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/align.h"

namespace rnnpack {

// Runs body(context, member, size) on up to `threads` threads and returns when all are done. `size`
// is the team's true size: `threads`, or fewer when called from inside another team.
using TeamBody = void (*)(void* context, int member, int size);
void run_team(int threads, TeamBody body, void* context);

// Nanoseconds from a write of one thread until another one sees it: some 40 within a cluster of
// cores, 150 from one to the next. Measured when it is asked for, with a team of two and in some 10
// us, but not more than five times a second: a virtual machine's processors move.
int64_t handover_ns();

// Whether a call of a few us is worth a team: the calling thread's most likely still spins from the
// call before, or it asks so often that waking it is worth it.
bool team_awake();

// How many threads a call may use: OpenMP's setting for the calling thread; 1 inside another team
// and in a forked process.
int team_limit();

// Waits until all `size` members have arrived. Spins first, as a step lasts about a microsecond,
// then yields: with more threads than cores the one that is waited for may not be running.
class alignas(kCacheLine) Barrier {
 public:
  void reset(int size) {
    size_ = size;
    arrived_.store(0, std::memory_order_relaxed);
    phase_.store(0, std::memory_order_relaxed);
  }
  void wait() {
    if (size_ > 1) wait_for_others();
  }

 private:
  void wait_for_others();

  int size_ = 1;
  std::atomic<int> arrived_{0};
  alignas(kCacheLine) std::atomic<uint32_t> phase_{0};
};

}  // namespace rnnpack
