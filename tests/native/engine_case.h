// One problem for the engine with all its tensors, and the same problem in plain loops in double.
#pragma once

#include <algorithm>

#include "check.h"
#include "engine/engine.h"

namespace rnnpack::check {

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
  bool train = false;  // one layer and direction that keeps what its backward pass needs
  Conversion types = {DType::kFloat, DType::kFloat};  // of plain weights and of panels

  int64_t output() const { return projection > 0 ? projection : hidden; }
  std::string text() const {
    std::ostringstream text;
    text << cell_name(static_cast<int>(cell)) << ", " << steps << " steps, " << count << " rows, "
         << input << " to " << hidden << " to " << projection << ", " << layers << " layers, "
         << directions << " directions" << (reverse ? ", reverse" : "")
         << (form == Form::kEqual     ? ""
             : form == Form::kLengths ? ", lengths"
                                      : ", packed")
         << (batch_first ? ", batch first" : "") << (bias ? "" : ", no bias")
         << (states ? "" : ", no states") << (direct ? ", direct" : "") << (train ? ", train" : "")
         << ", " << type_name(types.from) << " to " << type_name(types.to);
    return text.str();
  }
};

// --- Plain loops in double -----------------------------------------------------------------------

using Vector = std::vector<double>;

// The weights of one layer and direction, dense.
struct ExactWeights {
  int64_t input;
  Vector ih, hh, hr, bias_ih, bias_hh;
};

// Everything a result depends on. Sequences and states are by row in processing order; h_0 and c_0
// by stack, then row.
struct Exact {
  std::vector<Vector> input;  // [row][time * features]
  std::vector<Vector> h_0, c_0;
  std::vector<ExactWeights> weights;
};

struct ExactResult {
  std::vector<Vector> output;    // [row][time * features]
  std::vector<Vector> h_n, c_n;  // as h_0, c_0
};

inline double sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }

// Gates by slot, as csrc/kernels/cell/kind.h numbers them; updates h (before a projection) and c of
// one unit.
inline void exact_cell(CellKind cell, const double* gates, double& h, double& c) {
  switch (cell) {
    case CellKind::kLstm:
      c = sigmoid(gates[1]) * c + sigmoid(gates[0]) * std::tanh(gates[2]);
      h = sigmoid(gates[3]) * std::tanh(c);
      break;
    case CellKind::kGru: {
      const double z = sigmoid(gates[1]);
      h = (1 - z) * std::tanh(gates[3] + sigmoid(gates[0]) * gates[2]) + z * h;
      break;
    }
    case CellKind::kRnnTanh: h = std::tanh(gates[0]); break;
    case CellKind::kRnnRelu: h = std::max(gates[0], 0.0); break;
  }
}

inline double dot(const double* a, const double* b, int64_t count) {
  double sum = 0;
  for (int64_t i = 0; i < count; ++i) sum += a[i] * b[i];
  return sum;
}

// One layer and direction of one row; h and c end as the final states.
inline Vector exact_layer(const Case& k, const ExactWeights& w, bool reverse, const Vector& input,
                          int64_t length, Vector& h, Vector& c) {
  const CellTraits& cell = traits(k.cell);
  const int64_t out = k.output();
  Vector output(static_cast<size_t>(length * out));
  for (int64_t s = 0; s < length; ++s) {
    const int64_t t = reverse ? length - 1 - s : s;
    Vector next(static_cast<size_t>(k.hidden));
    for (int64_t u = 0; u < k.hidden; ++u) {
      double gates[kMaxSlots] = {};
      for (int g = 0; g < cell.gates; ++g) {
        const int64_t r = g * k.hidden + u;
        gates[cell.ih_slot[g]] +=
            w.bias_ih[static_cast<size_t>(r)] +
            dot(w.ih.data() + r * w.input, input.data() + t * w.input, w.input);
        gates[cell.hh_slot[g]] +=
            w.bias_hh[static_cast<size_t>(r)] + dot(w.hh.data() + r * out, h.data(), out);
      }
      double value = k.projection > 0 ? 0 : h[static_cast<size_t>(u)];
      exact_cell(k.cell, gates, value, c[static_cast<size_t>(u)]);
      next[static_cast<size_t>(u)] = value;
    }
    h = next;
    if (k.projection > 0) {
      h.assign(static_cast<size_t>(out), 0);
      for (int64_t i = 0; i < out; ++i)
        h[static_cast<size_t>(i)] = dot(w.hr.data() + i * k.hidden, next.data(), k.hidden);
    }
    std::copy(h.begin(), h.end(), output.begin() + t * out);
  }
  return output;
}

// The whole stack.
inline ExactResult exact_stack(const Case& k, const Exact& from, const Rows& rows) {
  ExactResult result{{}, from.h_0, from.c_0};
  for (int64_t r = 0; r < k.count; ++r) {
    Vector values = from.input[static_cast<size_t>(r)];
    for (int64_t layer = 0; layer < k.layers; ++layer) {
      const int64_t length = rows.length(r), width = k.directions * k.output();
      Vector joined(static_cast<size_t>(length * width));
      for (int d = 0; d < k.directions; ++d) {
        const int64_t stack = layer * k.directions + d;
        const auto state = static_cast<size_t>(stack * k.count + r);
        const bool reverse = k.directions == 2 ? d == 1 : k.reverse;
        const Vector output = exact_layer(k, from.weights[static_cast<size_t>(stack)], reverse,
                                          values, length, result.h_n[state], result.c_n[state]);
        for (int64_t t = 0; t < length; ++t) {
          std::copy_n(output.begin() + t * k.output(), k.output(),
                      joined.begin() + t * width + d * k.output());
        }
      }
      values = joined;
    }
    result.output.push_back(values);
  }
  return result;
}

// --- A case with its tensors ---------------------------------------------------------------------

// The weights of one layer and direction; NaN lies between the rows of its matrices.
struct Layer {
  int64_t input, gap;
  Stored ih, hh, hr;
  Floats bias_ih, bias_hh;

  Layer(const Case& k, int64_t input_size, Random& random)
      : input(input_size),
        gap(input_size % 3),
        ih(k.types.from, k.hidden * traits(k.cell).gates * (input + gap)),
        hh(k.types.from, k.hidden * traits(k.cell).gates * (k.output() + gap)),
        hr(k.types.from, k.projection * (k.hidden + gap)),
        bias_ih(k.hidden * traits(k.cell).gates),
        bias_hh(k.hidden * traits(k.cell).gates) {
    const auto scale = static_cast<float>(1.5 / std::sqrt(static_cast<double>(k.hidden)));
    for (const auto& [matrix, columns] :
         {std::pair{&ih, input}, std::pair{&hh, k.output()}, std::pair{&hr, k.hidden}}) {
      for (int64_t i = 0; i < matrix->size(); ++i) {
        if (i % (columns + gap) < columns) matrix->set(i, random.uniform(scale));
      }
    }
    random.fill(bias_ih, scale);
    random.fill(bias_hh, scale);
  }

  ExactWeights exact(const Case& k) const {
    const auto matrix = [this, &k](const Stored& from, int64_t columns) {
      Vector dense;
      for (int64_t i = 0; i < from.size(); ++i) {
        if (i % (columns + gap) < columns) dense.push_back(rounded(from[i], k.types.to));
      }
      return dense;
    };
    const auto bias = [&k](const Floats& from) {
      return k.bias ? Vector(from.data(), from.data() + from.size())
                    : Vector(static_cast<size_t>(from.size()), 0.0);
    };
    return {input,         matrix(ih, input), matrix(hh, k.output()), matrix(hr, k.hidden),
            bias(bias_ih), bias(bias_hh)};
  }
};

struct Outputs {
  Floats output, h_n, c_n, reserve_gates, reserve_c, reserve_h;

  bool same_bits(const Outputs& other) const {
    return output.same_bits(other.output) && h_n.same_bits(other.h_n) && c_n.same_bits(other.c_n) &&
           reserve_gates.same_bits(other.reserve_gates) && reserve_c.same_bits(other.reserve_c) &&
           reserve_h.same_bits(other.reserve_h);
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
      weights_.push_back({nullptr, k.types.from, l.ih.data(), l.hh.data(),
                          k.projection > 0 ? l.hr.data() : nullptr, l.input + l.gap,
                          k.output() + l.gap, k.hidden + l.gap, k.bias ? l.bias_ih.data() : nullptr,
                          k.bias ? l.bias_hh.data() : nullptr});
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

  // Rows of a tensor with the case's places and `width` columns.
  SequenceView view(float* data, int64_t width) const {
    if (k_.form == Form::kPacked) return {data, width, width};
    return k_.batch_first ? SequenceView{data, width, k_.steps * width}
                          : SequenceView{data, k_.count * width, width};
  }
  SequenceView input_view(float* data) const { return view(data, k_.input); }
  int64_t places() const { return k_.form == Form::kPacked ? packed_rows() : k_.steps * k_.count; }

  // Panels of a group in the weights that a call packs for itself.
  void set_groups(int32_t ih, int32_t hh) {
    ih_group_ = ih;
    hh_group_ = hh;
  }

  // Uses snapshots of packed weights instead of plain ones.
  void pack() {
    for (int64_t i = 0; i < stacks_; ++i) {
      const LayerShape shape{.cell = k_.cell,
                             .input = layers_[static_cast<size_t>(i)].input,
                             .hidden = k_.hidden,
                             .projection = k_.projection,
                             .storage = k_.types.to};
      packed_.emplace_back(shape.packed_bytes() / 4);
      pack_layer(table_, shape, weights_[static_cast<size_t>(i)], packed_.back().data());
    }
    for (int64_t i = 0; i < stacks_; ++i) {
      weights_[static_cast<size_t>(i)] = LayerWeights{};
      weights_[static_cast<size_t>(i)].packed = packed_[static_cast<size_t>(i)].data();
    }
  }

  Outputs empty_outputs(bool recompute = false) const {
    const GateLayout gates{k_.hidden, traits(k_.cell).slots};
    const bool has_c = traits(k_.cell).has_cell_state;
    return {Floats(places() * k_.directions * k_.output()),
            Floats(stacks_ * k_.count * k_.output()),
            Floats(has_c ? stacks_ * k_.count * k_.hidden : 0),
            Floats(k_.train && !recompute ? places() * gates.columns() : 0),
            Floats(k_.train && has_c ? places() * gates.blocks() * kBlockUnits : 0),
            Floats(k_.train && !recompute ? places() * k_.output() : 0)};
  }

  Problem problem(const Outputs& to) const {
    Problem p{};
    p.cell = k_.cell;
    p.storage = k_.types.to;
    p.input_size = k_.input;
    p.hidden = k_.hidden;
    p.projection = k_.projection;
    p.layers = k_.layers;
    p.directions = k_.directions;
    p.reverse = k_.reverse;
    p.direct = k_.direct;
    p.ih_group = ih_group_;
    p.hh_group = hh_group_;
    p.rows = rows_;
    p.input = input_view(input_.data());
    p.output = view(to.output.data(), k_.directions * k_.output());
    p.weights = weights_.data();
    p.h_0 = k_.states ? h_0_.data() : nullptr;
    p.c_0 = k_.states && traits(k_.cell).has_cell_state ? c_0_.data() : nullptr;
    p.h_n = to.h_n.data();
    p.c_n = traits(k_.cell).has_cell_state ? to.c_n.data() : nullptr;
    p.reserve_gates = to.reserve_gates.size() > 0 ? to.reserve_gates.data() : nullptr;
    p.reserve_c = to.reserve_c.size() > 0 ? to.reserve_c.data() : nullptr;
    p.reserve_h = to.reserve_h.size() > 0 ? to.reserve_h.data() : nullptr;
    return p;
  }

  Outputs run(const Plan& plan, bool recompute = false) const {
    Outputs outputs = empty_outputs(recompute);
    const Problem p = problem(outputs);
    const Floats scratch(ceil_div(forward_scratch_bytes(p, plan), 4));
    run_forward(table_, p, plan, scratch.data());
    return outputs;
  }

  Exact exact() const {
    Exact e;
    for (int64_t r = 0; r < k_.count; ++r) {
      e.input.emplace_back();
      for (int64_t t = 0; t < rows_.length(r); ++t) {
        const float* from = rows_.at(input_view(input_.data()), t, r);
        e.input.back().insert(e.input.back().end(), from, from + k_.input);
      }
    }
    for (int64_t stack = 0; stack < stacks_; ++stack) {
      for (int64_t r = 0; r < k_.count; ++r) {
        const auto state = [&](const Floats& from, int64_t width) {
          const float* row = from.data() + (stack * k_.count + rows_.row_of(r)) * width;
          return k_.states ? Vector(row, row + width) : Vector(static_cast<size_t>(width), 0.0);
        };
        e.h_0.push_back(state(h_0_, k_.output()));
        e.c_0.push_back(state(c_0_, k_.hidden));
      }
    }
    for (const Layer& layer : layers_) e.weights.push_back(layer.exact(k_));
    return e;
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
      active_.push_back(std::count_if(lengths_.begin(), lengths_.end(),
                                      [s](int64_t length) { return length > s; }));
      row_start_.push_back(before);
      before += active_.back();
    }
    rows_.lengths = lengths_.data();
    rows_.active = active_.data();
    rows_.row_start = row_start_.data();
    if (k_.form == Form::kPacked) {
      int64_t steps_before = 0;
      for (const int64_t length : lengths_) {
        row_offset_.push_back(steps_before);
        steps_before += length;
      }
      rows_.row_offset = row_offset_.data();
      rows_.time_index = row_start_.data();
    } else {
      rows_.row_index = row_index_.data();
    }
  }

  const Case k_;
  const KernelTable& table_;
  const int64_t stacks_;
  Floats input_, h_0_, c_0_;
  std::vector<int64_t> lengths_, active_, row_start_, row_offset_, row_index_;
  Rows rows_{};
  std::vector<Layer> layers_;
  std::vector<LayerWeights> weights_;
  std::vector<Floats> packed_;
  int32_t ih_group_ = kGroup, hh_group_ = kGroup;
};

// One thread, all steps in one piece: what every other plan must agree with.
inline Plan alone(const Case& k) {
  const int64_t steps = std::max<int64_t>(k.steps, 1);
  return {1, 1, 1, 1, steps, steps};
}

inline std::string describe(const Case& k, const Plan& plan) {
  std::ostringstream text;
  text << k.text() << "; " << plan.row_groups << " groups x " << plan.lanes << " lanes x "
       << plan.unit_threads << ", segments of " << plan.segment_steps << ", chunks of "
       << plan.chunk_steps << ", weights packed " << plan.packings << " times";
  return text.str();
}

}  // namespace rnnpack::check
