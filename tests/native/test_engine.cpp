// The time loop, forward: every cell, stack, direction and sequence layout against plain loops in
// double; and every way to share the work among threads gives the bits of one thread.
#include <array>
#include <optional>

#include "engine/team.h"
#include "engine_case.h"

namespace rnnpack::check {
namespace {

// Rounding of a few steps of sums over up to 150 numbers of size 1; a wrong index is off by a
// thousand times that.
constexpr double kBound = 64 * kEps;

void check_values(const Setup& setup, const Outputs& found) {
  const Case& k = setup.sizes();
  const ExactResult truth = exact_stack(k, setup.exact(), setup.rows());
  const std::string text = std::string(isa_name(setup.table().isa)) + " " + k.text();
  const auto check_row = [&](const char* name, int64_t r, int64_t at, const float* row,
                             const double* expected, int64_t width) {
    for (int64_t i = 0; i < width; ++i) {
      expect_close(row[i], expected[i], kBound * (1 + std::abs(expected[i])), text, ": ", name,
                   ", row ", r, ", ", at, ", ", i);
    }
  };
  const int64_t width = k.directions * k.output();
  const SequenceView view = setup.view(found.output.data(), width);
  std::vector<bool> written(static_cast<size_t>(found.output.size()), false);
  for (int64_t r = 0; r < k.count; ++r) {
    for (int64_t t = 0; t < setup.rows().length(r); ++t) {
      const float* row = setup.rows().at(view, t, r);
      check_row("output", r, t, row, truth.output[static_cast<size_t>(r)].data() + t * width,
                width);
      std::fill_n(written.begin() + (row - found.output.data()), width, true);
    }
    for (int64_t stack = 0; stack < k.layers * k.directions; ++stack) {
      const int64_t state = stack * k.count + setup.rows().row_of(r);
      const auto exact = static_cast<size_t>(stack * k.count + r);
      check_row("h_n", r, stack, found.h_n.data() + state * k.output(), truth.h_n[exact].data(),
                k.output());
      if (!traits(k.cell).has_cell_state) continue;
      check_row("c_n", r, stack, found.c_n.data() + state * k.hidden, truth.c_n[exact].data(),
                k.hidden);
    }
  }
  for (int64_t i = 0; i < found.output.size(); ++i) {
    expect(written[static_cast<size_t>(i)] || std::isnan(found.output[i]), text,
           ": wrote past a row's end, at ", i);
  }
}

// Ways to share the work, among more threads than there are rows, blocks or cores, too.
std::vector<Plan> plans(const Case& k) {
  const int64_t steps = std::max<int64_t>(k.steps, 1);
  std::vector<Plan> found;
  const auto add = [&](int groups, int lanes, int unit_threads, int64_t segment, int64_t chunk) {
    found.push_back({groups * lanes * unit_threads, groups, lanes, unit_threads, segment,
                     std::min(chunk, segment)});
    // Each group's own weights, or one copy for all: in turn.
    if (groups > 1 && found.size() % 2 == 0) found.back().packings = groups;
  };
  add(1, 1, 1, steps, 1);
  add(1, 1, 1, steps, 3);
  add(2, 1, 1, steps, 2);
  add(2, 1, 2, steps, 2);
  add(5, 1, 1, steps, steps);
  add(1, 1, 2, steps, steps);
  add(1, 1, 5, steps, 3);
  if (k.directions == 2) {
    add(1, 2, 1, steps, 2);
    add(2, 2, 2, steps, 3);
  } else {
    add(1, 1, 1, 2, 1);
  }
  if (k.directions == 1 && k.layers > 1) {
    add(1, 2, 1, 1, 1);
    add(1, 2, 1, 3, 2);
    add(1, 3, 1, steps, 2);
    add(2, 2, 2, 2, 1);
  }
  return found;
}

// Every `each`-th plan gives the bits of one thread, whatever the groups that panels lie in.
void check_plans(Setup& setup, size_t each) {
  const Case& k = setup.sizes();
  const Outputs expected = setup.run(alone(k));
  const std::vector<Plan> all = plans(k);
  for (size_t i = 0; i < all.size(); i += each) {
    setup.set_groups(static_cast<int32_t>(1 + i % kGroup),
                     static_cast<int32_t>(1 + i / 2 % kGroup));
    expect(setup.run(all[i]).same_bits(expected), describe(k, all[i]),
           ": other bits than one thread");
  }
  setup.set_groups(kGroup, kGroup);
}

// The input product beside the recurrent one: the bits of one thread that does one after the other,
// however many units, layers and rows share the work.
void pipelined_plans(const KernelTable& table) {
  if (table.gemm[0].pipelined_rows == 0) return;  // this instruction set has none
  Random random;
  int number = 0;
  for (int cell = 0; cell < kCellKinds; ++cell) {
    for (const auto& [input, hidden] : {std::pair{5, 17}, std::pair{300, 48}, std::pair{33, 130}}) {
      for (const auto& [layers, directions] :
           {std::pair{1, 1}, std::pair{4, 1}, std::pair{1, 2}, std::pair{2, 2}}) {
        for (const Form form : {Form::kEqual, Form::kLengths, Form::kPacked}) {
          ++number;
          const int rows = 1 + number / 2 % table.gemm[0].streamed_rows;  // of each group
          const int groups = 1 + number % 3;
          const int chunk = table.gemm[0].pipelined_rows / rows;
          const auto kind = static_cast<CellKind>(cell);
          const bool lstm = kind == CellKind::kLstm;
          const bool train = layers == 1 && directions == 1 && number % 2 == 0;
          const Case k{.cell = kind,
                       .input = input,
                       .hidden = hidden,
                       .projection = lstm && number % 3 == 0 ? 9 : 0,
                       .layers = layers,
                       .directions = directions,
                       .reverse = directions == 1 && number % 4 == 0,
                       .steps = (layers == 4 ? 10 : 3) * chunk + 1 + number % chunk,
                       .count = groups * rows,
                       .form = form,
                       .states = number % 5 != 0,
                       .train = train};
          Setup setup(k, table, random);
          const Outputs expected = setup.run(alone(k));
          const auto check = [&](int lanes, int unit_threads, int64_t segment) {
            const Plan plan{
                groups * lanes * unit_threads, groups, lanes, unit_threads, segment, chunk, true,
                number % 2 == 0 ? 1 : groups};
            expect(setup.run(plan).same_bits(expected), describe(k, plan),
                   ", pipelined: other bits than one thread");
          };
          check(1, 1, k.steps);
          check(1, 3, k.steps);
          if (directions == 2) check(2, 1, k.steps);
          if (layers > 1 && directions == 1) {
            check(2, 1, chunk);
            check(2, 2, 2 * chunk);
            check(4, 1, chunk);
          }
          setup.set_groups(3, 2);
          check(1, 2, k.steps);
          if (k.train) continue;
          setup.set_groups(kGroup, kGroup);
          setup.pack();
          check(1, 2, k.steps);
        }
      }
    }
  }
}

std::vector<Case> cases() {
  std::vector<Case> found;
  for (int cell = 0; cell < kCellKinds; ++cell) {
    const auto kind = static_cast<CellKind>(cell);
    for (const Form form : {Form::kEqual, Form::kLengths, Form::kPacked}) {
      const bool padded = form != Form::kPacked;
      // Enough layers for a wavefront that writes over what lies between layers while the longest
      // row still runs.
      found.push_back({.cell = kind,
                       .input = 3,
                       .hidden = 9,
                       .projection = 0,
                       .layers = 5,
                       .directions = 1,
                       .reverse = false,
                       .steps = 12,
                       .count = 3,
                       .form = form});
      found.push_back({.cell = kind,
                       .input = 5,
                       .hidden = 17,
                       .projection = 0,
                       .layers = 1,
                       .directions = 1,
                       .reverse = false,
                       .steps = 7,
                       .count = 3,
                       .form = form});
      found.push_back({.cell = kind,
                       .input = 3,
                       .hidden = 9,
                       .projection = 0,
                       .layers = 3,
                       .directions = 1,
                       .reverse = false,
                       .steps = 6,
                       .count = 5,
                       .form = form,
                       .batch_first = padded,
                       .bias = false});
      found.push_back({.cell = kind,
                       .input = 4,
                       .hidden = 35,
                       .projection = 0,
                       .layers = 2,
                       .directions = 2,
                       .reverse = false,
                       .steps = 5,
                       .count = 4,
                       .form = form,
                       .states = false});
      found.push_back({.cell = kind,
                       .input = 1,
                       .hidden = 1,
                       .projection = 0,
                       .layers = 2,
                       .directions = 1,
                       .reverse = true,
                       .steps = 4,
                       .count = 7,
                       .form = form});
      found.push_back({.cell = kind,
                       .input = 7,
                       .hidden = 19,
                       .projection = 0,
                       .layers = 1,
                       .directions = 1,
                       .reverse = true,
                       .steps = 6,
                       .count = 4,
                       .form = form,
                       .batch_first = padded,
                       .train = true});
      if (kind == CellKind::kLstm) {
        found.push_back({.cell = kind,
                         .input = 6,
                         .hidden = 37,
                         .projection = 21,
                         .layers = 2,
                         .directions = 2,
                         .reverse = false,
                         .steps = 5,
                         .count = 3,
                         .form = form});
        found.push_back({.cell = kind,
                         .input = 2,
                         .hidden = 18,
                         .projection = 5,
                         .layers = 3,
                         .directions = 1,
                         .reverse = false,
                         .steps = 6,
                         .count = 3,
                         .form = form,
                         .states = false});
        found.push_back({.cell = kind,
                         .input = 3,
                         .hidden = 33,
                         .projection = 17,
                         .layers = 1,
                         .directions = 1,
                         .reverse = false,
                         .steps = 5,
                         .count = 5,
                         .form = form,
                         .train = true});
      }
    }
    found.push_back({.cell = kind,
                     .input = 5,
                     .hidden = 6,
                     .projection = 0,
                     .layers = 2,
                     .directions = 1,
                     .reverse = false,
                     .steps = 0,
                     .count = 3});
    found.push_back({.cell = kind,
                     .input = 5,
                     .hidden = 6,
                     .projection = 0,
                     .layers = 2,
                     .directions = 2,
                     .reverse = false,
                     .steps = 3,
                     .count = 0});
    found.push_back({.cell = kind,
                     .input = 0,
                     .hidden = 7,
                     .projection = 0,
                     .layers = 1,
                     .directions = 1,
                     .reverse = false,
                     .steps = 3,
                     .count = 2});
    // Sums longer than kLongestSum are made of parts.
    found.push_back({.cell = kind,
                     .input = 300,
                     .hidden = 7,
                     .projection = 0,
                     .layers = 1,
                     .directions = 1,
                     .reverse = false,
                     .steps = 3,
                     .count = 3,
                     .train = true});
    found.push_back({.cell = kind,
                     .input = 3,
                     .hidden = 150,
                     .projection = 0,
                     .layers = 1,
                     .directions = 1,
                     .reverse = false,
                     .steps = 2,
                     .count = 1});
  }
  // Panels of 16 bits, of weights that have that type or are rounded to it.
  for (const Conversion types : kConversions) {
    if (types.to == DType::kFloat) continue;
    found.push_back({.cell = CellKind::kLstm,
                     .input = 7,
                     .hidden = 37,
                     .projection = 21,
                     .layers = 2,
                     .directions = 2,
                     .reverse = false,
                     .steps = 5,
                     .count = 3,
                     .form = Form::kLengths,
                     .types = types});
    found.push_back({.cell = CellKind::kGru,
                     .input = 5,
                     .hidden = 19,
                     .projection = 0,
                     .layers = 2,
                     .directions = 1,
                     .reverse = false,
                     .steps = 6,
                     .count = 7,
                     .types = types});
    found.push_back({.cell = CellKind::kRnnTanh,
                     .input = 3,
                     .hidden = 33,
                     .projection = 0,
                     .layers = 1,
                     .directions = 1,
                     .reverse = true,
                     .steps = 5,
                     .count = 4,
                     .form = Form::kPacked,
                     .train = true,
                     .types = types});
  }
  return found;
}

void forward_cases(const KernelTable& table, bool with_plans) {
  Random random;
  for (Case k : cases()) {
    Setup setup(k, table, random);
    const Outputs found = setup.run(alone(k));
    check_values(setup, found);
    if (with_plans) check_plans(setup, 1);
    if (k.train) continue;
    setup.pack();
    expect(setup.run(alone(k)).same_bits(found), k.text(),
           ": packed weights give other bits than plain ones");

    k.direct = true;
    Setup direct(k, table, random);
    check_values(direct, direct.run(alone(k)));
    if (with_plans) check_plans(direct, 5);  // the time loop is the same, its products are others
  }
}

// One step may do without final states.
void without_final_states(const KernelTable& table) {
  Random random;
  const Setup setup({.cell = CellKind::kLstm,
                     .input = 5,
                     .hidden = 7,
                     .projection = 0,
                     .layers = 1,
                     .directions = 1,
                     .reverse = false,
                     .steps = 1,
                     .count = 3},
                    table, random);
  const Outputs expected = setup.run(alone(setup.sizes()));
  Outputs found = setup.empty_outputs();
  Problem p = setup.problem(found);
  p.h_n = nullptr;
  const Floats scratch(ceil_div(forward_scratch_bytes(p, alone(setup.sizes())), 4));
  run_forward(table, p, alone(setup.sizes()), scratch.data());
  expect(found.output.same_bits(expected.output) && found.c_n.same_bits(expected.c_n),
         "a call without h_n gives other bits");
}

// The final states may be written where the initial ones lie, as a stream does.
void states_in_place(const KernelTable& table) {
  Random random;
  for (const int64_t projection : {0, 20}) {
    for (const int64_t steps : {1, 4}) {
      const Case k{.cell = CellKind::kLstm,
                   .input = 5,
                   .hidden = 35,
                   .projection = projection,
                   .layers = 3,
                   .directions = 1,
                   .reverse = false,
                   .steps = steps,
                   .count = 3};
      const Setup setup(k, table, random);
      const Outputs expected = setup.run(alone(k));
      for (const Plan& plan : plans(k)) {
        Outputs found = setup.empty_outputs();
        Problem p = setup.problem(found);
        std::copy_n(p.h_0, found.h_n.size(), p.h_n);
        std::copy_n(p.c_0, found.c_n.size(), p.c_n);
        p.h_0 = p.h_n;
        p.c_0 = p.c_n;
        const Floats scratch(ceil_div(forward_scratch_bytes(p, plan), 4));
        run_forward(table, p, plan, scratch.data());
        expect(found.same_bits(expected), describe(k, plan),
               ": other bits when the states are replaced in place");
      }
    }
  }
}

// --- The plan ------------------------------------------------------------------------------------

int64_t near_cores() { return 50; }
bool asleep() { return false; }

// What make_plan may choose: threads that are all used, within the limit; and it gives the bits of
// one thread.
void chosen_plans(const KernelTable& table) {
  Random random;
  for (const int64_t hidden : {1, 17, 150}) {
    for (const int64_t count : {1, 2, 7, 33}) {
      for (const int64_t steps : {1, 20}) {
        for (const auto& [layers, directions] :
             {std::pair{1, 1}, std::pair{2, 1}, std::pair{3, 1}, std::pair{2, 2}}) {
          const Case k{.cell = CellKind::kGru,
                       .input = 9,
                       .hidden = hidden,
                       .projection = 0,
                       .layers = layers,
                       .directions = directions,
                       .reverse = false,
                       .steps = steps,
                       .count = count};
          Setup setup(k, table, random);
          const Outputs none = setup.empty_outputs();
          Problem chosen = setup.problem(none);
          choose_groups(table, chosen);
          expect(chosen.ih_group >= 1 && chosen.ih_group <= kGroup && chosen.hh_group >= 1 &&
                     chosen.hh_group <= kGroup,
                 k.text(), ": groups of ", chosen.ih_group, " and ", chosen.hh_group, " panels");
          for (const int limit : {1, 2, 3, 4, 8, 61}) {
            for (const int64_t l2 : {int64_t{1} << 12, int64_t{1} << 20}) {
              const Plan plan =
                  make_plan(table.gemm[0], setup.problem(none), {limit, l2, near_cores, asleep});
              const std::string text = describe(k, plan) + ", limit " + std::to_string(limit);
              expect(plan.packings == 1 || plan.packings == plan.row_groups, text,
                     ": some groups share weights, and some do not");
              expect(plan.threads >= 1 && plan.threads <= limit, text, ": ", plan.threads,
                     " threads");
              expect(plan.threads == plan.row_groups * plan.lanes * plan.unit_threads, text, ": ",
                     plan.threads, " threads");
              expect(plan.row_groups <= count && plan.unit_threads <= ceil_div(hidden, 16), text,
                     ": threads without work");
              expect(
                  plan.lanes == 1 || (directions == 2 ? plan.lanes == 2 : layers % plan.lanes == 0),
                  text, ": lanes without work");
              expect(directions == 1 || plan.segment_steps >= steps, text,
                     ": a direction would read what is not there yet");
              expect(!plan.pipelined ||
                         count / plan.row_groups * plan.chunk_steps == table.gemm[0].pipelined_rows,
                     text, ": chunks that no tile computes");
              expect(plan.chunk_steps >= 1 && plan.chunk_steps <= plan.segment_steps, text,
                     ": no whole chunks in a segment");
            }
          }
          if (count * hidden > 600) continue;  // enough to see that they run
          const Outputs expected = setup.run(alone(k));
          setup.set_groups(chosen.ih_group, chosen.hh_group);
          for (const int limit : {3, 8}) {
            const Plan plan = make_plan(table.gemm[0], setup.problem(none),
                                        {limit, int64_t{1} << 20, near_cores, asleep});
            expect(setup.run(plan).same_bits(expected), describe(k, plan),
                   ": other bits than one thread");
          }
        }
      }
    }
  }
}

Case long_lstm(int64_t hidden, int64_t count) {
  return {.cell = CellKind::kLstm,
          .input = 9,
          .hidden = hidden,
          .projection = 0,
          .layers = 1,
          .directions = 1,
          .reverse = false,
          .steps = 100,
          .count = count};
}

// Each group of rows packs its own weights where they stay in its cache.
void packings_that_pay(const KernelTable& table) {
  Random random;
  const auto packings = [&](int64_t hidden, int64_t count) {
    Setup setup(long_lstm(hidden, count), table, random);
    const Outputs none = setup.empty_outputs();
    const Machine machine{2, int64_t{1} << 20, near_cores, asleep};
    const int plain = make_plan(table.gemm[0], setup.problem(none), machine).packings;
    setup.pack();
    expect(make_plan(table.gemm[0], setup.problem(none), machine).packings == 1, "hidden ", hidden,
           ": what is packed is packed again");
    return plain;
  };
  expect(packings(64, 8) == 2, "groups wait for each other's weights");
  expect(packings(64, 1) == 1 && packings(256, 8) == 1, "weights are packed twice without need");
}

// Units are shared where a step's work is worth its barrier, on this machine: nothing is asked
// where the answer is clear.
void barriers_that_pay(const KernelTable& table) {
  Random random;
  static int64_t distance;
  static int asked;
  const auto handover = [] {
    ++asked;
    return distance;
  };
  const auto threads = [&](int64_t hidden, int64_t ns) {
    distance = ns;
    const Setup setup(long_lstm(hidden, 1), table, random);
    const Outputs none = setup.empty_outputs();
    const Machine machine{2, int64_t{1} << 20, handover, asleep};
    return make_plan(table.gemm[0], setup.problem(none), machine).threads;
  };
  for (const auto& [hidden, ns, expected] : {std::tuple{64, 40, 2}, std::tuple{64, 200, 1},
                                             std::tuple{128, 200, 2}, std::tuple{128, 20'000, 1}}) {
    asked = 0;
    const int found = threads(hidden, ns);
    expect(found == expected && asked == 1, "hidden ", hidden, " with cores ", ns,
           " ns apart: ", found, " threads, asked ", asked, " times");
  }
  asked = 0;
  expect(threads(16, 1) == 1 && threads(512, 20'000) == 2 && asked == 0,
         "the distance of cores was asked for where it decides nothing");
}

// A call of a few us gets a team where it is awake and near by; nothing is asked where the answer
// is clear.
void teams_that_pay(const KernelTable& table) {
  Random random;
  static bool awake;
  static int64_t distance;
  static int asked;
  const auto threads = [&](int64_t hidden, int64_t steps, int limit) {
    asked = 0;
    Case k = long_lstm(hidden, 1);
    k.input = hidden;
    k.steps = steps;
    const Setup setup(k, table, random);
    const Outputs none = setup.empty_outputs();
    return worthwhile_threads(setup.problem(none), {limit, int64_t{1} << 20, [] {
      ++asked;
      return distance;
    }, [] {
      ++asked;
      return awake;
    }});
  };
  for (const auto& [now_awake, ns, expected] :
       {std::tuple{true, 40, 2}, std::tuple{true, 150, 1}, std::tuple{false, 40, 1}}) {
    awake = now_awake;
    distance = ns;
    const int found = threads(128, 1, 2);  // 131,072 multiply-adds
    expect(found == expected, awake ? "awake" : "asleep", " and ", ns, " ns away: ", found,
           " threads");
  }
  awake = true;
  distance = 40;
  expect(threads(128, 1, 16) == 1, "a large team is woken for little work");
  expect(threads(64, 1, 2) == 1 && asked == 0, "asked about work that is too little");
  expect(threads(128, 100, 2) == 2 && asked == 0, "asked about work that is enough");
  expect(threads(128, 100, 1) == 1 && asked == 0, "asked about a team of one");
}

// Calls from the members of another team: theirs may turn out smaller than planned, and the bits
// are the same.
void nested_calls(const KernelTable& table) {
  Random random;
  const Setup setup({.cell = CellKind::kLstm,
                     .input = 5,
                     .hidden = 35,
                     .projection = 18,
                     .layers = 2,
                     .directions = 2,
                     .reverse = false,
                     .steps = 5,
                     .count = 4,
                     .form = Form::kLengths},
                    table, random);
  struct Context {
    const Setup& setup;
    std::array<std::optional<Outputs>, 3> found;
  } context{setup, {}};
  run_team(3, [](void* p, int member, int) {
    auto& c = *static_cast<Context*>(p);
    c.found[static_cast<size_t>(member)].emplace(c.setup.run({4, 1, 2, 2, 5, 2}));
  }, &context);
  const Outputs expected = setup.run(alone(setup.sizes()));
  for (const auto& found : context.found) {
    expect(found.has_value() && found->same_bits(expected),
           "a call inside a team gives other bits");
  }
}

}  // namespace
}  // namespace rnnpack::check

int main() {
  using namespace rnnpack;
  using namespace rnnpack::check;
  const std::vector<const KernelTable*> all = tables();
  // Plans do not depend on the instruction set: the last, best one stands for all.
  for (const KernelTable* table : all) forward_cases(*table, table == all.back());
  without_final_states(*all.back());
  states_in_place(*all.back());
  pipelined_plans(*all.back());
  chosen_plans(*all.back());
  packings_that_pay(*all.back());
  barriers_that_pay(*all.back());
  teams_that_pay(*all.back());
  nested_calls(*all.back());
  return report("test_engine");
}
