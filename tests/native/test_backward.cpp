// The time loop, backward: gradients of every argument against finite differences of the plain
// loops in double; and the same bits for every number of threads, with gates kept or rebuilt,
// whichever gradients are wanted.
#include <array>
#include <optional>

#include "engine/team.h"
#include "engine_case.h"

namespace rnnpack::check {
namespace {

// In the order of the arguments, as the bits of `wanted` in csrc/ops/train.h.
enum Argument { kInput, kH0, kC0, kWeightIh, kWeightHh, kBiasIh, kBiasHh, kWeightHr, kArguments };
constexpr const char* kNames[kArguments] = {"input",     "h_0",     "c_0",     "weight_ih",
                                            "weight_hh", "bias_ih", "bias_hh", "weight_hr"};
constexpr int kAll = (1 << kArguments) - 1;

// A trained case: what forward gave, and gradients of all its results.
struct Training {
  Setup& setup;
  const Case& k;
  Outputs forward;
  Floats grad_output, grad_h_n, grad_c_n;

  Training(Setup& from, Random& random)
      : setup(from),
        k(from.sizes()),
        forward(from.run(alone(k))),
        grad_output(from.places() * k.output()),
        grad_h_n(k.count * k.output()),
        grad_c_n(k.count * k.hidden) {
    const SequenceView view = setup.view(grad_output.data(), k.output());
    for (int64_t r = 0; r < k.count; ++r) {
      for (int64_t t = 0; t < setup.rows().length(r); ++t) {
        for (int64_t i = 0; i < k.output(); ++i)
          setup.rows().at(view, t, r)[i] = random.uniform(1.0f);
      }
    }
    random.fill(grad_h_n, 1.0f);
    random.fill(grad_c_n, 1.0f);
  }

  bool has_c() const { return traits(k.cell).has_cell_state; }
};

struct Options {
  bool recompute = false;
  bool with_grad_output = true;
  int wanted = kAll;
};

using GradientTensors = std::array<Floats, kArguments>;

GradientTensors empty_gradients(const Training& t, const Options& options) {
  const Case& k = t.k;
  const int64_t gate_rows = traits(k.cell).gates * k.hidden;
  const auto sized = [&options](Argument argument, int64_t size) {
    return Floats((options.wanted >> argument & 1) != 0 ? size : 0);
  };
  return {sized(kInput, t.setup.places() * k.input),
          Floats(k.count * k.output()),
          Floats(t.has_c() ? k.count * k.hidden : 0),
          sized(kWeightIh, gate_rows * k.input),
          sized(kWeightHh, gate_rows * k.output()),
          sized(kBiasIh, gate_rows),
          sized(kBiasHh, gate_rows),
          sized(kWeightHr, k.projection * k.hidden)};
}

GradientTensors run(const Training& t, const Plan& plan, const Options& options = {}) {
  GradientTensors found = empty_gradients(t, options);
  const auto wanted = [&](Argument argument) {
    return (options.wanted >> argument & 1) != 0 ? found[argument].data() : nullptr;
  };
  BackwardProblem b{};
  b.forward = t.setup.problem(t.forward);
  if (options.recompute) {
    b.forward.reserve_gates = nullptr;
    b.forward.reserve_h = nullptr;
  } else {
    b.forward.output = {};  // h was kept: the caller may have changed the output
  }
  if (options.with_grad_output) b.grad_output = t.setup.view(t.grad_output.data(), t.k.output());
  std::copy_n(t.grad_h_n.data(), t.grad_h_n.size(), found[kH0].data());
  b.grad_h_0 = found[kH0].data();
  if (t.has_c()) {
    std::copy_n(t.grad_c_n.data(), t.grad_c_n.size(), found[kC0].data());
    b.grad_c_0 = found[kC0].data();
  }
  if (wanted(kInput) != nullptr) b.grad_input = t.setup.view(found[kInput].data(), t.k.input);
  b.grad_weight_ih = wanted(kWeightIh);
  b.grad_weight_hh = wanted(kWeightHh);
  b.grad_weight_hr = t.k.projection > 0 ? wanted(kWeightHr) : nullptr;
  b.grad_bias_ih = wanted(kBiasIh);
  b.grad_bias_hh = wanted(kBiasHh);
  const Floats scratch(ceil_div(backward_scratch_bytes(b, plan), 4));
  run_backward(t.setup.table(), b, plan, scratch.data());
  return found;
}

// --- Truth ---------------------------------------------------------------------------------------

double loss(const Training& t, const Exact& exact, bool with_grad_output) {
  const Case& k = t.k;
  const ExactResult result = exact_stack(k, exact, t.setup.rows());
  const SequenceView view = t.setup.view(t.grad_output.data(), k.output());
  const auto weighted = [](const float* gradient, const double* values, int64_t count) {
    double sum = 0;
    for (int64_t i = 0; i < count; ++i) sum += gradient[i] * values[i];
    return sum;
  };
  double sum = 0;
  for (int64_t r = 0; r < k.count; ++r) {
    const auto row = static_cast<size_t>(r);
    for (int64_t time = 0; time < t.setup.rows().length(r) && with_grad_output; ++time) {
      sum += weighted(t.setup.rows().at(view, time, r),
                      result.output[row].data() + time * k.output(), k.output());
    }
    const int64_t state = t.setup.rows().row_of(r);
    sum += weighted(t.grad_h_n.data() + state * k.output(), result.h_n[row].data(), k.output());
    if (t.has_c())
      sum += weighted(t.grad_c_n.data() + state * k.hidden, result.c_n[row].data(), k.hidden);
  }
  return sum;
}

// One number of an argument, and where the engine puts its gradient.
struct Place {
  double* value;
  int64_t index;
};

// All numbers of an argument.
std::vector<Place> places(const Training& t, Exact& exact, Argument argument) {
  const Case& k = t.k;
  std::vector<Place> found;
  const auto dense = [&found](Vector& values) {
    for (size_t i = 0; i < values.size(); ++i)
      found.push_back({&values[i], static_cast<int64_t>(i)});
  };
  const auto states = [&](std::vector<Vector>& values, int64_t width) {
    for (int64_t r = 0; r < k.count; ++r) {
      for (int64_t i = 0; i < width; ++i) {
        found.push_back({&values[static_cast<size_t>(r)][static_cast<size_t>(i)],
                         t.setup.rows().row_of(r) * width + i});
      }
    }
  };
  ExactWeights& w = exact.weights[0];
  switch (argument) {
    case kInput: {
      const Floats input(t.setup.places() * k.input);
      const SequenceView view = t.setup.view(input.data(), k.input);
      for (int64_t r = 0; r < k.count; ++r) {
        Vector& row = exact.input[static_cast<size_t>(r)];
        for (size_t i = 0; i < row.size(); ++i) {
          const auto time = static_cast<int64_t>(i) / k.input;
          const int64_t place = t.setup.rows().at(view, time, r) - input.data();
          found.push_back({&row[i], place + static_cast<int64_t>(i) % k.input});
        }
      }
      break;
    }
    case kH0: states(exact.h_0, k.output()); break;
    case kC0:
      if (t.has_c()) states(exact.c_0, k.hidden);
      break;
    case kWeightIh: dense(w.ih); break;
    case kWeightHh: dense(w.hh); break;
    case kBiasIh: dense(w.bias_ih); break;
    case kBiasHh: dense(w.bias_hh); break;
    case kWeightHr: dense(w.hr); break;
    case kArguments: break;
  }
  return found;
}

// What finite differences say of one argument: of some of its numbers one by one, and of all at
// once along a random direction of ones and minus ones.
struct Slopes {
  std::vector<std::pair<int64_t, double>> single;  // place in the gradient, slope
  std::vector<std::pair<int64_t, double>> direction;
  double along;
};

using Truth = std::array<Slopes, kArguments>;

Truth differentiate(const Training& t, bool with_grad_output) {
  constexpr double kStep = 1e-7;  // so small because of relu: its kink must not lie within a step
  constexpr size_t kSamples = 20;
  Exact exact = t.setup.exact();
  Random random;
  Truth truth;
  for (int a = 0; a < kArguments; ++a) {
    Slopes& slopes = truth[static_cast<size_t>(a)];
    const std::vector<Place> all = places(t, exact, static_cast<Argument>(a));
    std::vector<double> values;
    for (const Place& place : all) {
      values.push_back(*place.value);
      slopes.direction.emplace_back(place.index, random.uniform(1.0f) < 0 ? -1 : 1);
    }
    const auto slope = [&](double step, size_t first, size_t last) {
      const auto moved = [&](double way) {
        for (size_t i = first; i < last; ++i)
          *all[i].value = values[i] + way * slopes.direction[i].second;
        return loss(t, exact, with_grad_output);
      };
      const double difference = moved(step) - moved(-step);
      for (size_t i = first; i < last; ++i) *all[i].value = values[i];
      return difference / (2 * step);
    };
    for (size_t i = 0; i < all.size(); i += all.size() / kSamples + 1) {
      slopes.single.emplace_back(all[i].index, slope(kStep, i, i + 1) * slopes.direction[i].second);
    }
    // A smaller step, as the direction is longer.
    slopes.along = slope(kStep / std::sqrt(static_cast<double>(all.size() + 1)), 0, all.size());
  }
  return truth;
}

// Rounding of sums over up to 130 rows of products of size 1; a wrong index is off by a thousand
// times that.
constexpr double kBound = 128 * kEps;

void check_values(const Training& t, const Truth& truth, const GradientTensors& found) {
  const std::string text = std::string(isa_name(t.setup.table().isa)) + " " + t.k.text();
  for (size_t a = 0; a < kArguments; ++a) {
    for (const auto& [place, slope] : truth[a].single) {
      expect_close(found[a][place], slope, kBound * (1 + std::abs(slope)), text, ": gradient of ",
                   kNames[a], " at ", place);
    }
    double along = 0, magnitude = 0;
    for (const auto& [place, direction] : truth[a].direction) {
      along += direction * found[a][place];
      magnitude += std::abs(static_cast<double>(found[a][place]));
    }
    expect_close(along, truth[a].along, kBound * (1 + magnitude), text, ": gradient of ", kNames[a],
                 " along a direction");
  }
}

// --- Plans ---------------------------------------------------------------------------------------

bool same_bits(const GradientTensors& a, const GradientTensors& b) {
  for (int i = 0; i < kArguments; ++i) {
    if (!a[static_cast<size_t>(i)].same_bits(b[static_cast<size_t>(i)])) return false;
  }
  return true;
}

void check_plans(Training& t, Options options, const GradientTensors& expected) {
  const int64_t steps = std::max<int64_t>(t.k.steps, 1);
  for (const auto& [groups, unit_threads] :
       {std::pair{1, 1}, std::pair{2, 1}, std::pair{1, 3}, std::pair{2, 2}, std::pair{5, 1}}) {
    const Plan plan{groups * unit_threads, groups, 1, unit_threads, steps, 1};
    t.setup.set_groups(1 + groups % kGroup, 1 + unit_threads % kGroup);
    for (const bool recompute : {false, true}) {
      options.recompute = recompute;
      expect(same_bits(run(t, plan, options), expected), describe(t.k, plan),
             recompute ? ", gates rebuilt" : "", ": other bits");
    }
  }
}

// Each gradient alone has the bits that it has among all.
void check_wanted(const Training& t, Options options, const GradientTensors& expected) {
  for (const int wanted : {0, 1 << kInput, 1 << kWeightIh, 1 << kWeightHh, 1 << kBiasIh,
                           1 << kBiasHh, 1 << kWeightHr, 1 << kInput | 1 << kBiasHh}) {
    options.wanted = wanted;
    const GradientTensors found = run(t, alone(t.k), options);
    for (int a = 0; a < kArguments; ++a) {
      const auto i = static_cast<size_t>(a);
      if (found[i].size() == 0) continue;
      expect(found[i].same_bits(expected[i]), t.k.text(), ": gradient of ", kNames[a],
             " has other bits when ", wanted, " is wanted");
    }
  }
}

// Past each row's end nothing is written.
void check_untouched(const Training& t, const GradientTensors& found) {
  Exact exact = t.setup.exact();
  std::vector<bool> written(static_cast<size_t>(found[kInput].size()), false);
  for (const Place& place : places(t, exact, kInput))
    written[static_cast<size_t>(place.index)] = true;
  for (size_t i = 0; i < written.size(); ++i) {
    expect(written[i] || std::isnan(found[kInput][static_cast<int64_t>(i)]), t.k.text(),
           ": gradient written past a row's end, at ", i);
  }
}

// On every ISA against the same truth; the plans, which do not depend on the ISA, on the last and
// best one.
void check_case(const Case& k, const std::vector<const KernelTable*>& all, bool with_grad_output) {
  const Options options{.with_grad_output = with_grad_output};
  std::optional<Truth> truth;
  for (const KernelTable* table : all) {
    Random random;
    Setup setup(k, *table, random);
    Training t(setup, random);
    if (!truth) truth = differentiate(t, with_grad_output);
    const GradientTensors found = run(t, alone(k), options);
    check_values(t, *truth, found);
    check_untouched(t, found);
    if (table != all.back()) continue;
    const Outputs before = setup.run(alone(k));
    check_plans(t, options, found);
    check_wanted(t, options, found);
    expect(t.forward.same_bits(before), k.text(),
           ": the backward pass changed what forward had kept");
  }
}

std::vector<Case> cases() {
  std::vector<Case> found;
  for (int cell = 0; cell < kCellKinds; ++cell) {
    const auto kind = static_cast<CellKind>(cell);
    const auto add = [&](int64_t input, int64_t hidden, int64_t projection, bool reverse,
                         int64_t steps, int64_t count, Form form, bool states) {
      found.push_back({.cell = kind,
                       .input = input,
                       .hidden = hidden,
                       .projection = projection,
                       .layers = 1,
                       .directions = 1,
                       .reverse = reverse,
                       .steps = steps,
                       .count = count,
                       .form = form,
                       .batch_first = form == Form::kLengths,
                       .bias = count != 5,
                       .states = states,
                       .train = true});
    };
    for (const Form form : {Form::kEqual, Form::kLengths, Form::kPacked}) {
      for (const bool reverse : {false, true}) {
        add(5, 7, 0, reverse, 5, 3, form, true);
        add(3, 19, 0, reverse, 4, 5, form, reverse);
        if (kind != CellKind::kLstm) continue;
        add(4, 18, 5, reverse, 4, 3, form, true);
        add(2, 35, 17, reverse, 3, 4, form, !reverse);
      }
    }
    add(17, 1, 0, false, 3, 7, Form::kEqual, true);
    add(0, 5, 0, false, 3, 2, Form::kEqual, true);
    add(3, 5, 0, false, 0, 2, Form::kEqual, true);
    add(3, 5, 0, false, 4, 0, Form::kEqual, true);
    add(3, 97, 0, false, 2, 2, Form::kEqual, true);   // sums over gates longer than kLongestSum
    add(3, 9, 0, true, 140, 1, Form::kEqual, true);   // more than one block of rows
    add(2, 3, 0, false, 3, 130, Form::kEqual, true);  // a step of more rows than a block
    for (const Conversion types : kConversions) {     // panels of 16 bits
      if (types.to == DType::kFloat) continue;
      const bool projected = kind == CellKind::kLstm;
      add(5, 19, projected ? 7 : 0, true, 4, 3, Form::kLengths, true);
      found.back().types = types;
    }
  }
  return found;
}

// Calls from the members of another team: theirs may turn out smaller than planned, and the bits
// are the same.
void nested_calls(const KernelTable& table) {
  Random random;
  Setup setup({.cell = CellKind::kLstm,
               .input = 5,
               .hidden = 35,
               .projection = 18,
               .layers = 1,
               .directions = 1,
               .reverse = true,
               .steps = 5,
               .count = 4,
               .form = Form::kLengths,
               .train = true},
              table, random);
  struct Context {
    Training training;
    std::vector<GradientTensors> expected;
    std::array<bool, 3> same;
  } context{Training(setup, random), {}, {}};
  context.expected.push_back(run(context.training, alone(setup.sizes())));
  run_team(3, [](void* p, int member, int) {
    auto& c = *static_cast<Context*>(p);
    c.same[static_cast<size_t>(member)] =
        same_bits(run(c.training, {4, 2, 1, 2, 5, 1}), c.expected[0]);
  }, &context);
  for (const bool same : context.same)
    expect(same, "a backward pass inside a team gives other bits");
}

}  // namespace
}  // namespace rnnpack::check

int main() {
  using namespace rnnpack;
  using namespace rnnpack::check;
  const std::vector<const KernelTable*> all = tables();
  int64_t index = 0;
  for (const Case& k : cases()) check_case(k, all, ++index % 4 != 0);
  nested_calls(*all.back());
  return report("test_backward");
}
