#include "kernels/probe/probe.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <thread>
#include <vector>

#include "base/align.h"

namespace {

using Clock = std::chrono::steady_clock;

// Multiply-add chains in flight: the most that a CPU of today needs is latency 4 x 2 units = 8 on
// x86 and 4 x 4 = 16 on large aarch64 cores; 16 of 16 x86 registers would leave none for the two
// factors.
#if defined(__aarch64__)
constexpr int kChains = 24;
#else
constexpr int kChains = 12;
#endif
constexpr int64_t kRoundsPerCall = 4096;
constexpr int kSums = 8;              // hides the latency of an addition at two loads a cycle
constexpr int64_t kBlockBytes = 512;  // kSums of the widest vector
constexpr int64_t kPageBytes = 4096;
// Makes reading the clock (some 30 ns) invisible beside small buffers.
constexpr int64_t kBytesPerCall = 1 << 18;

// `call` works once and returns how much it did. Returns how much a second it does, over at least
// `seconds`.
template <class Call>
double rate(double seconds, const Call& call) {
  call();
  const auto start = Clock::now();
  double done = 0, elapsed = 0;
  do {
    done += call();
    elapsed = std::chrono::duration<double>(Clock::now() - start).count();
  } while (elapsed < seconds);
  return done / elapsed;
}

// Runs `prepare(i)` in each thread, waits until all of them are ready, then sums what the prepared
// calls achieve.
template <class Prepare>
double rate_of_team(int32_t threads, double seconds, Prepare prepare) {
  std::vector<double> rates(static_cast<size_t>(threads));
  std::atomic<int32_t> ready{0};
  std::vector<std::thread> team;
  for (int32_t i = 0; i < threads; ++i)
    team.emplace_back([&, i] {
      const auto call = prepare();
      ready.fetch_add(1);
      while (ready.load() < threads) std::this_thread::yield();
      rates[static_cast<size_t>(i)] = rate(seconds, call);
    });
  for (auto& thread : team) thread.join();
  double total = 0;
  for (double one : rates) total += one;
  return total;
}

template <int kBytes>
struct Vectors {
  typedef float Float __attribute__((vector_size(kBytes)));
  typedef int64_t Int __attribute__((vector_size(kBytes), may_alias));
};

// One instruction, written as such: the compiler can then neither drop it nor split it into two
// roundings.
template <class Float>
__attribute__((always_inline)) inline void multiply_add(Float& sum, const Float& a,
                                                        const Float& b) {
#if defined(__x86_64__)
  if constexpr (sizeof(Float) >= 32)
    asm volatile("vfmadd231ps %1, %2, %0" : "+v"(sum) : "v"(a), "v"(b));
  else
    asm volatile("mulps %1, %0\n\taddps %2, %0" : "+x"(sum) : "x"(a), "x"(b));
#elif defined(__aarch64__)
  asm volatile("fmla %0.4s, %1.4s, %2.4s" : "+w"(sum) : "w"(a), "w"(b));
#else
  sum = sum * a + b;
  asm volatile("" : "+m"(sum));
#endif
}

template <int kBytes>
__attribute__((always_inline)) inline double multiply_adds() {
  typename Vectors<kBytes>::Float sums[kChains] = {}, a = {}, b = {};
  a += 0.5F;  // every chain tends to a finite, normal number on both forms of multiply_add
  b += 1.0F;
  for (int64_t round = 0; round < kRoundsPerCall; ++round) {
#pragma GCC unroll 24
    for (int chain = 0; chain < kChains; ++chain) multiply_add(sums[chain], a, b);
  }
  return 2.0 * (kBytes / sizeof(float)) * kChains * kRoundsPerCall;
}

template <int kBytes>
__attribute__((always_inline)) inline void read_all(const void* buffer, int64_t bytes) {
  using Int = typename Vectors<kBytes>::Int;
  Int sums[kSums] = {};
  const Int* const end = reinterpret_cast<const Int*>(static_cast<const char*>(buffer) + bytes);
  for (const Int* at = static_cast<const Int*>(buffer); at != end; at += kSums) {
#pragma GCC unroll 8
    for (int i = 0; i < kSums; ++i) sums[i] += at[i];
  }
  Int total = sums[0];
  for (int i = 1; i < kSums; ++i) total += sums[i];
  // The total is used, so no load can be dropped; the memory clobber makes every pass read again.
  asm volatile("" : : "m"(total) : "memory");
}

struct Isa {
  double (*multiply_adds)();
  void (*read_all)(const void* buffer, int64_t bytes);
};

#if defined(__x86_64__)
__attribute__((target("avx512f"))) double multiply_adds_avx512() { return multiply_adds<64>(); }
__attribute__((target("avx512f"))) void read_all_avx512(const void* p, int64_t n) {
  read_all<64>(p, n);
}
__attribute__((target("avx2,fma"))) double multiply_adds_avx2() { return multiply_adds<32>(); }
__attribute__((target("avx2,fma"))) void read_all_avx2(const void* p, int64_t n) {
  read_all<32>(p, n);
}
#endif
double multiply_adds_baseline() { return multiply_adds<16>(); }
void read_all_baseline(const void* p, int64_t n) { read_all<16>(p, n); }

Isa widest() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f")) return {multiply_adds_avx512, read_all_avx512};
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
    return {multiply_adds_avx2, read_all_avx2};
#endif
  return {multiply_adds_baseline, read_all_baseline};
}

}  // namespace

double rnnpack_probe_flops(int32_t threads, double seconds) {
  if (threads < 1) return 0;
  const Isa isa = widest();
  return rate_of_team(threads, seconds, [&] { return isa.multiply_adds; });
}

double rnnpack_probe_read_bandwidth(int64_t bytes_per_thread, int32_t threads, double seconds) {
  if (threads < 1 || bytes_per_thread < 1) return 0;
  const int64_t bytes = rnnpack::round_up(bytes_per_thread, kBlockBytes);
  const Isa isa = widest();
  std::atomic<bool> missing{false};
  const double total = rate_of_team(threads, seconds, [&] {
    // Written by the thread that reads it: pages lie near that thread, and none is the shared zero
    // page.
    const auto whole_pages = static_cast<size_t>(rnnpack::round_up(bytes, kPageBytes));
    std::unique_ptr<void, decltype(&std::free)> buffer(std::aligned_alloc(kPageBytes, whole_pages),
                                                       &std::free);
    if (buffer)
      std::memset(buffer.get(), 1, static_cast<size_t>(bytes));
    else
      missing = true;
    return [&isa, bytes, buffer = std::move(buffer)] {
      const int64_t passes = buffer ? rnnpack::ceil_div(kBytesPerCall, bytes) : 0;
      for (int64_t pass = 0; pass < passes; ++pass) isa.read_all(buffer.get(), bytes);
      return static_cast<double>(passes * bytes);
    };
  });
  return missing ? 0 : total;
}

double rnnpack_probe_handover(double seconds) {
  constexpr int64_t kRounds = 100;   // between two looks at the clock
  constexpr int64_t kSpins = 10000;  // then the other one may need this core
  alignas(rnnpack::kCacheLine) std::atomic<int64_t> ball{0};
  alignas(rnnpack::kCacheLine) std::atomic<bool> done{false};
  const auto wait_for = [&](int64_t value) {
    for (int64_t spins = 0; ball.load(std::memory_order_acquire) != value; ++spins) {
      if (done.load(std::memory_order_relaxed)) return;
      if (spins > kSpins) std::this_thread::yield();
    }
  };
  std::thread other([&] {
    for (int64_t next = 1; !done.load(std::memory_order_relaxed); next += 2) {
      wait_for(next);
      ball.store(next + 1, std::memory_order_release);
    }
  });
  // The quickest round of many counts: threads that are new may share a core until the system's
  // balancing parts them, which takes some of its 4 ms ticks.
  int64_t sent = 0;
  double best = std::numeric_limits<double>::infinity();
  const auto begin = Clock::now();
  for (auto start = begin; std::chrono::duration<double>(start - begin).count() < seconds;) {
    for (int64_t i = 0; i < kRounds; ++i, sent += 2) {
      ball.store(sent + 1, std::memory_order_release);
      wait_for(sent + 2);
    }
    const auto end = Clock::now();
    best = std::min(best, std::chrono::duration<double>(end - start).count());
    start = end;
  }
  done = true;
  other.join();
  return best / (2 * kRounds);
}
