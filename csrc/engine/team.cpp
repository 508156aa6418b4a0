#include "engine/team.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <limits>

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

namespace {

using Clock = std::chrono::steady_clock;

int64_t ns(Clock::duration duration) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(duration).count();
}

int64_t now_ns() { return ns(Clock::now().time_since_epoch()); }

constexpr int64_t kNever = std::numeric_limits<int64_t>::min() / 2;

// How often a thread asks for a team that sleeps.
struct Asking {
  int64_t last = kNever;  // ns
  int in_succession = 0;  // times at short intervals
};
thread_local Asking asking;

// The latest team: whose, and when it was done. OpenMP keeps one for each thread that starts some.
std::atomic<const Asking*> latest_owner{nullptr};
std::atomic<int64_t> latest_end{kNever};

// How this thread rounds, and whether it takes denormals for zero (torch.set_flush_denormal).
class FloatMode {
 public:
#if defined(__x86_64__)
  static FloatMode current() { return FloatMode(__builtin_ia32_stmxcsr()); }
  void use() const { __builtin_ia32_ldmxcsr(static_cast<uint32_t>(bits_)); }
#elif defined(__aarch64__)
  static FloatMode current() {
    uint64_t bits;
    asm volatile("mrs %0, fpcr" : "=r"(bits));
    return FloatMode(bits);
  }
  void use() const { asm volatile("msr fpcr, %0" : : "r"(bits_)); }
#else
  static FloatMode current() { return FloatMode(0); }
  void use() const {}
#endif

 private:
  explicit FloatMode(uint64_t bits) : bits_(bits) {}
  uint64_t bits_;
};

// A team computes in the mode of the thread that calls it, or bits would depend on the number of
// threads.
void run_in_mode(TeamBody body, void* context, int member, int size, FloatMode mode) {
  const FloatMode own = FloatMode::current();
  mode.use();
  body(context, member, size);
  own.use();
}

}  // namespace

#ifdef RNNPACK_TEAM_STD_THREAD  // for ThreadSanitizer, which cannot see into libgomp

void run_team(int threads, TeamBody body, void* context) {
  const FloatMode mode = FloatMode::current();
  std::vector<std::thread> others;
  for (int member = 1; member < threads; ++member)
    others.emplace_back(run_in_mode, body, context, member, threads, mode);
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
  // As many as torch's own parallel regions have, of which the surplus goes home at once: libgomp
  // ends threads that a smaller team leaves over, and the next larger one has to start them anew.
  const int all = std::max(threads, omp_get_max_threads());
  const FloatMode mode = FloatMode::current();
#pragma omp parallel num_threads(all)
  {
    const int size = std::min(threads, omp_get_num_threads());
    if (omp_get_thread_num() < size) run_in_mode(body, context, omp_get_thread_num(), size, mode);
  }
  latest_owner.store(&asking, std::memory_order_relaxed);
  latest_end.store(now_ns(), std::memory_order_relaxed);
}

namespace {
// A forked child has libgomp's records of a team, but not its threads: starting one would wait for
// them for ever.
bool forked = false;
#if defined(__unix__) || defined(__APPLE__)
// From the moment the library is loaded: torch's own calls start a team, too.
[[maybe_unused]] const int watching = pthread_atfork(nullptr, nullptr, [] { forked = true; });
#endif
}  // namespace

int team_limit() { return forked || omp_in_parallel() ? 1 : omp_get_max_threads(); }

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

// Two threads answer each other; the quickest of a few rallies counts.
struct Handover {
  static constexpr int64_t kReturns = 8, kRallies = 4;
  static constexpr int64_t kWaking = 5'000'000;   // ns: longer than a thread takes to wake up
  static constexpr int64_t kAnswering = 200'000;  // ns: longer, and it is not running now, as when
                                                  // two that wake up still share a core

  alignas(kCacheLine) std::atomic<int64_t> ball{0};
  alignas(kCacheLine) std::atomic<bool> over{false};
  int64_t best = 0;     // 0: no rally was played to its end
  bool played = false;  // there were two to play

  static void play(void* context, int member, int size) {
    auto& game = *static_cast<Handover*>(context);
    if (size < 2 || member > 1) return;
    if (member == 0) {
      game.serve();
    } else {
      for (int64_t next = 1; game.wait_for(next, kWaking); next += 2)
        game.ball.store(next + 1, std::memory_order_release);
    }
  }

  void serve() {
    played = true;
    int64_t sent = -1;
    const auto answered = [&](int64_t patience) {
      ball.store(sent += 2, std::memory_order_release);
      return wait_for(sent + 1, patience);
    };
    answered(kWaking);
    for (int64_t rally = 0; rally < kRallies && !over; ++rally) {
      const auto start = Clock::now();
      for (int64_t i = 0; i < kReturns && !over; ++i) answered(kAnswering);
      const int64_t took = ns(Clock::now() - start) / (2 * kReturns);
      if (!over) best = best == 0 ? took : std::min(best, took);
    }
    over = true;
  }

  // False when the game is over, or has waited for too long.
  bool wait_for(int64_t value, int64_t patience) {
    constexpr int kSpinsBetweenLooks = 1000;
    const auto start = Clock::now();
    for (int spins = 1; ball.load(std::memory_order_acquire) != value; ++spins) {
      if (over.load(std::memory_order_relaxed)) return false;
      if (spins % kSpinsBetweenLooks == 0 && ns(Clock::now() - start) > patience) over = true;
    }
    return true;
  }
};

}  // namespace

int64_t handover_ns() {
  constexpr int64_t kLastsFor = 200'000'000;
  constexpr int64_t kUsual = 100;  // until it has been measured
  static std::atomic<int64_t> known{kUsual}, measured_at{-kLastsFor};
  const int64_t now = now_ns();
  int64_t last = measured_at.load(std::memory_order_relaxed);
  // One thread measures; the others use what was known.
  if (now - last > kLastsFor && measured_at.compare_exchange_strong(last, now)) {
    Handover game;
    run_team(2, &Handover::play, &game);
    // Two that do not run at the same time are far apart.
    if (game.played)
      known.store(game.best > 0 ? game.best : Handover::kAnswering, std::memory_order_relaxed);
  }
  return known.load(std::memory_order_relaxed);
}

bool team_awake() {
  constexpr int64_t kShortly = 50'000;  // ns; OpenMP's idle threads spin for some milliseconds
  constexpr int kWorthWaking = 20;      // calls of a few us, for one that waits for 30 us
  static const bool sleeps_at_once = [] {
    const char* policy = std::getenv("OMP_WAIT_POLICY");  // "active" or "passive", in any case
    return policy != nullptr && (*policy == 'p' || *policy == 'P');
  }();
  if (sleeps_at_once) return false;
  const int64_t now = now_ns();
  // Another thread's team has the cores.
  if (now - latest_end.load(std::memory_order_relaxed) < kShortly)
    return latest_owner.load(std::memory_order_relaxed) == &asking;
  asking.in_succession = now - asking.last < kShortly ? asking.in_succession + 1 : 0;
  asking.last = now;
  return asking.in_succession >= kWorthWaking;
}

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
