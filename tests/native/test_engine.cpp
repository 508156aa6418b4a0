// The time loops: every cell, stack, direction and sequence layout against plain loops in double; and every way to share the work among
// threads gives the bits of the single thread.
#include <algorithm>
#include <array>
#include <optional>

#include "check.h"
#include "engine/engine.h"
#include "engine/team.h"

namespace rnnpack::check {
namespace {

// How sequences of several lengths are laid out.
enum class Form {
  kEqual,    // all rows have all steps
  kLengths,  // a padded batch in any order: rows are visited longest first, through row_index
  kPacked,   // as in PackedSequence: the running rows of step 0, then those of step 1, ...
};

struct Case {
  CellKind cell;
  int64_t input, hidden, projection;
  int64_t layers;
  int directions;
  bool reverse;
  int64_t steps, count;
  Form form = Form::kEqual;
  bool batch_first = false;
  bool bias = true;
  bool states = true;
  bool direct = false;
  bool train = false;

  int64_t output() const { return projection > 0 ? projection : hidden; }
  std::string text() const {
    std::ostringstream text;
    text << cell_name(static_cast<int>(cell)) << ", " << steps << " steps, " << count << " rows, " << input << " to " << hidden << " to "
         << projection << ", " << layers << " layers, " << directions << " directions" << (reverse ? ", reverse" : "")
         << (form == Form::kEqual ? "" : form == Form::kLengths ? ", lengths" : ", packed") << (batch_first ? ", batch first" : "")
         << (bias ? "" : ", no bias") << (states ? "" : ", no states") << (direct ? ", direct" : "") << (train ? ", train" : "");
    return text.str();
  }
};

// --- Plain loops in double -----------------------------------------------------------------------

using Row = std::vector<double>;
using Rows2 = std::vector<Row>;     // [row][feature]
using Rows3 = std::vector<Rows2>;   // [row][time][feature]

// Something added to one number on its way, to find derivatives by differences.
struct Nudge {
  enum class Place { kNone, kGate, kHidden, kInitialH, kInitialC } place = Place::kNone;
  int64_t row = 0, time = 0, index = 0;
  double step = 0;

  double at(Place where, int64_t r, int64_t t, int64_t i) const {
    return place == where && row == r && time == t && index == i ? step : 0;
  }
};

double sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }

// One step of one row. gates: by slot, as csrc/kernels/cell/kind.h numbers them, before activation. Updates h and c.
void step(CellKind cell, const std::vector<Row>& gates, Row& h, Row& c) {
  for (size_t u = 0; u < h.size(); ++u) {
    switch (cell) {
      case CellKind::kLstm:
        c[u] = sigmoid(gates[1][u]) * c[u] + sigmoid(gates[0][u]) * std::tanh(gates[2][u]);
        h[u] = sigmoid(gates[3][u]) * std::tanh(c[u]);
        break;
      case CellKind::kGru: {
        const double z = sigmoid(gates[1][u]);
        h[u] = (1 - z) * std::tanh(gates[3][u] + sigmoid(gates[0][u]) * gates[2][u]) + z * h[u];
        break;
      }
      case CellKind::kRnnTanh: h[u] = std::tanh(gates[0][u]); break;
      case CellKind::kRnnRelu: h[u] = std::max(gates[0][u], 0.0); break;
    }
  }
}

// The weights of one layer and direction.
struct Layer {
  int64_t input, gap;
  Floats ih, hh, hr, bias_ih, bias_hh;

  Layer(const Case& k, int64_t input_size, Random& random)
      : input(input_size),
        gap(input_size % 3),
        ih(k.hidden * traits(k.cell).gates * (input + gap)),
        hh(k.hidden * traits(k.cell).gates * (k.output() + gap)),
        hr(std::max<int64_t>(k.projection, 0) * (k.hidden + gap)),
        bias_ih(k.hidden * traits(k.cell).gates),
        bias_hh(k.hidden * traits(k.cell).gates) {
    const auto scale = static_cast<float>(1.5 / std::sqrt(static_cast<double>(k.hidden)));
    for (const auto& [matrix, columns] : {std::pair{&ih, input}, std::pair{&hh, k.output()}, std::pair{&hr, k.hidden}}) {
      for (int64_t i = 0; i < matrix->size(); ++i) {
        if (i % (columns + gap) < columns) (*matrix)[i] = random.uniform(scale);
      }
    }
    random.fill(bias_ih, scale);
    random.fill(bias_hh, scale);
  }
};

// One layer and direction, one row, `length` steps. Returns h after each step, by time; h and c end as the final states.
Rows2 run_row(const Case& k, const Layer& w, bool reverse, const Rows2& input, int64_t row, int64_t length, Row& h, Row& c,
              const Nudge& nudge, Rows2* hidden) {
  const CellTraits& cell = traits(k.cell);
  const auto out = static_cast<size_t>(k.output());
  Rows2 output(static_cast<size_t>(length), Row(out));
  for (size_t i = 0; i < h.size(); ++i) h[i] += nudge.at(Nudge::Place::kInitialH, row, 0, static_cast<int64_t>(i));
  for (size_t i = 0; i < c.size(); ++i) c[i] += nudge.at(Nudge::Place::kInitialC, row, 0, static_cast<int64_t>(i));
  for (int64_t s = 0; s < length; ++s) {
    const int64_t t = reverse ? length - 1 - s : s;
    std::vector<Row> gates(static_cast<size_t>(cell.slots), Row(static_cast<size_t>(k.hidden)));
    for (int g = 0; g < cell.gates; ++g) {
      for (int64_t u = 0; u < k.hidden; ++u) {
        const int64_t r = g * k.hidden + u;
        double ih = k.bias ? w.bias_ih[r] : 0, hh = k.bias ? w.bias_hh[r] : 0;
        for (int64_t i = 0; i < w.input; ++i) {
          ih += static_cast<double>(w.ih[r * (w.input + w.gap) + i]) * input[static_cast<size_t>(t)][static_cast<size_t>(i)];
        }
        for (int64_t i = 0; i < k.output(); ++i) {
          hh += static_cast<double>(w.hh[r * (k.output() + w.gap) + i]) * h[static_cast<size_t>(i)];
        }
        gates[static_cast<size_t>(cell.ih_slot[g])][static_cast<size_t>(u)] += ih;
        gates[static_cast<size_t>(cell.hh_slot[g])][static_cast<size_t>(u)] += hh;
      }
    }
    for (int slot = 0; slot < cell.slots; ++slot) {
      for (int64_t u = 0; u < k.hidden; ++u) {
        gates[static_cast<size_t>(slot)][static_cast<size_t>(u)] += nudge.at(Nudge::Place::kGate, row, t, slot * k.hidden + u);
      }
    }
    Row before_projection = h;
    before_projection.resize(static_cast<size_t>(k.hidden));
    step(k.cell, gates, before_projection, c);
    if (hidden != nullptr) (*hidden)[static_cast<size_t>(t)] = before_projection;
    for (size_t i = 0; i < out; ++i) {
      double value = k.projection > 0 ? 0 : before_projection[i];
      for (int64_t u = 0; u < k.hidden && k.projection > 0; ++u) {
        value += static_cast<double>(w.hr[static_cast<int64_t>(i) * (k.hidden + w.gap) + u]) * before_projection[static_cast<size_t>(u)];
      }
      h[i] = value + nudge.at(Nudge::Place::kHidden, row, t, static_cast<int64_t>(i));
    }
    output[static_cast<size_t>(t)] = h;
  }
  return output;
}

// --- A case with its tensors ---------------------------------------------------------------------

struct Outputs {
  Floats output, h_n, c_n, reserve_gates, reserve_c;

  bool same_bits(const Outputs& other) const {
    return output.same_bits(other.output) && h_n.same_bits(other.h_n) && c_n.same_bits(other.c_n) &&
           reserve_gates.same_bits(other.reserve_gates) && reserve_c.same_bits(other.reserve_c);
  }
};

// Owns what a Problem points at. Lengths, longest first, go down to zero where the form allows it.
class Setup {
 public:
  Setup(const Case& k, const KernelTable& table, Random& random)
      : k_(k),
        table_(table),
        stacks_(k.layers * k.directions),
        input_(places() * k.input),
        h_0_(stacks_ * k.count * k.output()),
        c_0_(stacks_ * k.count * k.hidden) {
    make_rows();
    for (int64_t i = 0; i < stacks_; ++i) {
      layers_.emplace_back(k, i < k.directions ? k.input : k.directions * k.output(), random);
    }
    for (const Layer& l : layers_) {
      weights_.push_back({nullptr, l.ih.data(), l.hh.data(), k.projection > 0 ? l.hr.data() : nullptr, l.input + l.gap,
                          k.output() + l.gap, k.hidden + l.gap, k.bias ? l.bias_ih.data() : nullptr, k.bias ? l.bias_hh.data() : nullptr});
    }
    // Places past each row's end stay NaN: whoever reads them spoils everything after.
    const SequenceView view = input_view(input_.data());
    for (int64_t r = 0; r < k.count; ++r) {
      for (int64_t t = 0; t < rows_.length(r); ++t) {
        for (int64_t i = 0; i < k.input; ++i) rows_.at(view, t, r)[i] = random.uniform(1.0f);
      }
    }
    random.fill(h_0_, 1.0f);
    random.fill(c_0_, 1.0f);
  }
  Setup(const Setup&) = delete;
  Setup& operator=(const Setup&) = delete;

  const Case& sizes() const { return k_; }
  const KernelTable& table() const { return table_; }
  const Rows& rows() const { return rows_; }
  const std::vector<Layer>& layers() const { return layers_; }

  // Rows of a tensor with the case's places and `width` columns.
  SequenceView view(float* data, int64_t width) const {
    if (k_.form == Form::kPacked) return {data, width, width};
    return k_.batch_first ? SequenceView{data, width, k_.steps * width} : SequenceView{data, k_.count * width, width};
  }
  SequenceView input_view(float* data) const { return view(data, k_.input); }
  int64_t places() const { return k_.form == Form::kPacked ? packed_rows() : k_.steps * k_.count; }

  // Uses snapshots of packed weights instead of plain ones.
  void pack() {
    for (int64_t i = 0; i < stacks_; ++i) {
      const LayerShape shape{k_.cell, layers_[static_cast<size_t>(i)].input, k_.hidden, k_.projection};
      packed_.emplace_back(shape.packed_floats());
      pack_layer(table_, shape, weights_[static_cast<size_t>(i)], packed_.back().data());
    }
    for (int64_t i = 0; i < stacks_; ++i) {
      weights_[static_cast<size_t>(i)] = {packed_[static_cast<size_t>(i)].data(), nullptr, nullptr, nullptr, 0, 0, 0, nullptr, nullptr};
    }
  }

  Outputs empty_outputs(bool recompute = false) const {
    const GateLayout gates{k_.hidden, traits(k_.cell).slots};
    const bool has_c = traits(k_.cell).has_cell_state;
    return {Floats(places() * k_.directions * k_.output()), Floats(stacks_ * k_.count * k_.output()),
            Floats(has_c ? stacks_ * k_.count * k_.hidden : 0),
            Floats(k_.train && !recompute ? rows_.total() * gates.columns() : 0),
            Floats(k_.train && has_c ? rows_.total() * gates.blocks() * kBlockUnits : 0)};
  }

  Problem problem(const Outputs& to) const {
    Problem p{};
    p.cell = k_.cell;
    p.input_size = k_.input;
    p.hidden = k_.hidden;
    p.projection = k_.projection;
    p.layers = k_.layers;
    p.directions = k_.directions;
    p.reverse = k_.reverse;
    p.direct = k_.direct;
    p.rows = rows_;
    p.input = input_view(const_cast<float*>(input_.data()));
    p.output = view(to.output.data(), k_.directions * k_.output());
    p.weights = weights_.data();
    p.h_0 = k_.states ? h_0_.data() : nullptr;
    p.c_0 = k_.states && traits(k_.cell).has_cell_state ? c_0_.data() : nullptr;
    p.h_n = to.h_n.data();
    p.c_n = traits(k_.cell).has_cell_state ? to.c_n.data() : nullptr;
    p.reserve_gates = to.reserve_gates.size() > 0 ? to.reserve_gates.data() : nullptr;
    p.reserve_c = to.reserve_c.size() > 0 ? to.reserve_c.data() : nullptr;
    return p;
  }

  Outputs run(const Plan& plan, bool recompute = false) const {
    Outputs outputs = empty_outputs(recompute);
    const Problem p = problem(outputs);
    const Floats scratch(ceil_div(forward_scratch_bytes(p, plan), 4));
    run_forward(table_, p, plan, scratch.data());
    return outputs;
  }

  // The row's input by time.
  Rows2 input_of(int64_t r) const {
    Rows2 values;
    for (int64_t t = 0; t < rows_.length(r); ++t) {
      const float* from = rows_.at(input_view(const_cast<float*>(input_.data())), t, r);
      values.emplace_back(from, from + k_.input);
    }
    return values;
  }

  // The initial states of row r of a stack.
  std::pair<Row, Row> states_of(int64_t stack, int64_t r) const {
    Row h(static_cast<size_t>(k_.output())), c(static_cast<size_t>(k_.hidden));
    const int64_t row = stack * k_.count + rows_.row_of(r);
    for (size_t i = 0; k_.states && i < h.size(); ++i) h[i] = h_0_[row * k_.output() + static_cast<int64_t>(i)];
    for (size_t i = 0; k_.states && i < c.size(); ++i) c[i] = c_0_[row * k_.hidden + static_cast<int64_t>(i)];
    return {h, c};
  }

 private:
  int64_t length_of(int64_t r) const {
    if (k_.form == Form::kEqual || r == 0) return k_.steps;
    const int64_t shortest = k_.form == Form::kPacked ? 1 : 0;
    return std::max(k_.steps - (r * 5) / 3, shortest);
  }
  int64_t packed_rows() const {
    int64_t total = 0;
    for (int64_t r = 0; r < k_.count; ++r) total += length_of(r);
    return total;
  }

  void make_rows() {
    rows_.steps = k_.steps;
    rows_.count = k_.count;
    if (k_.form == Form::kEqual) return;
    for (int64_t r = 0; r < k_.count; ++r) {
      lengths_.push_back(length_of(r));
      row_index_.push_back((r + k_.count - 1) % k_.count);
    }
    int64_t before = 0;
    for (int64_t s = 0; s < k_.steps; ++s) {
      active_.push_back(std::count_if(lengths_.begin(), lengths_.end(), [s](int64_t length) { return length > s; }));
      row_start_.push_back(before);
      before += active_.back();
    }
    rows_.lengths = lengths_.data();
    rows_.active = active_.data();
    rows_.row_start = row_start_.data();
    if (k_.form == Form::kPacked) {
      rows_.time_index = row_start_.data();
    } else {
      rows_.row_index = row_index_.data();
    }
  }

  const Case k_;
  const KernelTable& table_;
  const int64_t stacks_;
  Floats input_, h_0_, c_0_;
  std::vector<int64_t> lengths_, active_, row_start_, row_index_;
  Rows rows_{};
  std::vector<Layer> layers_;
  std::vector<LayerWeights> weights_;
  std::vector<Floats> packed_;
};

// The whole stack in double: outputs by row and time, final states by stack and row.
struct Truth {
  Rows3 output;
  std::vector<Rows2> h_n, c_n;
};

Truth solve(const Setup& setup) {
  const Case& k = setup.sizes();
  Truth truth;
  truth.h_n.resize(static_cast<size_t>(k.layers * k.directions));
  truth.c_n.resize(static_cast<size_t>(k.layers * k.directions));
  for (int64_t r = 0; r < k.count; ++r) {
    Rows2 values = setup.input_of(r);
    for (int64_t layer = 0; layer < k.layers; ++layer) {
      Rows2 joined(values.size());
      for (int d = 0; d < k.directions; ++d) {
        const auto stack = static_cast<size_t>(layer * k.directions + d);
        auto [h, c] = setup.states_of(static_cast<int64_t>(stack), r);
        const bool reverse = k.directions == 2 ? d == 1 : k.reverse;
        const Rows2 output = run_row(k, setup.layers()[stack], reverse, values, r, setup.rows().length(r), h, c, {}, nullptr);
        for (size_t t = 0; t < output.size(); ++t) joined[t].insert(joined[t].end(), output[t].begin(), output[t].end());
        truth.h_n[stack].push_back(h);
        truth.c_n[stack].push_back(c);
      }
      values = joined;
    }
    truth.output.push_back(values);
  }
  return truth;
}

// Rounding of a few steps of sums over up to 150 numbers of size 1; a wrong index is off by a thousand times that.
constexpr double kBound = 64 * kEps;

void check_values(const Setup& setup, const Outputs& found) {
  const Case& k = setup.sizes();
  const Truth truth = solve(setup);
  const std::string text = std::string(isa_name(setup.table().isa)) + " " + k.text();
  const SequenceView view = setup.view(found.output.data(), k.directions * k.output());
  std::vector<bool> written(static_cast<size_t>(found.output.size()), false);
  for (int64_t r = 0; r < k.count; ++r) {
    for (int64_t t = 0; t < setup.rows().length(r); ++t) {
      const Row& expected = truth.output[static_cast<size_t>(r)][static_cast<size_t>(t)];
      const float* row = setup.rows().at(view, t, r);
      for (size_t i = 0; i < expected.size(); ++i) {
        expect_close(row[i], expected[i], kBound * (1 + std::abs(expected[i])), text, ": output, row ", r, ", time ", t, ", ", i);
        written[static_cast<size_t>(row - found.output.data()) + i] = true;
      }
    }
    for (size_t stack = 0; stack < truth.h_n.size(); ++stack) {
      const int64_t state = static_cast<int64_t>(stack) * k.count + setup.rows().row_of(r);
      for (int64_t i = 0; i < k.output(); ++i) {
        const double h = truth.h_n[stack][static_cast<size_t>(r)][static_cast<size_t>(i)];
        expect_close(found.h_n[state * k.output() + i], h, kBound * (1 + std::abs(h)), text, ": h_n of stack ", stack, ", row ", r);
      }
      for (int64_t i = 0; i < k.hidden && traits(k.cell).has_cell_state; ++i) {
        const double c = truth.c_n[stack][static_cast<size_t>(r)][static_cast<size_t>(i)];
        expect_close(found.c_n[state * k.hidden + i], c, kBound * (1 + std::abs(c)), text, ": c_n of stack ", stack, ", row ", r);
      }
    }
  }
  for (int64_t i = 0; i < found.output.size(); ++i) {
    expect(written[static_cast<size_t>(i)] || std::isnan(found.output[i]), text, ": wrote past a row's end, at ", i);
  }
}

// Ways to share the work, among more threads than there are rows, blocks or cores, too.
std::vector<Plan> plans(const Case& k) {
  const int64_t steps = std::max<int64_t>(k.steps, 1);
  std::vector<Plan> found;
  const auto add = [&](int groups, int lanes, int unit_threads, int64_t segment, int64_t chunk) {
    found.push_back({groups * lanes * unit_threads, groups, lanes, unit_threads, segment, std::min(chunk, segment)});
  };
  for (const int64_t chunk : {int64_t{1}, int64_t{2}, int64_t{3}, steps}) add(1, 1, 1, steps, chunk);
  for (const int groups : {2, 3, 5}) add(groups, 1, 1, steps, 2);
  for (const int unit_threads : {2, 3, 5}) add(1, 1, unit_threads, steps, 3);
  add(2, 1, 2, steps, 2);
  if (k.directions == 2) {
    add(1, 2, 1, steps, 2);
    add(2, 2, 2, steps, 3);
  } else {
    add(1, 1, 1, 2, 1);
  }
  if (k.directions == 1 && k.layers > 1) {
    for (const int lanes : {2, 3}) {
      for (const int64_t segment : {int64_t{1}, int64_t{3}, steps}) add(1, lanes, 1, segment, 2);
    }
    add(2, 2, 2, 2, 1);
  }
  return found;
}

std::string describe(const Case& k, const Plan& plan) {
  std::ostringstream text;
  text << k.text() << "; " << plan.row_groups << " groups x " << plan.lanes << " lanes x " << plan.unit_threads << ", segments of "
       << plan.segment_steps << ", chunks of " << plan.chunk_steps;
  return text.str();
}

Plan alone(const Case& k) {
  const int64_t steps = std::max<int64_t>(k.steps, 1);
  return {1, 1, 1, 1, steps, steps};
}

void check_plans(const Setup& setup) {
  const Case& k = setup.sizes();
  const Outputs expected = setup.run(alone(k));
  for (const Plan& plan : plans(k)) {
    expect(setup.run(plan).same_bits(expected), describe(k, plan), ": other bits than one thread");
  }
}

std::vector<Case> cases() {
  std::vector<Case> found;
  for (int cell = 0; cell < kCellKinds; ++cell) {
    const auto kind = static_cast<CellKind>(cell);
    for (const Form form : {Form::kEqual, Form::kLengths, Form::kPacked}) {
      const bool padded = form != Form::kPacked;
      found.push_back({.cell = kind, .input = 5, .hidden = 17, .projection = 0, .layers = 1, .directions = 1, .reverse = false,
                       .steps = 7, .count = 3, .form = form});
      found.push_back({.cell = kind, .input = 3, .hidden = 9, .projection = 0, .layers = 3, .directions = 1, .reverse = false,
                       .steps = 6, .count = 5, .form = form, .batch_first = padded, .bias = false});
      found.push_back({.cell = kind, .input = 4, .hidden = 35, .projection = 0, .layers = 2, .directions = 2, .reverse = false,
                       .steps = 5, .count = 4, .form = form, .states = false});
      found.push_back({.cell = kind, .input = 1, .hidden = 1, .projection = 0, .layers = 2, .directions = 1, .reverse = true,
                       .steps = 4, .count = 7, .form = form});
      found.push_back({.cell = kind, .input = 7, .hidden = 19, .projection = 0, .layers = 1, .directions = 1, .reverse = true,
                       .steps = 6, .count = 4, .form = form, .batch_first = padded, .train = true});
      if (kind == CellKind::kLstm) {
        found.push_back({.cell = kind, .input = 6, .hidden = 37, .projection = 21, .layers = 2, .directions = 2, .reverse = false,
                         .steps = 5, .count = 3, .form = form});
        found.push_back({.cell = kind, .input = 2, .hidden = 18, .projection = 5, .layers = 3, .directions = 1, .reverse = false,
                         .steps = 6, .count = 3, .form = form, .states = false});
        found.push_back({.cell = kind, .input = 3, .hidden = 33, .projection = 17, .layers = 1, .directions = 1, .reverse = false,
                         .steps = 5, .count = 5, .form = form, .train = true});
      }
    }
    found.push_back({.cell = kind, .input = 5, .hidden = 6, .projection = 0, .layers = 2, .directions = 1, .reverse = false,
                     .steps = 0, .count = 3});
    found.push_back({.cell = kind, .input = 0, .hidden = 7, .projection = 0, .layers = 1, .directions = 1, .reverse = false,
                     .steps = 3, .count = 2});
    found.push_back({.cell = kind, .input = 3, .hidden = 150, .projection = 0, .layers = 1, .directions = 1, .reverse = false,
                     .steps = 2, .count = 1});
  }
  return found;
}

void forward_cases(const KernelTable& table, bool with_plans) {
  Random random;
  for (Case k : cases()) {
    Setup setup(k, table, random);
    const Outputs found = setup.run(alone(k));
    check_values(setup, found);
    if (with_plans) check_plans(setup);
    if (k.train) continue;
    setup.pack();
    expect(setup.run(alone(k)).same_bits(found), k.text(), ": packed weights give other bits than plain ones");

    k.direct = true;
    const Setup direct(k, table, random);
    check_values(direct, direct.run(alone(k)));
    if (with_plans) check_plans(direct);
  }
}

// One step may do without final states.
void without_final_states(const KernelTable& table) {
  Random random;
  const Setup setup({.cell = CellKind::kLstm, .input = 5, .hidden = 7, .projection = 0, .layers = 1, .directions = 1, .reverse = false,
                     .steps = 1, .count = 3},
                    table, random);
  const Outputs expected = setup.run(alone(setup.sizes()));
  Outputs found = setup.empty_outputs();
  Problem p = setup.problem(found);
  p.h_n = nullptr;
  const Floats scratch(ceil_div(forward_scratch_bytes(p, alone(setup.sizes())), 4));
  run_forward(table, p, alone(setup.sizes()), scratch.data());
  expect(found.output.same_bits(expected.output) && found.c_n.same_bits(expected.c_n), "a call without h_n gives other bits");
}

// --- The plan ------------------------------------------------------------------------------------

// What make_plan may choose: threads that are all used, within the limit; and it gives the bits of one thread.
void chosen_plans(const KernelTable& table) {
  Random random;
  for (const int64_t hidden : {1, 17, 64, 150}) {
    for (const int64_t count : {1, 2, 7, 33}) {
      for (const int64_t steps : {1, 20}) {
        for (const auto& [layers, directions] : {std::pair{1, 1}, std::pair{2, 1}, std::pair{3, 1}, std::pair{2, 2}}) {
          const Case k{.cell = CellKind::kGru, .input = 9, .hidden = hidden, .projection = 0, .layers = layers, .directions = directions,
                       .reverse = false, .steps = steps, .count = count};
          const Setup setup(k, table, random);
          const Outputs none = setup.empty_outputs();
          for (const int limit : {1, 2, 3, 4, 8, 61}) {
            for (const int64_t l2 : {int64_t{1} << 12, int64_t{1} << 20}) {
              const Plan plan = make_plan(setup.problem(none), limit, l2);
              const std::string text = describe(k, plan) + ", limit " + std::to_string(limit);
              expect(plan.threads >= 1 && plan.threads <= limit, text, ": ", plan.threads, " threads");
              expect(plan.threads == plan.row_groups * plan.lanes * plan.unit_threads, text, ": ", plan.threads, " threads");
              expect(plan.row_groups <= count && plan.unit_threads <= ceil_div(hidden, 16), text, ": threads without work");
              expect(plan.lanes == 1 || (directions == 2 ? plan.lanes == 2 : layers % plan.lanes == 0), text, ": lanes without work");
              expect(directions == 1 || plan.segment_steps >= steps, text, ": a direction would read what is not there yet");
              expect(plan.chunk_steps >= 1 && plan.chunk_steps <= plan.segment_steps, text, ": no whole chunks in a segment");
            }
          }
          if (count * hidden > 600) continue;  // enough to see that they run
          const Outputs expected = setup.run(alone(k));
          for (const int limit : {2, 3, 8}) {
            const Plan plan = make_plan(setup.problem(none), limit, int64_t{1} << 20);
            expect(setup.run(plan).same_bits(expected), describe(k, plan), ": other bits than one thread");
          }
        }
      }
    }
  }
}

// Calls from the members of another team: theirs may turn out smaller than planned, and the bits are the same.
void nested_calls(const KernelTable& table) {
  Random random;
  const Setup setup({.cell = CellKind::kLstm, .input = 5, .hidden = 35, .projection = 18, .layers = 2, .directions = 2, .reverse = false,
                     .steps = 5, .count = 4, .form = Form::kLengths},
                    table, random);
  struct Context {
    const Setup& setup;
    std::array<std::optional<Outputs>, 3> found;
  } context{setup, {}};
  run_team(
      3,
      [](void* p, int member, int) {
        auto& c = *static_cast<Context*>(p);
        c.found[static_cast<size_t>(member)].emplace(c.setup.run({4, 1, 2, 2, 5, 2}));
      },
      &context);
  const Outputs expected = setup.run(alone(setup.sizes()));
  for (const auto& found : context.found) {
    expect(found.has_value() && found->same_bits(expected), "a call inside a team gives other bits");
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
  chosen_plans(*all.back());
  nested_calls(*all.back());
  return report("test_engine");
}
