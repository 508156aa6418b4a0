// Products with packed panels: every tile of every ISA against double, and bits that depend on
// neither tile, batch nor range.
#include <algorithm>

#include "check.h"

namespace rnnpack::check {
namespace {

constexpr float kSentinel = 12345.0f;

// One output and what a sum in any order may differ from it by: half an ulp for each of k products
// and k sums, and the start.
struct Sum {
  double value;
  double bound;
};

template <class Weight>
Sum exact_sum(double start, int64_t k, const float* a, Weight weight) {
  double value = start, magnitude = std::abs(start);
  for (int64_t kk = 0; kk < k; ++kk) {
    const double product = static_cast<double>(a[kk]) * weight(kk);
    value += product;
    magnitude += std::abs(product);
  }
  return {value, kEps * static_cast<double>(k + 1) * magnitude};
}

// A tile at given columns of rows that hold other things, too, from row first_k of its panels on;
// `wider` panels lie in its group beyond its own.
void check_tile(const KernelTable& table, DType type, Random& random, int rows, int panels,
                int64_t first_k, int64_t k, int wider, bool with_bias) {
  const PanelMap map = plain_panels((panels + wider) * kPanel, panels + wider, type);
  const Floats values(elements_of(map, k));
  random.fill(values, 1.0f);
  const Stored b(type, values);
  const RowBuffers a(rows, first_k + k);
  for (int i = 0; i < rows; ++i) {
    for (int64_t kk = first_k; kk < first_k + k; ++kk) a[i][kk] = random.uniform(1.0f);
  }

  // Columns neither in order nor side by side.
  Tile tile{.first_k = first_k,
            .k = k,
            .a = nullptr,
            .b = nullptr,
            .b_stride = map.row_stride(0),
            .panels = panels,
            .columns = {},
            .bias = nullptr,
            .c = nullptr};
  for (int p = 0; p < panels; ++p) tile.columns[p] = (panels - 1 - p) * (kPanel + 3) + 5;
  const int64_t* const columns = tile.columns;
  const int64_t width = columns[0] + kPanel;
  const Floats bias(width);
  random.fill(bias, 1.0f);
  const RowBuffers c(rows, width);
  std::vector<std::vector<float>> start;
  for (int i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < width; ++j) c[i][j] = kSentinel;
    for (int p = 0; p < panels; ++p) {
      for (int64_t j = 0; j < kPanel; ++j)
        c[i][columns[p] + j] = with_bias ? kNan : random.uniform(1.0f);
    }
    start.emplace_back(c[i].data(), c[i].data() + width);
  }

  tile.a = a.const_rows();
  tile.b = b.data();
  tile.bias = with_bias ? bias.data() : nullptr;
  tile.c = c.rows();
  table.gemm[index(type)].tile[rows - 1][panels - 1](tile);

  for (int i = 0; i < rows; ++i) {
    std::vector<bool> written(static_cast<size_t>(width), false);
    for (int p = 0; p < panels; ++p) {
      for (int64_t j = 0; j < kPanel; ++j) {
        const int64_t column = columns[p] + j;
        written[static_cast<size_t>(column)] = true;
        const double from =
            with_bias ? bias[column] : start[static_cast<size_t>(i)][static_cast<size_t>(column)];
        const Sum sum = exact_sum(from, k, a[i].data() + first_k,
                                  [&](int64_t kk) { return b[place_of(map, p, k, kk, j)]; });
        expect_close(c[i][column], sum.value, sum.bound, isa_name(table.isa), " tile ", rows, " x ",
                     panels, ", k ", k, ", row ", i, ", column ", column);
      }
    }
    for (int64_t j = 0; j < width; ++j) {
      expect(written[static_cast<size_t>(j)] || c[i][j] == kSentinel, isa_name(table.isa), " tile ",
             rows, " x ", panels, " wrote to column ", j, ", which is not its own");
    }
  }
}

void tiles() {
  Random random;
  for (const KernelTable* table : tables()) {
    for (const DType type : kAllTypes) {
      const GemmKernels& gemm = table->gemm[index(type)];
      expect(gemm.max_rows >= 1 && gemm.max_rows <= kMaxTileRows, "max_rows is ", gemm.max_rows);
      for (int rows = 1; rows <= gemm.max_rows; ++rows) {
        const int most = gemm.panels[rows - 1];
        expect(most >= 1 && most <= kMaxTilePanels, isa_name(table->isa), ": tiles of ", rows,
               " rows have ", most, " panels");
        for (int panels = 1; panels <= most; ++panels) {
          for (const int64_t k : {0, 1, 2, 3, 7, 16, 33, 150}) {
            check_tile(*table, type, random, rows, panels, 0, k, static_cast<int>(k % 3),
                       k % 2 == 0);
            check_tile(*table, type, random, rows, panels, 1 + k % 6, k, 0, k % 2 == 1);
          }
        }
      }
    }
  }
}

std::string describe(const KernelTable& table, int64_t rows, int64_t k, int64_t panels) {
  std::ostringstream text;
  text << isa_name(table.isa) << ", " << rows << " rows, k " << k << ", " << panels << " panels";
  return text.str();
}

// All panels of a matrix for all rows: against double, then the same bits row by row and range by
// range.
void check_product(const KernelTable& table, DType type, Random& random, const PanelMap& map,
                   int64_t width, int64_t rows, int64_t k) {
  const GemmKernels& gemm = table.gemm[index(type)];
  const Floats values(elements_of(map, k));
  random.fill(values, 1.0f);
  const Stored b(type, values);
  const Floats bias(width);
  random.fill(bias, 1.0f);
  const Floats zeros(width, 0.0f);
  const RowBuffers a(rows, k), whole(rows, width), alone(rows, width), ranges(rows, width),
      backwards(rows, width), product(rows, width), added(rows, width);
  for (int64_t i = 0; i < rows; ++i) random.fill(a[i], 1.0f);

  multiply(gemm, {rows, k, a.const_rows(), b.data(), map, 0, map.count, bias.data(), whole.rows()});
  for (int64_t i = 0; i < rows; ++i) {
    multiply(gemm, {1, k, a.const_rows() + i, b.data(), map, 0, map.count, bias.data(),
                    alone.rows() + i});
  }
  for (int64_t first = 0; first < map.count;) {
    const int64_t last = std::min(first + 1 + first % 3, map.count);
    multiply(gemm,
             {rows, k, a.const_rows(), b.data(), map, first, last, bias.data(), ranges.rows()});
    first = last;
  }
  multiply(gemm, {rows, k, a.const_rows(), b.data(), map, 0, map.count, bias.data(),
                  backwards.rows(), true});
  multiply(gemm,
           {rows, k, a.const_rows(), b.data(), map, 0, map.count, zeros.data(), product.rows()});
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < width; ++j) added[i][j] = bias[j];
  }
  multiply(gemm, {rows, k, a.const_rows(), b.data(), map, 0, map.count, nullptr, added.rows()});

  const std::string text = describe(table, rows, k, map.count) + ", " + type_name(type);
  std::vector<bool> covered(static_cast<size_t>(width), false);
  for (int64_t p = 0; p < map.count; ++p) {
    for (int64_t j = 0; j < kPanel; ++j) {
      const int64_t column = map.column(p) + j;
      covered[static_cast<size_t>(column)] = true;
      for (int64_t i = 0; i < rows; ++i) {
        const Sum sum = exact_sum(bias[column], k, a[i].data(),
                                  [&](int64_t kk) { return b[place_of(map, p, k, kk, j)]; });
        expect_close(whole[i][column], sum.value, sum.bound, text, ", row ", i, ", column ",
                     column);
        // Of a longer product the parts are added one by one.
        expect(k > kLongestSum || added[i][column] == bias[column] + product[i][column], text,
               ": without a bias the sum from zero must be added to c");
      }
    }
  }
  for (int64_t i = 0; i < rows; ++i) {
    expect(whole[i].same_bits(alone[i]), text, ": row ", i,
           " has other bits alone than among the others");
    expect(whole[i].same_bits(ranges[i]), text, ": row ", i,
           " has other bits when panels are taken range by range");
    expect(whole[i].same_bits(backwards[i]), text, ": row ", i,
           " has other bits when groups are taken backwards");
    for (int64_t j = 0; j < width; ++j) {
      expect(covered[static_cast<size_t>(j)] || std::isnan(whole[i][j]), text, " wrote to column ",
             j, ", which has no panel");
    }
  }
}

void products() {
  Random random;
  for (const KernelTable* table : tables()) {
    for (int64_t rows = 1; rows <= 2 * table->gemm[0].max_rows + 1; ++rows) {
      const DType type = kAllTypes[rows % kDTypes];
      const auto group = static_cast<int32_t>(1 + rows % kGroup);
      for (int cell = 0; cell < kCellKinds; ++cell) {
        const CellTraits& traits = kCellTraits[cell];
        const GateLayout layout{5 + 7 * (rows % 6), traits.slots};
        const int* slot_of = rows % 2 == 0 ? traits.ih_slot : traits.hh_slot;
        check_product(*table, type, random, gate_panels(layout, traits, slot_of, group, type),
                      layout.columns(), rows, 2 * rows - 1);
      }
      for (const DType each : kAllTypes) {
        check_product(*table, each, random, plain_panels(7 * rows, group, each),
                      round_up(7 * rows, kPanel), rows, rows % 4);
      }
    }
    for (const int64_t k :
         {kLongestSum - 1, kLongestSum, kLongestSum + 1, 2 * kLongestSum, 2 * kLongestSum + 3}) {
      for (const DType type : kAllTypes)
        check_product(*table, type, random, plain_panels(150, kGroup, type), 160,
                      2 * table->gemm[0].max_rows + 1, k);
      check_product(*table, DType::kFloat, random, plain_panels(17, 3), 32, 1, k);
    }
    multiply(table->gemm[0], {0, 5, nullptr, nullptr, plain_panels(16), 0, 1, nullptr,
                              nullptr});  // no rows: nothing is read
  }
}

// A product of one or two rows and, beside it, all or a part of a product of many: each has the
// bits that it has alone. k of either may be short, long or many sums; their groups may differ.
void pipelined() {
  Random random;
  for (const KernelTable* table : tables()) {
    const GemmKernels& gemm = table->gemm[index(DType::kFloat)];
    if (gemm.pipelined_rows == 0) continue;  // this instruction set has none
    for (int rows = 1; rows <= gemm.streamed_rows; ++rows) {
      for (int p = 0; p < gemm.pipelined_panels; ++p) {
        expect(gemm.pipelined[rows - 1][p][kMaxTilePanels - 1] != nullptr, isa_name(table->isa),
               ": a tile that runs beside nothing must exist for ", rows, " rows and ", p + 1,
               " panels");
      }
    }
    int number = 0;
    for (const int64_t row_k : {1, 5, 64, 300}) {
      for (const int64_t ahead_k : {1, 7, 64, 600}) {
        for (const int64_t row_columns : {0, 16, 48, 100, 256}) {
          for (const int64_t ahead_columns : {16, 100, 256}) {
            ++number;
            const int rows = 1 + number / 2 % gemm.streamed_rows;
            const PanelMap row_map =
                plain_panels(std::max<int64_t>(row_columns, 1), 1 + number % kGroup);
            const PanelMap ahead_map = plain_panels(ahead_columns, 1 + number / 4 % kGroup);
            const Floats row_b(row_map.bytes(row_k) / 4), ahead_b(ahead_map.bytes(ahead_k) / 4);
            random.fill(row_b, 1.0f);
            random.fill(ahead_b, 1.0f);
            const Floats bias(round_up(ahead_columns, kPanel));
            random.fill(bias, 1.0f);
            const RowBuffers row_a(rows, row_k), ahead_a(gemm.pipelined_rows, ahead_k),
                ahead_panel(1, ahead_k * kPanel);
            for (int i = 0; i < rows; ++i) random.fill(row_a[i], 1.0f);
            for (int i = 0; i < gemm.pipelined_rows; ++i) {
              random.fill(ahead_a[i], 1.0f);
              for (int64_t k = 0; k < ahead_k; ++k) ahead_panel[0][k * kPanel + i] = ahead_a[i][k];
            }
            const int64_t row_width = round_up(std::max<int64_t>(row_columns, 1), kPanel);
            const RowBuffers row_c(rows, row_width), row_alone(rows, row_width),
                ahead_c(gemm.pipelined_rows, bias.size()),
                ahead_alone(gemm.pipelined_rows, bias.size());
            for (int i = 0; i < rows; ++i) {
              random.fill(row_c[i], 1.0f);
              std::copy_n(row_c[i].data(), row_width, row_alone[i].data());
            }

            Product row{rows,
                        row_k,
                        row_a.const_rows(),
                        row_b.data(),
                        row_map,
                        0,
                        ceil_div(row_columns, kPanel),
                        nullptr,
                        row_c.rows(),
                        number % 2 == 0};
            Product ahead{gemm.pipelined_rows, ahead_k,     ahead_panel.const_rows(),
                          ahead_b.data(),      ahead_map,   0,
                          ahead_map.count,     bias.data(), ahead_c.rows()};
            std::vector<Tile> row_tiles(static_cast<size_t>(tile_count(row, kMaxTilePanels)));
            std::vector<Tile> ahead_tiles(
                static_cast<size_t>(tile_count(ahead, gemm.pipelined_panels)));
            make_tiles(row, kMaxTilePanels, row_tiles.data());
            make_tiles(ahead, gemm.pipelined_panels, ahead_tiles.data());
            const auto half = static_cast<int64_t>(ahead_tiles.size() / 2);
            multiply_pipelined(gemm, rows,
                               {row_tiles.data(), static_cast<int64_t>(row_tiles.size())},
                               {ahead_tiles.data(), half});
            multiply_pipelined(
                gemm, rows, {row_tiles.data(), 0},
                {ahead_tiles.data() + half, static_cast<int64_t>(ahead_tiles.size()) - half});

            row.c = row_alone.rows();
            ahead.a = ahead_a.const_rows();
            ahead.c = ahead_alone.rows();
            multiply(gemm, row);
            multiply(gemm, ahead);
            const std::string text = describe(*table, rows, row_k, row.last) + " beside " +
                                     describe(*table, ahead.rows, ahead_k, ahead.last);
            for (int i = 0; i < rows; ++i) {
              expect(row_c[i].same_bits(row_alone[i]), text, ": streamed row ", i,
                     " has other bits");
            }
            for (int i = 0; i < gemm.pipelined_rows; ++i) {
              expect(ahead_c[i].same_bits(ahead_alone[i]), text, ": computed row ", i,
                     " has other bits");
            }
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace rnnpack::check

int main() {
  rnnpack::check::tiles();
  rnnpack::check::products();
  rnnpack::check::pipelined();
  return rnnpack::check::report("test_gemm");
}
