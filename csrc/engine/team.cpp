#include "engine/team.h"

#ifdef RNNPACK_TEAM_STD_THREAD
#include <thread>
#include <vector>
#else
#include <omp.h>
#endif

#if defined(__unix__) || defined(__APPLE__)
#include <pthread.h>
#include <sched.h>
#endif

namespace rnnpack {

#ifdef RNNPACK_TEAM_STD_THREAD  // for ThreadSanitizer, which cannot see into libgomp

void run_team(int threads, TeamBody body, void* context) {
  std::vector<std::thread> others;
  for (int member = 1; member < threads; ++member)
    others.emplace_back(body, context, member, threads);
  body(context, 0, threads);
  for (std::thread& other : others) other.join();
}

int team_limit() { return 64; }

#else

void run_team(int threads, TeamBody body, void* context) {
  if (threads <= 1) {
    body(context, 0, 1);
    return;
  }
#pragma omp parallel num_threads(threads)
  body(context, omp_get_thread_num(), omp_get_num_threads());
}

namespace {
// A forked child has libgomp's records of a team, but not its threads: starting one would wait for
// them for ever.
bool forked = false;
}  // namespace

int team_limit() {
#if defined(__unix__) || defined(__APPLE__)
  static const int watching = pthread_atfork(nullptr, nullptr, [] { forked = true; });
  (void)watching;
#endif
  return forked || omp_in_parallel() ? 1 : omp_get_max_threads();
}

#endif

namespace {

inline void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

inline void give_way() {
#if defined(__unix__) || defined(__APPLE__)
  sched_yield();
#endif
}

}  // namespace

void Barrier::wait_for_others() {
  constexpr int kSpins = 2000;  // about 20 us: ten steps of a small layer
  const uint32_t phase = phase_.load(std::memory_order_relaxed);
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) == size_ - 1) {
    arrived_.store(0, std::memory_order_relaxed);
    phase_.store(phase + 1, std::memory_order_release);
    return;
  }
  for (int spins = 0; phase_.load(std::memory_order_acquire) == phase; ++spins) {
    if (spins < kSpins) {
      relax();
    } else {
      give_way();
    }
  }
}

}  // namespace rnnpack
