// sigmoid and tanh of every ISA, over floats of every size, against libm in double: the bound and
// the limits of activation.h. They are inline, so they are reached through the cells that are made
// of them.
#include "check.h"

namespace rnnpack::check {
namespace {

// Every 10,007th float there is (a prime, so that mantissas differ from exponent to exponent), and
// all neighbours of the places where the formulas change: zero, the smallest normal, the two forms
// of tanh, changes of the exponent's reduction, saturation.
std::vector<float> floats_to_walk() {
  std::vector<float> values;
  for (uint64_t bits = 0; bits < (uint64_t{1} << 32); bits += 10007) {
    values.push_back(float_of(static_cast<uint32_t>(bits)));
  }
  constexpr float kPlaces[] = {0.0f,        std::numeric_limits<float>::min(),
                               0.17328679f, 0.34657359f,
                               0.55f,       1.0397208f,
                               9.01f,       9.1f,
                               17.33f,      17.4f,
                               20.0f,       86.99f,
                               87.3365f,    87.3f,
                               88.0f,       88.376f,
                               88.4f,       89.0f,
                               104.0f};
  constexpr int32_t kNeighbours = 2000;
  for (const float place : kPlaces) {
    const auto middle = static_cast<int32_t>(bits_of(place));
    for (int32_t i = -kNeighbours; i <= kNeighbours; ++i) {
      if (middle + i < 0) continue;
      const float x = float_of(static_cast<uint32_t>(middle + i));
      values.push_back(x);
      values.push_back(-x);
    }
  }
  for (const float x : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::max(),
                        std::numeric_limits<float>::denorm_min(), kNan}) {
    values.push_back(x);
    values.push_back(-x);
  }
  while (values.size() % kBlockUnits != 0) values.push_back(0.0f);
  return values;
}

struct Activations {
  std::vector<float> sigmoid, tanh;
};

// All gates of an LSTM see x; kept gates are sigmoid, sigmoid, tanh, sigmoid of it.
Activations through_lstm(const KernelTable& table, const std::vector<float>& x) {
  const auto n = static_cast<int64_t>(x.size());
  const GateLayout layout{n, 4};
  const RowBuffers gates(1, layout.columns()), c(1, n), h(1, n);
  for (int64_t i = 0; i < n; ++i) c[0][i] = 0.0f;
  for (int64_t b = 0; b < layout.blocks(); ++b) {
    for (int64_t s = 0; s < 4; ++s) {
      for (int64_t u = 0; u < kBlockUnits; ++u) {
        gates[0][layout.column(b) + s * kBlockUnits + u] =
            x[static_cast<size_t>(b * kBlockUnits + u)];
      }
    }
  }
  table.forward[static_cast<int>(CellKind::kLstm)]({layout, 1, 0, layout.blocks(), gates.rows(),
                                                    c.const_rows(), c.rows(), nullptr, h.rows(),
                                                    true});
  Activations found;
  for (int64_t i = 0; i < n; ++i) {
    const float* slot = gates[0].data() + layout.column(i / kBlockUnits) + i % kBlockUnits;
    found.sigmoid.push_back(slot[0]);
    found.tanh.push_back(slot[2 * kBlockUnits]);
    for (const int other : {1, 3}) {
      expect(bits_of(slot[other * kBlockUnits]) == bits_of(slot[0]), isa_name(table.isa),
             ": gates 0 and ", other, " of LSTM differ at ", x[static_cast<size_t>(i)]);
    }
  }
  return found;
}

std::vector<float> tanh_through_rnn(const KernelTable& table, const std::vector<float>& x) {
  const auto n = static_cast<int64_t>(x.size());
  const GateLayout layout{n, 1};
  const RowBuffers gates(1, layout.columns()), h(1, n);
  for (int64_t i = 0; i < n; ++i) gates[0][i] = x[static_cast<size_t>(i)];
  table.forward[static_cast<int>(CellKind::kRnnTanh)](
      {layout, 1, 0, layout.blocks(), gates.rows(), nullptr, nullptr, nullptr, h.rows(), false});
  return {h[0].data(), h[0].data() + n};
}

// Steps between floats at `truth`; the smallest such step where the result is no longer normal.
double ulp(double truth) {
  const int exponent = truth == 0.0 ? -126 : std::max(std::ilogb(truth), -126);
  return std::ldexp(1.0, exponent - 23);
}

void check_value(const KernelTable& table, const char* name, float x, float found, double truth) {
  if (std::isnan(x)) {
    expect(std::isnan(found), isa_name(table.isa), " ", name, "(NaN) must be NaN, got ", found);
    return;
  }
  expect_close(found, truth, 3.0 * ulp(truth), isa_name(table.isa), " ", name, "(", x, ")");
}

void check_sigmoid(const KernelTable& table, float x, float found, double truth) {
  const auto exactly = [&](float value) {
    expect(found == value && !std::signbit(found), isa_name(table.isa), " sigmoid(", x,
           ") must be exactly ", value, ", got ", found);
  };
  if (x > 17.4f) return exactly(1.0f);
  if (x < -88.4f) return exactly(0.0f);
  // The last 0.03 before that limit, where exp(-x) is already infinite: zero, or the subnormal
  // number that is right.
  if (x < -88.37f && found == 0.0f) return;
  check_value(table, "sigmoid", x, found, truth);
}

void check_tanh(const KernelTable& table, float x, float found, double truth) {
  if (!std::isnan(x))
    expect(std::signbit(found) == std::signbit(x), isa_name(table.isa), " tanh(", x,
           ") has the wrong sign: ", found);
  if (std::abs(x) > 9.1f) {
    expect(std::abs(found) == 1.0f, isa_name(table.isa), " |tanh(", x, ")| must be exactly 1, got ",
           found);
    return;
  }
  check_value(table, "tanh", x, found, truth);
}

void walk() {
  const std::vector<float> x = floats_to_walk();
  std::vector<double> sigmoid, tanh;
  for (const float value : x) {
    sigmoid.push_back(1.0 / (1.0 + std::exp(-static_cast<double>(value))));
    tanh.push_back(std::tanh(static_cast<double>(value)));
  }
  for (const KernelTable* table : tables()) {
    const Activations found = through_lstm(*table, x);
    const std::vector<float> rnn = tanh_through_rnn(*table, x);
    for (size_t i = 0; i < x.size(); ++i) {
      check_sigmoid(*table, x[i], found.sigmoid[i], sigmoid[i]);
      check_tanh(*table, x[i], found.tanh[i], tanh[i]);
      const bool same = bits_of(rnn[i]) == bits_of(found.tanh[i]) ||
                        (std::isnan(rnn[i]) && std::isnan(found.tanh[i]));
      expect(same, isa_name(table->isa), ": tanh(", x[i], ") is ", rnn[i], " in RNN and ",
             found.tanh[i], " in LSTM");
    }
  }
}

// A value's bits must not depend on the place in a vector, nor on whether that vector is whole.
void places() {
  Random random;
  for (const KernelTable* table : tables()) {
    for (int64_t hidden = 1; hidden <= 33; ++hidden) {
      const GateLayout layout{hidden, 1};
      const RowBuffers gates(1, layout.columns()), h(1, hidden);
      const float x = random.uniform(3.0f);
      for (int64_t i = 0; i < layout.columns(); ++i) gates[0][i] = x;
      table->forward[static_cast<int>(CellKind::kRnnTanh)]({layout, 1, 0, layout.blocks(),
                                                            gates.rows(), nullptr, nullptr, nullptr,
                                                            h.rows(), false});
      const float expected = tanh_through_rnn(*table, std::vector<float>(kBlockUnits, x))[0];
      for (int64_t u = 0; u < hidden; ++u) {
        expect(h[0][u] == expected, isa_name(table->isa), ": tanh(", x, ") at unit ", u, " of ",
               hidden, " is ", h[0][u], ", elsewhere ", expected);
      }
    }
  }
}

}  // namespace
}  // namespace rnnpack::check

int main() {
  rnnpack::check::walk();
  rnnpack::check::places();
  return rnnpack::check::report("test_activation");
}
