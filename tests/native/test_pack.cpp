// Packed weights: each weight lies where layout.h says and nowhere else, every other element is
// zero, for every cell and tail.
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

// Row kk of each panel of a group, then row kk + 1: the places of a matrix are all its elements,
// each once.
void check_places(const PanelMap& map, int64_t k) {
  std::vector<bool> taken(static_cast<size_t>(elements_of(map, k)), false);
  const int64_t rows = map.type == DType::kBFloat16 ? 2 : 1;  // that one stored row holds
  for (int64_t p = 0; p < map.count; ++p) {
    const int64_t group = p / map.group;
    const int64_t width = std::min<int64_t>(map.group, map.count - group * map.group);
    for (int64_t kk = 0; kk < k; ++kk) {
      const int64_t place = place_of(map, p, k, kk, 0);
      const int64_t lane =
          (group * map.group * ceil_div(k, rows) + kk / rows * width + p % map.group) * kPanel;
      expect(place == lane * rows + kk % rows, "panel ", p, " of ", map.count, ", row ", kk,
             " lies at ", place);
      for (int64_t j = 0; j < kPanel; ++j)
        taken[static_cast<size_t>(place_of(map, p, k, kk, j))] = true;
    }
  }
  for (int64_t p = 0; p < map.count && k % rows != 0; ++p) {
    for (int64_t j = 0; j < kPanel; ++j)  // what pads the last pair
      taken[static_cast<size_t>(place_of(map, p, k, k, j))] = true;
  }
  expect(std::all_of(taken.begin(), taken.end(), [](bool one) { return one; }), "a matrix of ",
         map.count, " panels, k ", k, " has holes");
}

// --- The kernels ---------------------------------------------------------------------------------

// Rows of a storage type, each in memory of its own, and the pointers to them that kernels take.
struct StoredRows {
  std::vector<Stored> buffers;
  std::vector<const void*> pointers;

  StoredRows(DType type, int64_t rows, int64_t width, Random& random) {
    for (int64_t i = 0; i < rows; ++i) {
      const Floats values(width);
      random.fill(values, 1.0f);
      buffers.emplace_back(type, values);
      pointers.push_back(buffers.back().data());
    }
  }
};

void check_kernels(const KernelTable& table, Conversion types, Random& random, int64_t k,
                   int32_t group) {
  // The first panel of a group: what lies beside its columns stays as it was.
  const PanelMap map = plain_panels(group * kPanel, group, types.to);
  const std::string text = std::string(isa_name(table.isa)) + ", " + type_name(types.from) +
                           " to " + type_name(types.to) + ", k " + std::to_string(k);
  const auto check = [&](const char* name, const Stored& packed, const auto& truth) {
    for (int64_t p = 0; p < map.count; ++p) {
      for (int64_t kk = 0; kk < k; ++kk) {
        for (int64_t j = 0; j < kPanel; ++j) {
          const float found = packed[place_of(map, p, k, kk, j)];
          expect(p > 0 ? std::isnan(found) : found == truth(kk, j), text, ", ", name, ", panel ", p,
                 " of ", group, ", row ", kk, ", column ", j, " is ", found);
        }
      }
    }
  };

  StoredRows source(types.from, kPanel, k, random);
  for (int64_t j = 0; j < kPanel; ++j) {
    if ((j + k) % 5 == 0) source.pointers[static_cast<size_t>(j)] = nullptr;
  }
  const Stored packed(types.to, elements_of(map, k));
  table.pack_rows[index(types.from)][index(types.to)](k, source.pointers.data(), packed.data(),
                                                      map.row_stride(0));
  check("pack_rows", packed, [&](int64_t kk, int64_t j) {
    const auto row = static_cast<size_t>(j);
    return source.pointers[row] == nullptr ? 0.0f : rounded(source.buffers[row][kk], types.to);
  });

  const int64_t columns = 1 + (k * 11) % 40;
  const StoredRows wide(types.from, k, columns, random);
  for (int64_t p = 0; p < ceil_div(columns, kPanel); ++p) {
    const Stored panel(types.to, elements_of(map, k));
    table.pack_columns[index(types.from)][index(types.to)](k, wide.pointers.data(), columns, p,
                                                           panel.data(), map.row_stride(0));
    check("pack_columns", panel, [&](int64_t kk, int64_t j) {
      const int64_t column = p * kPanel + j;
      return column < columns ? rounded(wide.buffers[static_cast<size_t>(kk)][column], types.to)
                              : 0.0f;
    });
  }
}

// A matrix in panels of its columns, made in shares.
void check_columns(const KernelTable& table, Conversion types, Random& random, int64_t k,
                   int64_t columns, int32_t group) {
  const PanelMap map = plain_panels(columns, group, types.to);
  const int64_t ld = columns + k % 3;
  const Floats values((k - 1) * ld + columns);
  random.fill(values, 1.0f);
  const Stored w(types.from, values);
  for (const int64_t parts : {1, 2, 5}) {
    const Stored packed(types.to, elements_of(map, k));
    for (int64_t i = 0; i < parts; ++i) {
      pack_columns_share(table, {w.data(), types.from, ld, k, columns}, types.to, group, parts, i,
                         packed.data());
    }
    for (int64_t p = 0; p < map.count; ++p) {
      for (int64_t kk = 0; kk < k; ++kk) {
        for (int64_t j = 0; j < kPanel; ++j) {
          const int64_t column = p * kPanel + j;
          const float found = packed[place_of(map, p, k, kk, j)];
          expect(found == (column < columns ? rounded(w[kk * ld + column], types.to) : 0.0f),
                 isa_name(table.isa), " pack_columns_share, ", k, " x ", columns, ", ", parts,
                 " parts: row ", kk, ", column ", column, " is ", found);
        }
      }
    }
  }
}

// --- Whole layers --------------------------------------------------------------------------------

// A matrix whose every element is another number; what lies between rows is NaN. In 16 bits whole
// numbers up to 125, which every type has exactly: neighbours differ.
struct Matrix {
  int64_t rows, columns, ld;
  Stored values;

  Matrix(DType type, bool sixteen_bits, int64_t row_count, int64_t column_count, int64_t gap,
         float first)
      : rows(row_count),
        columns(column_count),
        ld(column_count + gap),
        values(type, (row_count - 1) * ld + column_count) {
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < columns; ++c) {
        const float value = first + static_cast<float>(r * columns + c);
        values.set(r * ld + c, sixteen_bits ? std::fmod(value, 251.0f) - 125.0f : value);
      }
    }
  }
  float at(int64_t r, int64_t c) const { return values[r * ld + c]; }
};

// Puts a matrix where the map says; `column_of(row)` is the destination column of a row of it.
template <class ColumnOf>
void place(const PanelMap& map, int64_t k, const Matrix& matrix, ColumnOf column_of,
           const Stored& out) {
  for (int64_t r = 0; r < matrix.rows; ++r) {
    const int64_t column = column_of(r);
    for (int64_t p = 0; p < map.count; ++p) {
      if (column < map.column(p) || column >= map.column(p) + kPanel) continue;
      for (int64_t kk = 0; kk < k; ++kk)
        out.set(place_of(map, p, k, kk, column - map.column(p)), matrix.at(r, kk));
    }
  }
}

void check_layer(const KernelTable& table, CellKind kind, int64_t input, int64_t hidden,
                 int64_t projection, bool with_bias, int32_t ih_group = kGroup,
                 int32_t hh_group = kGroup, Conversion types = {DType::kFloat, DType::kFloat}) {
  const CellTraits& cell = traits(kind);
  const LayerShape shape{kind, input, hidden, projection, ih_group, hh_group, types.to};
  const int64_t gate_rows = cell.gates * hidden;
  const bool sixteen_bits = types.to != DType::kFloat;
  const Matrix ih(types.from, sixteen_bits, gate_rows, input, hidden % 3, 1.0f);
  const Matrix hh(types.from, sixteen_bits, gate_rows, shape.output(), input % 3, 1e6f);
  const Matrix hr(types.from, sixteen_bits, std::max<int64_t>(projection, 1), hidden, 1, 2e6f);
  const Matrix biases(DType::kFloat, false, 2, gate_rows, 0, 3e6f);

  // Row g * hidden + u of a gate matrix.
  const auto column_of = [&](const int* slot_of) {
    return [&, slot_of](int64_t r) {
      return expected_column(hidden, cell.slots, slot_of[r / hidden], r % hidden);
    };
  };
  const Floats bias(shape.gates().columns(), 0.0f);
  if (with_bias) {
    for (int64_t r = 0; r < gate_rows; ++r) {
      bias[column_of(cell.ih_slot)(r)] += biases.at(0, r);
      bias[column_of(cell.hh_slot)(r)] += biases.at(1, r);
    }
  }
  struct Part {
    int64_t offset;
    Stored expected;
  };
  std::vector<Part> parts;
  const auto add_part = [&](const PanelMap& map, int64_t k, int64_t offset, const Matrix& matrix,
                            const auto& column) {
    parts.push_back({offset, Stored(types.to, Floats(elements_of(map, k), 0.0f))});
    place(map, k, matrix, column, parts.back().expected);
  };
  add_part(shape.ih_panels(), input, shape.ih_offset(), ih, column_of(cell.ih_slot));
  add_part(shape.hh_panels(), shape.output(), shape.hh_offset(), hh, column_of(cell.hh_slot));
  if (projection > 0) {
    add_part(shape.hr_panels(), hidden, shape.hr_offset(), hr, [](int64_t r) { return r; });
  }

  LayerWeights weights{};
  weights.dtype = types.from;
  weights.weight_ih = ih.values.data();
  weights.weight_hh = hh.values.data();
  if (projection > 0) weights.weight_hr = hr.values.data();
  weights.ld_ih = ih.ld;
  weights.ld_hh = hh.ld;
  weights.ld_hr = hr.ld;
  const float* both = static_cast<const float*>(biases.values.data());
  if (with_bias) {
    weights.bias_ih = both;
    weights.bias_hh = both + gate_rows;
  }
  const Floats packed(shape.packed_bytes() / 4);
  pack_layer(table, shape, weights, packed.data());
  std::ostringstream text;
  text << isa_name(table.isa) << " " << cell_name(static_cast<int>(kind)) << ", " << input << " to "
       << hidden << " to " << projection << ", " << type_name(types.from) << " to "
       << type_name(types.to);
  for (int64_t i = 0; i < bias.size(); ++i) {
    expect(packed[i] == bias[i], text.str(), ": bias ", i, " must be ", bias[i], ", is ",
           packed[i]);
  }
  for (const Part& part : parts) {
    expect(part.offset % kCacheLine == 0, text.str(), ": a part starts at byte ", part.offset);
    expect(std::memcmp(reinterpret_cast<const char*>(packed.data()) + part.offset,
                       part.expected.data(),
                       static_cast<size_t>(part.expected.size() * size_of(types.to))) == 0,
           text.str(), ": the panels at byte ", part.offset, " are others");
  }
  for (const int64_t count : {2, 3, 7}) {
    const Floats shared(packed.size());
    for (int64_t i = 0; i < count; ++i) pack_share(table, shape, weights, count, i, shared.data());
    expect(shared.same_bits(packed), text.str(), ": ", count,
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
          const DType type = kAllTypes[hidden % kDTypes];
          check_places(gate_panels({hidden, cell.slots}, cell, slot_of, group, type),
                       1 + hidden % 4);
        }
      }
    }
    for (int32_t group = 1; group <= kGroup; ++group)
      check_places(plain_panels(hidden * 3, group, kAllTypes[group % kDTypes]), 3);
  }
  for (const KernelTable* table : tables()) {
    for (const Conversion types : kConversions) {
      for (int64_t k = 0; k <= 35; ++k)
        check_kernels(*table, types, random, k, static_cast<int32_t>(1 + k % kGroup));
      for (const int64_t k : {1, 63, 64, 65, 150}) {
        check_columns(*table, types, random, k, 1 + (k * 3) % 97,
                      static_cast<int32_t>(1 + k % kGroup));
      }
    }
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
    for (const Conversion types : kConversions) {
      for (const int64_t hidden : {1, 5, 33}) {
        for (int cell = 0; cell < kCellKinds; ++cell)
          check_layer(*table, static_cast<CellKind>(cell), 7, hidden, 0, true, 3, 2, types);
      }
      check_layer(*table, CellKind::kLstm, 9, 35, 21, true, kGroup, kGroup, types);
    }
  }
  return report("test_pack");
}
