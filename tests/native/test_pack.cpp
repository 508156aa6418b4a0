// Packed weights: each weight lies where layout.h says and nowhere else, every other float is zero,
// for every cell and tail.
#include <algorithm>
#include <set>

#include "check.h"
#include "engine/engine.h"
#include "engine/packing.h"

namespace rnnpack::check {
namespace {

// --- The layout itself ---------------------------------------------------------------------------

// Column of a unit's slot: blocks of 16 units, each with its slots one after another; the last one
// narrower.
int64_t expected_column(int64_t hidden, int slots, int slot, int64_t unit) {
  const int64_t block = unit / 16;
  const int64_t stored = std::min<int64_t>(16, (hidden - block * 16 + 3) / 4 * 4);
  return block * 16 * slots + slot * stored + unit % 16;
}

void check_layout(int64_t hidden, int slots) {
  const GateLayout layout{hidden, slots};
  std::set<int64_t> taken;
  int64_t units = 0;
  for (int64_t b = 0; b < layout.blocks(); ++b) {
    units += layout.units(b);
    expect(layout.stored_units(b) % 4 == 0 && layout.stored_units(b) >= layout.units(b), "hidden ",
           hidden, ": block ", b, " stores ", layout.stored_units(b), " units");
    for (int slot = 0; slot < slots; ++slot) {
      for (int64_t u = 0; u < layout.units(b); ++u) {
        const int64_t column = layout.column(b) + slot * layout.stored_units(b) + u;
        taken.insert(column);
        expect(column == expected_column(hidden, slots, slot, b * kBlockUnits + u) &&
                   column < layout.columns(),
               "hidden ", hidden, ", slots ", slots, ": slot ", slot, " of unit ",
               b * kBlockUnits + u, " lies in column ", column);
      }
    }
  }
  expect(units == hidden && static_cast<int64_t>(taken.size()) == hidden * slots, "hidden ", hidden,
         ": ", units, " units, ", taken.size(), " columns");
  expect(layout.columns() % kPanel == 0, "hidden ", hidden, ": ", layout.columns(),
         " columns are no whole panels");
}

// Panels cover the columns of slots with a gate, each once, and blocks own neighbouring panels.
void check_panels(int64_t hidden, const CellTraits& cell, const int* slot_of, int32_t group) {
  const GateLayout layout{hidden, cell.slots};
  const PanelMap map = gate_panels(layout, cell, slot_of, group);
  expect(map.group >= 1 && map.group <= group, "hidden ", hidden, ": groups of ", map.group,
         " panels, at most ", group, " were asked for");
  std::set<int64_t> covered;
  for (int64_t p = 0; p < map.count; ++p) {
    for (int64_t j = 0; j < kPanel; ++j) {
      expect(covered.insert(map.column(p) + j).second, "hidden ", hidden, ": column ",
             map.column(p) + j, " is in two panels");
    }
    expect(map.column(p) + kPanel <= layout.columns(), "hidden ", hidden, ": panel ", p,
           " ends past the last column");
  }
  for (int g = 0; g < cell.gates; ++g) {
    for (int64_t u = 0; u < hidden; ++u) {
      expect(covered.count(expected_column(hidden, cell.slots, slot_of[g], u)) == 1, "hidden ",
             hidden, ": gate ", g, " of unit ", u, " is in no panel");
    }
  }
  expect(map.first_panel(0) == 0 && map.first_panel(layout.blocks()) == map.count, "hidden ",
         hidden, ": blocks do not own all panels");
  for (int64_t b = 0; b < layout.blocks(); ++b) {
    for (int64_t p = map.first_panel(b); p < map.first_panel(b + 1); ++p) {
      expect(map.column(p) >= layout.column(b) &&
                 map.column(p) < layout.column(b) + layout.block_columns(b),
             "hidden ", hidden, ": panel ", p, " is not within its block ", b);
    }
  }
}

// Row kk of each panel of a group, then row kk + 1: the places of a matrix are all its floats, each
// once.
void check_places(const PanelMap& map, int64_t k) {
  std::vector<bool> taken(static_cast<size_t>(map.floats(k)), false);
  for (int64_t p = 0; p < map.count; ++p) {
    const int64_t group = p / map.group;
    const int64_t width = std::min<int64_t>(map.group, map.count - group * map.group);
    for (int64_t kk = 0; kk < k; ++kk) {
      const int64_t place = map.offset_of(p, k) + kk * map.row_stride(p);
      expect(place == (group * map.group * k + kk * width + p % map.group) * kPanel, "panel ", p,
             " of ", map.count, ", row ", kk, " lies at ", place);
      for (int64_t j = 0; j < kPanel; ++j) taken[static_cast<size_t>(place + j)] = true;
    }
  }
  expect(std::all_of(taken.begin(), taken.end(), [](bool one) { return one; }), "a matrix of ",
         map.count, " panels, k ", k, " has holes");
}

// --- The kernels ---------------------------------------------------------------------------------

void check_kernels(const KernelTable& table, Random& random, int64_t k, int64_t row_stride) {
  const int64_t floats = k == 0 ? 0 : (k - 1) * row_stride + kPanel;
  const RowBuffers source(kPanel, k);
  const float* rows[kPanel];
  for (int64_t j = 0; j < kPanel; ++j) {
    random.fill(source[j], 1.0f);
    rows[j] = (j + k) % 5 == 0 ? nullptr : source[j].data();
  }
  const Floats packed(floats);
  table.pack_rows(k, rows, packed.data(), row_stride);
  for (int64_t i = 0; i < floats; ++i) {
    const int64_t kk = i / row_stride, j = i % row_stride;
    const bool right = j >= kPanel ? std::isnan(packed[i])
                                   : packed[i] == (rows[j] == nullptr ? 0.0f : rows[j][kk]);
    expect(right, isa_name(table.isa), " pack_rows, k ", k, ", stride ", row_stride, ": row ", kk,
           ", column ", j, " is ", packed[i]);
  }

  const int64_t columns = 1 + (k * 11) % 40;
  const RowBuffers wide(k, columns);
  for (int64_t kk = 0; kk < k; ++kk) random.fill(wide[kk], 1.0f);
  for (int64_t p = 0; p < ceil_div(columns, kPanel); ++p) {
    const Floats panel(floats);
    table.pack_columns(k, wide.const_rows(), columns, p, panel.data(), row_stride);
    for (int64_t i = 0; i < floats; ++i) {
      const int64_t kk = i / row_stride, j = i % row_stride, column = p * kPanel + j;
      const bool right = j >= kPanel ? std::isnan(panel[i])
                                     : panel[i] == (column < columns ? wide[kk][column] : 0.0f);
      expect(right, isa_name(table.isa), " pack_columns, k ", k, ", panel ", p, " of ", columns,
             " columns, stride ", row_stride, ": row ", kk, ", column ", j, " is ", panel[i]);
    }
  }
}

// A matrix in panels of its columns, made in shares.
void check_columns(const KernelTable& table, Random& random, int64_t k, int64_t columns,
                   int32_t group) {
  const PanelMap map = plain_panels(columns, group);
  const int64_t ld = columns + k % 3;
  const Floats w((k - 1) * ld + columns);
  random.fill(w, 1.0f);
  for (const int64_t parts : {1, 2, 5}) {
    const Floats packed(map.floats(k));
    for (int64_t i = 0; i < parts; ++i)
      pack_columns_share(table, w.data(), ld, k, columns, group, parts, i, packed.data());
    for (int64_t p = 0; p < map.count; ++p) {
      for (int64_t kk = 0; kk < k; ++kk) {
        for (int64_t j = 0; j < kPanel; ++j) {
          const int64_t column = p * kPanel + j;
          const float found = packed[map.offset_of(p, k) + kk * map.row_stride(p) + j];
          expect(found == (column < columns ? w[kk * ld + column] : 0.0f), isa_name(table.isa),
                 " pack_columns_share, ", k, " x ", columns, ", ", parts, " parts: row ", kk,
                 ", column ", column, " is ", found);
        }
      }
    }
  }
}

// --- Whole layers --------------------------------------------------------------------------------

// A matrix whose every element is another number; what lies between rows is NaN.
struct Matrix {
  int64_t rows, columns, ld;
  Floats floats;

  Matrix(int64_t row_count, int64_t column_count, int64_t gap, float first)
      : rows(row_count),
        columns(column_count),
        ld(column_count + gap),
        floats((row_count - 1) * ld + column_count) {
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < columns; ++c)
        floats[r * ld + c] = first + static_cast<float>(r * columns + c);
    }
  }
  float at(int64_t r, int64_t c) const { return floats[r * ld + c]; }
};

// Puts a matrix where the map says; `column_of(row)` is the destination column of a row of it.
template <class ColumnOf>
void place(const PanelMap& map, int64_t k, const Matrix& matrix, ColumnOf column_of, float* out) {
  for (int64_t r = 0; r < matrix.rows; ++r) {
    const int64_t column = column_of(r);
    for (int64_t p = 0; p < map.count; ++p) {
      if (column < map.column(p) || column >= map.column(p) + kPanel) continue;
      for (int64_t kk = 0; kk < k; ++kk)
        out[map.offset_of(p, k) + kk * map.row_stride(p) + column - map.column(p)] =
            matrix.at(r, kk);
    }
  }
}

void check_layer(const KernelTable& table, CellKind kind, int64_t input, int64_t hidden,
                 int64_t projection, bool with_bias, int32_t ih_group = kGroup,
                 int32_t hh_group = kGroup) {
  const CellTraits& cell = traits(kind);
  const LayerShape shape{kind, input, hidden, projection, ih_group, hh_group};
  const int64_t gate_rows = cell.gates * hidden;
  const Matrix ih(gate_rows, input, hidden % 3, 1.0f);
  const Matrix hh(gate_rows, shape.output(), input % 3, 1e6f);
  const Matrix hr(std::max<int64_t>(projection, 1), hidden, 1, 2e6f);
  const Matrix biases(2, gate_rows, 0, 3e6f);

  // Row g * hidden + u of a gate matrix.
  const auto column_of = [&](const int* slot_of) {
    return [&, slot_of](int64_t r) {
      return expected_column(hidden, cell.slots, slot_of[r / hidden], r % hidden);
    };
  };
  const Floats expected(shape.packed_floats(), 0.0f);
  if (with_bias) {
    for (int64_t r = 0; r < gate_rows; ++r) {
      expected[column_of(cell.ih_slot)(r)] += biases.at(0, r);
      expected[column_of(cell.hh_slot)(r)] += biases.at(1, r);
    }
  }
  place(shape.ih_panels(), input, ih, column_of(cell.ih_slot), expected.data() + shape.ih_offset());
  place(shape.hh_panels(), shape.output(), hh, column_of(cell.hh_slot),
        expected.data() + shape.hh_offset());
  if (projection > 0) {
    place(shape.hr_panels(), hidden, hr, [](int64_t r) { return r; },
          expected.data() + shape.hr_offset());
  }

  const float* bias_ih = with_bias ? biases.floats.data() : nullptr;
  const float* bias_hh = with_bias ? biases.floats.data() + gate_rows : nullptr;
  const LayerWeights weights{nullptr,
                             ih.floats.data(),
                             hh.floats.data(),
                             projection > 0 ? hr.floats.data() : nullptr,
                             ih.ld,
                             hh.ld,
                             hr.ld,
                             bias_ih,
                             bias_hh};
  const Floats packed(shape.packed_floats());
  pack_layer(table, shape, weights, packed.data());
  std::ostringstream text;
  text << isa_name(table.isa) << " " << cell_name(static_cast<int>(kind)) << ", " << input << " to "
       << hidden << " to " << projection;
  for (int64_t i = 0; i < packed.size(); ++i) {
    expect(packed[i] == expected[i], text.str(), ": float ", i, " must be ", expected[i], ", is ",
           packed[i], " (parts at ", shape.ih_offset(), ", ", shape.hh_offset(), ", ",
           shape.hr_offset(), ")");
  }
  for (const int64_t parts : {2, 3, 7}) {
    const Floats shared(shape.packed_floats());
    for (int64_t i = 0; i < parts; ++i) pack_share(table, shape, weights, parts, i, shared.data());
    expect(shared.same_bits(packed), text.str(), ": ", parts,
           " parts give another packed layer than one");
  }
}

}  // namespace
}  // namespace rnnpack::check

int main() {
  using namespace rnnpack;
  using namespace rnnpack::check;
  Random random;
  for (int64_t hidden = 1; hidden <= 49; ++hidden) {
    for (const CellTraits& cell : kCellTraits) {
      check_layout(hidden, cell.slots);
      for (const int* slot_of : {cell.ih_slot, cell.hh_slot}) {
        for (int32_t group = 1; group <= kGroup; ++group) {
          check_panels(hidden, cell, slot_of, group);
          check_places(gate_panels({hidden, cell.slots}, cell, slot_of, group), 1 + hidden % 4);
        }
      }
    }
    for (int32_t group = 1; group <= kGroup; ++group)
      check_places(plain_panels(hidden * 3, group), 3);
  }
  for (const KernelTable* table : tables()) {
    for (int64_t k = 0; k <= 35; ++k) check_kernels(*table, random, k, kPanel * (1 + k % 4));
    for (const int64_t k : {1, 63, 64, 65, 150})
      check_columns(*table, random, k, 1 + (k * 3) % 97, static_cast<int32_t>(1 + k % kGroup));
    for (int64_t hidden = 1; hidden <= 33; ++hidden) {
      for (int cell = 0; cell < kCellKinds; ++cell) {
        check_layer(*table, static_cast<CellKind>(cell), 1 + (hidden * 5) % 19, hidden, 0,
                    hidden % 4 != 0);
      }
      if (hidden > 1)
        check_layer(*table, CellKind::kLstm, hidden % 5, hidden, 1 + hidden % (hidden - 1), true);
    }
    for (int32_t group = 1; group <= kGroup; ++group) {
      check_layer(*table, CellKind::kLstm, 50, 67, 35, true, group, kGroup + 1 - group);
      check_layer(*table, CellKind::kGru, 17, 75, 0, true, group, kGroup + 1 - group);
    }
  }
  return report("test_pack");
}
