// The team of threads: every member runs once, a barrier orders what stands on its two sides, teams
// within teams and beyond the cores work. Memory that members share is plain on purpose:
// ThreadSanitizer sees whether the barrier orders it.
#include <algorithm>
#include <chrono>
#include <memory>
#include <set>
#include <thread>
#include <vector>

#ifndef RNNPACK_TEAM_STD_THREAD
#include <omp.h>
#endif
#ifdef __linux__
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include "check.h"
#include "engine/team.h"

namespace rnnpack::check {
namespace {

// Each member counts itself once; the size is the same for all of them and at most what was asked
// for.
void members(int asked) {
  struct Context {
    std::vector<int> runs, sizes;
  } context{std::vector<int>(static_cast<size_t>(asked), 0),
            std::vector<int>(static_cast<size_t>(asked), 0)};
  run_team(asked, [](void* p, int member, int size) {
    auto& c = *static_cast<Context*>(p);
    ++c.runs[static_cast<size_t>(member)];
    c.sizes[static_cast<size_t>(member)] = size;
  }, &context);
  const int size = context.sizes[0];
  expect(size >= 1 && size <= asked, "a team of ", asked, " has the size ", size);
  for (int i = 0; i < asked; ++i) {
    expect(context.runs[static_cast<size_t>(i)] == (i < size ? 1 : 0), "member ", i,
           " of a team of ", size, " ran ", context.runs[static_cast<size_t>(i)], " times");
    if (i < size)
      expect(context.sizes[static_cast<size_t>(i)] == size, "member ", i, " was told another size");
  }
}

// In each round every member writes its place, waits, and reads all places.
struct Rounds {
  int rounds;
  std::vector<int> places;
  std::vector<int> wrong;
  Barrier barrier;

  Rounds(int threads, int count)
      : rounds(count),
        places(static_cast<size_t>(threads), 0),
        wrong(static_cast<size_t>(threads), 0) {
    barrier.reset(threads);
  }

  static void run(void* p, int member, int size) {
    auto& c = *static_cast<Rounds*>(p);
    if (size != static_cast<int>(c.places.size()))
      return;  // a smaller team than asked for: its barrier would wait for ever
    for (int round = 1; round <= c.rounds; ++round) {
      c.places[static_cast<size_t>(member)] = round * (member + 1);
      c.barrier.wait();
      for (int i = 0; i < size; ++i)
        c.wrong[static_cast<size_t>(member)] += c.places[static_cast<size_t>(i)] != round * (i + 1);
      c.barrier.wait();
    }
  }
};

void barrier(int threads, int rounds) {
  Rounds context(threads, rounds);
  for (int again = 0; again < 2; ++again) {
    std::fill(context.places.begin(), context.places.end(), 0);
    context.barrier.reset(threads);
    run_team(threads, &Rounds::run, &context);
    for (int i = 0; i < threads; ++i) {
      expect(context.places[static_cast<size_t>(i)] == rounds * (i + 1), "a team of ", threads,
             ": member ", i, " stopped early");
      expect(context.wrong[static_cast<size_t>(i)] == 0, "a team of ", threads, ": member ", i,
             " read old values ", context.wrong[static_cast<size_t>(i)], " times");
    }
  }
}

// Inside a team another one may be smaller than asked for, but each of its members must still run,
// once, with the true size.
void nested(int outer, int inner) {
  struct Inner {
    int asked;
    std::vector<int> runs;
    std::vector<int> sizes;
    int limit;
  };
  struct Context {
    std::vector<Inner> inner;
  } context;
  const std::vector<int> none(static_cast<size_t>(inner), 0);
  for (int i = 0; i < outer; ++i) context.inner.push_back({inner, none, none, 0});
  run_team(outer, [](void* p, int member, int) {
    Inner& mine = static_cast<Context*>(p)->inner[static_cast<size_t>(member)];
    mine.limit = team_limit();
    run_team(mine.asked, [](void* q, int inner_member, int inner_size) {
      auto& c = *static_cast<Inner*>(q);
      ++c.runs[static_cast<size_t>(inner_member)];
      c.sizes[static_cast<size_t>(inner_member)] = inner_size;
    }, &mine);
  }, &context);
  for (const Inner& one : context.inner) {
    const int size = one.sizes[0];
    expect(size >= 1 && size <= inner, "a team of ", inner, " inside another has the size ", size);
    for (int i = 0; i < inner; ++i) {
      expect(one.runs[static_cast<size_t>(i)] == (i < size ? 1 : 0), "member ", i,
             " of an inner team ran ", one.runs[static_cast<size_t>(i)], " times");
      if (i < size)
        expect(one.sizes[static_cast<size_t>(i)] == size, "member ", i,
               " of an inner team was told another size");
    }
#ifndef RNNPACK_TEAM_STD_THREAD
    expect(outer == 1 || one.limit == 1, "inside a team of ", outer, " another may have ",
           one.limit, " threads, not 1");
#endif
  }
}

// Several teams at once, each with its own barrier: nothing is shared between calls.
void teams_side_by_side() {
  struct Context {
    std::vector<std::unique_ptr<Rounds>> calls;
  } context;
  constexpr int kCalls = 3;
  for (int i = 0; i < kCalls; ++i) {
    context.calls.push_back(std::make_unique<Rounds>(2, 50));
  }
  run_team(kCalls, [](void* p, int member, int) {
    Rounds& mine = *static_cast<Context*>(p)->calls[static_cast<size_t>(member)];
    run_team(2, &Rounds::run, &mine);
  }, &context);
  for (const auto& call : context.calls) {
    for (const int wrong : call->wrong)
      expect(wrong == 0, "teams side by side: old values were read ", wrong, " times");
  }
}

#if !defined(RNNPACK_TEAM_STD_THREAD) && defined(__linux__)
// The kernel's numbers of a team's threads. Those of the process would not do: threads of earlier
// nested teams take a moment to end.
std::set<pid_t> members_of_a_team(int size) {
  std::vector<pid_t> members(static_cast<size_t>(size));
  run_team(size, [](void* p, int member, int) {
    static_cast<pid_t*>(p)[member] = static_cast<pid_t>(syscall(SYS_gettid));
  }, members.data());
  return {members.begin(), members.end()};
}

// Small teams between large ones cost no thread: those left over are there for the next one.
void threads_stay() {
  const int before = omp_get_max_threads();
  omp_set_num_threads(4);
  const auto threads = members_of_a_team(4);
  expect(threads.size() == 4, "a team of 4 has ", threads.size(), " threads");
  for (int round = 0; round < 5; ++round) {
    members_of_a_team(2);
    expect(members_of_a_team(4) == threads, "a team of 2 ended threads of a team of 4");
  }
  omp_set_num_threads(before);
}
#else
void threads_stay() {}  // each team starts threads of its own here
#endif

// Known at once when it is asked for again; within what a machine can take.
void distance_of_cores() {
  const int64_t first = handover_ns();
  expect(first > 0 && first <= 1'000'000, "a line takes ", first, " ns from core to core");
  expect(handover_ns() == first, "measured again within a second");
  // Inside another team there is nobody to measure with, and nobody waits for them.
  run_team(2, [](void*, int, int) { handover_ns(); }, nullptr);
}

#ifndef RNNPACK_TEAM_STD_THREAD
// Little work gets a team while that of the call before still spins, or when it comes often; and
// not beside another thread's.
void teams_awake() {
  const auto nothing = [](void*, int, int) {};
  const auto pause = [] { std::this_thread::sleep_for(std::chrono::milliseconds(1)); };
  // A machine that halts this thread for longer than the interval makes it ask again.
  const auto within_tries = [](auto&& holds) {
    for (int attempt = 0; attempt < 100; ++attempt) {
      if (holds()) return true;
    }
    return false;
  };
  pause();
  expect(!team_awake(), "a team that sleeps is called for one small call");
  expect(within_tries([&] {
    run_team(2, nothing, nullptr);
    return team_awake();
  }),
         "a team is asleep as soon as it is done");
  pause();
  expect(!team_awake(), "a team is awake for ever");
  expect(within_tries([&] {
    pause();
    int asked = 1;
    while (asked < 100 && !team_awake()) ++asked;
    return asked > 5 && asked < 100;
  }),
         "calls in quick succession do not wake a team");
  expect(within_tries([&] {
    std::thread([&] { run_team(2, nothing, nullptr); }).join();
    return !team_awake();
  }),
         "another thread's team is taken for its own");
}
#else
void teams_awake() {}  // each team starts threads of its own here
#endif

}  // namespace
}  // namespace rnnpack::check

int main() {
  using namespace rnnpack;
  using namespace rnnpack::check;
  expect(team_limit() >= 1, "team_limit is ", team_limit());
  for (const int threads : {1, 2, 3, 5, 8, 16}) {
    members(threads);
    barrier(threads, threads <= 3
                         ? 500
                         : 60);  // far more threads than cores: each wait hands the core around
  }
  nested(1, 4);
  nested(2, 3);
  nested(5, 2);
  teams_side_by_side();
  Barrier alone;
  alone.reset(1);
  for (int i = 0; i < 3; ++i) alone.wait();  // returns: there is nobody to wait for
  distance_of_cores();
  teams_awake();
  threads_stay();
  return report("test_team");
}
