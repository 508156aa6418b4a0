// The pointwise part of every cell on every ISA: forward against the equations in double, backward
// against their finite differences.
#include <array>

#include "check.h"

namespace rnnpack::check {
namespace {

// One unit of one row.
struct Unit {
  std::array<double, kMaxSlots> pre;  // pre-gates by slot
  double c_prev, h_prev;
};

struct States {
  double h, c;
  double hidden;                       // o * tanh(c)
  std::array<double, kMaxSlots> kept;  // what the backward pass reads
};

double sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }

// The equations as the comments of lstm.h, gru.h and rnn.h give them.
States equations(CellKind cell, const Unit& u) {
  switch (cell) {
    case CellKind::kLstm: {
      const double i = sigmoid(u.pre[0]), f = sigmoid(u.pre[1]), g = std::tanh(u.pre[2]),
                   o = sigmoid(u.pre[3]);
      const double c = f * u.c_prev + i * g;
      return {o * std::tanh(c), c, o * std::tanh(c), {i, f, g, o}};
    }
    case CellKind::kGru: {
      const double r = sigmoid(u.pre[0]), z = sigmoid(u.pre[1]),
                   n = std::tanh(u.pre[3] + r * u.pre[2]);
      return {n + z * (u.h_prev - n), 0.0, 0.0, {r, z, u.pre[2], n}};
    }
    case CellKind::kRnnTanh: return {std::tanh(u.pre[0]), 0.0, 0.0, {std::tanh(u.pre[0])}};
    case CellKind::kRnnRelu: return {std::max(u.pre[0], 0.0), 0.0, 0.0, {std::max(u.pre[0], 0.0)}};
  }
  return {};
}

// Derivative of dh * h + dc * c by one of the unit's numbers: central differences, right to about
// 1e-9 in double.
template <class Number>
double slope(CellKind cell, const Unit& unit, double dh, double dc, Number number) {
  constexpr double kStep = 1e-6;
  const auto value = [&](double step) {
    Unit moved = unit;
    number(moved) += step;
    const States states = equations(cell, moved);
    return dh * states.h + dc * states.c;
  };
  return (value(kStep) - value(-kStep)) / (2 * kStep);
}

// Buffers of one call, each row its own and of the size that cell.h asks for; NaN wherever the call
// may not look.
struct Buffers {
  CellKind cell;
  const CellTraits& traits;
  GateLayout layout;
  int64_t rows;
  RowBuffers gates, c_prev, c, h_prev, h, dh, dc, dgates, grad_output, hidden;
  std::vector<std::vector<Unit>> units;

  Buffers(CellKind kind, int64_t size, int64_t row_count, Random& random)
      : cell(kind),
        traits(rnnpack::traits(kind)),
        layout{size, traits.slots},
        rows(row_count),
        gates(rows, layout.columns()),
        c_prev(rows, layout.blocks() * kBlockUnits),
        c(rows, layout.blocks() * kBlockUnits),
        h_prev(rows, size),
        h(rows, size),
        dh(rows, layout.blocks() * kBlockUnits),
        dc(rows, layout.blocks() * kBlockUnits),
        dgates(rows, size * traits.slots),
        grad_output(rows, size),
        hidden(rows, size) {
    for (int64_t row = 0; row < rows; ++row) {
      units.emplace_back();
      for (int64_t u = 0; u < size; ++u) {
        Unit unit{};
        for (int s = 0; s < traits.slots; ++s) {
          gate(row, s, u) = random.uniform(3.0f);
          unit.pre[static_cast<size_t>(s)] = gate(row, s, u);
        }
        h_prev[row][u] = random.uniform(1.0f);
        unit.h_prev = h_prev[row][u];
        c_prev[row][u] = random.uniform(2.0f);
        unit.c_prev = c_prev[row][u];
        dh[row][u] = random.uniform(1.0f);
        dc[row][u] = random.uniform(1.0f);
        grad_output[row][u] = random.uniform(1.0f);
        units.back().push_back(unit);
      }
    }
  }

  float& gate(int64_t row, int slot, int64_t unit) const {
    const int64_t block = unit / kBlockUnits;
    return gates[row]
                [layout.column(block) + slot * layout.stored_units(block) + unit % kBlockUnits];
  }

  // c may be c_prev itself.
  CellForward forward(int64_t first, int64_t last, bool keep, bool in_place) const {
    const bool has_c = traits.has_cell_state;
    return {layout,
            rows,
            first,
            last,
            gates.rows(),
            has_c ? c_prev.const_rows() : nullptr,
            has_c ? (in_place ? c_prev.rows() : c.rows()) : nullptr,
            h_prev.const_rows(),
            h.rows(),
            keep};
  }

  CellBackward backward(int64_t first, int64_t last, bool with_grad_output,
                        bool with_hidden) const {
    const bool has_c = traits.has_cell_state;
    return {layout,
            rows,
            first,
            last,
            gates.const_rows(),
            has_c ? c_prev.const_rows() : nullptr,
            has_c ? c.const_rows() : nullptr,
            h_prev.const_rows(),
            with_grad_output ? grad_output.const_rows() : nullptr,
            dh.rows(),
            has_c ? dc.rows() : nullptr,
            dgates.rows(),
            with_hidden ? hidden.rows() : nullptr};
  }
};

// Activations are right to 3 ulp, and each of the few operations around them rounds once: 16 eps of
// the largest operand holds them all.
constexpr double kBound = 16 * kEps;

void check_forward(const KernelTable& table, const Buffers& b, bool keep, bool in_place) {
  const int kind = static_cast<int>(b.cell);
  table.forward[kind](b.forward(0, b.layout.blocks(), keep, in_place));
  for (int64_t row = 0; row < b.rows; ++row) {
    for (int64_t u = 0; u < b.layout.hidden; ++u) {
      const Unit& unit = b.units[static_cast<size_t>(row)][static_cast<size_t>(u)];
      const States truth = equations(b.cell, unit);
      const double bound = kBound * (1 + std::abs(unit.c_prev));
      std::ostringstream text;
      text << isa_name(table.isa) << " " << cell_name(kind) << ", unit " << u << " of "
           << b.layout.hidden << ", row " << row;
      expect_close(b.h[row][u], truth.h, bound, text.str(), ": h");
      if (b.traits.has_cell_state)
        expect_close((in_place ? b.c_prev : b.c)[row][u], truth.c, bound, text.str(), ": c");
      for (int s = 0; keep && s < b.traits.slots; ++s) {
        expect_close(b.gate(row, s, u), truth.kept[static_cast<size_t>(s)], bound, text.str(),
                     ": kept slot ", s);
      }
    }
  }
}

void check_backward(const KernelTable& table, const Buffers& b, bool with_grad_output,
                    bool with_hidden) {
  const int kind = static_cast<int>(b.cell);
  table.forward[kind](b.forward(0, b.layout.blocks(), true, false));
  std::vector<std::vector<std::pair<double, double>>> from_later;  // dh, dc
  for (int64_t row = 0; row < b.rows; ++row) {
    from_later.emplace_back();
    for (int64_t u = 0; u < b.layout.hidden; ++u) {
      from_later.back().emplace_back(
          b.dh[row][u] + (with_grad_output ? static_cast<double>(b.grad_output[row][u]) : 0.0),
          b.dc[row][u]);
    }
  }
  table.backward[kind](b.backward(0, b.layout.blocks(), with_grad_output, with_hidden));
  for (int64_t row = 0; row < b.rows; ++row) {
    for (int64_t u = 0; u < b.layout.hidden; ++u) {
      const Unit& unit = b.units[static_cast<size_t>(row)][static_cast<size_t>(u)];
      const auto [dh, dc] = from_later[static_cast<size_t>(row)][static_cast<size_t>(u)];
      const double bound = kBound * (1 + std::abs(unit.c_prev)) * (1 + std::abs(dh) + std::abs(dc));
      std::ostringstream text;
      text << isa_name(table.isa) << " " << cell_name(kind) << " backward, unit " << u << " of "
           << b.layout.hidden << ", row " << row;
      for (int s = 0; s < b.traits.slots; ++s) {
        const double truth = slope(b.cell, unit, dh, dc, [s](Unit& moved) -> double& {
          return moved.pre[static_cast<size_t>(s)];
        });
        expect_close(b.dgates[row][s * b.layout.hidden + u], truth, bound, text.str(),
                     ": dgates of slot ", s);
      }
      // What reaches h_prev past the gates.
      const double dh_prev =
          slope(b.cell, unit, dh, dc, [](Unit& moved) -> double& { return moved.h_prev; });
      expect_close(b.dh[row][u], dh_prev, bound, text.str(), ": dh");
      if (b.traits.has_cell_state) {
        const double dc_prev =
            slope(b.cell, unit, dh, dc, [](Unit& moved) -> double& { return moved.c_prev; });
        expect_close(b.dc[row][u], dc_prev, bound, text.str(), ": dc");
        if (with_hidden) {
          expect_close(b.hidden[row][u], equations(b.cell, unit).hidden, bound, text.str(),
                       ": hidden");
        } else {
          expect(std::isnan(b.hidden[row][u]), text.str(),
                 ": hidden was written without being asked for");
        }
      }
    }
  }
}

// Block by block gives the bits of all blocks at once; a call writes nothing of other blocks.
void check_ranges(const KernelTable& table, CellKind cell, int64_t hidden) {
  Random one, other;
  const Buffers whole(cell, hidden, 3, one), parts(cell, hidden, 3, other);
  const int kind = static_cast<int>(cell);
  const int64_t blocks = whole.layout.blocks();
  const auto same = [&](const char* what, const RowBuffers& a, const RowBuffers& b) {
    for (int64_t row = 0; row < 3; ++row) {
      for (int64_t i = 0; i < a[row].size(); ++i) {
        const bool equal = bits_of(a[row][i]) == bits_of(b[row][i]) ||
                           (std::isnan(a[row][i]) && std::isnan(b[row][i]));
        expect(equal, isa_name(table.isa), " ", cell_name(kind), ", hidden ", hidden, ": ", what,
               " differs at ", i, " of row ", row);
      }
    }
  };
  table.forward[kind](whole.forward(0, blocks, true, false));
  for (int64_t b = blocks - 1; b >= 0; --b) {
    table.forward[kind](parts.forward(b, b + 1, true, false));
    for (int64_t u = 0; u < b * kBlockUnits; ++u) {
      expect(std::isnan(parts.h[0][u]), isa_name(table.isa), " ", cell_name(kind), ": block ", b,
             " wrote unit ", u);
    }
  }
  same("h", whole.h, parts.h);
  same("c", whole.c, parts.c);
  same("gates", whole.gates, parts.gates);
  table.backward[kind](whole.backward(0, blocks, true, true));
  for (int64_t b = 0; b < blocks; ++b) table.backward[kind](parts.backward(b, b + 1, true, true));
  same("dgates", whole.dgates, parts.dgates);
  same("dh", whole.dh, parts.dh);
  same("dc", whole.dc, parts.dc);
}

}  // namespace
}  // namespace rnnpack::check

int main() {
  using namespace rnnpack;
  using namespace rnnpack::check;
  Random random;
  for (const KernelTable* table : tables()) {
    for (int kind = 0; kind < kCellKinds; ++kind) {
      const auto cell = static_cast<CellKind>(kind);
      for (int64_t hidden = 1; hidden <= 50; hidden += hidden < 35 ? 1 : 5) {
        const int64_t rows = 1 + hidden % 3;
        const bool odd = hidden % 2 == 1;
        check_forward(*table, Buffers(cell, hidden, rows, random), odd, !odd);
        check_forward(*table, Buffers(cell, hidden, rows, random), !odd, !odd);
        check_backward(*table, Buffers(cell, hidden, rows, random), odd, odd);
        check_backward(*table, Buffers(cell, hidden, rows, random), !odd, odd);
        check_ranges(*table, cell, hidden);
      }
    }
  }
  return report("test_cell");
}
