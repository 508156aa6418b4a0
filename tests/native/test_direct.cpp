// Products with plain weights: every number of rows and every tail against double, and reads that
// stay within the matrix.
#include <iterator>

#include "check.h"

namespace rnnpack::check {
namespace {

constexpr float kSentinel = 12345.0f;

void check_direct(const KernelTable& table, Conversion types, Random& random, int64_t rows,
                  int64_t k, int64_t count, int64_t gap, bool with_bias) {
  const DirectKernel direct = table.direct[index(types.from)][index(types.to)];
  const int64_t ld = k + gap;
  const Stored w(types.from, (count - 1) * ld + k);
  for (int64_t j = 0; j < count; ++j) {
    for (int64_t kk = 0; kk < k; ++kk) w.set(j * ld + kk, random.uniform(1.0f));
  }
  const RowBuffers a(rows, k);
  for (int64_t i = 0; i < rows; ++i) random.fill(a[i], 1.0f);
  const int64_t column = gap, padded = round_up(count, 4), width = column + padded;
  const Floats bias(width);
  random.fill(bias, 1.0f);
  const RowBuffers c(rows, width), alone(1, width);
  const Floats start(width);
  random.fill(start, 1.0f);
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < width; ++j)
      c[i][j] = j < column ? kSentinel : with_bias ? kNan : start[j];
  }

  direct(rows, k, a.const_rows(), w.data(), ld, count, with_bias ? bias.data() : nullptr, column,
         c.rows());

  std::ostringstream text;
  text << isa_name(table.isa) << ", " << rows << " rows, k " << k << ", " << count
       << " columns, ld " << ld << ", " << type_name(types.from) << " as " << type_name(types.to);
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < column; ++j) {
      expect(c[i][j] == kSentinel, text.str(), " wrote to column ", j, ", before its own");
    }
    for (int64_t j = 0; j < padded; ++j) {
      const int64_t row = std::min(j, count - 1) * ld;  // what pads to 4 repeats the last
      double truth = with_bias ? bias[column + j] : start[column + j];
      double magnitude = std::abs(truth);
      for (int64_t kk = 0; kk < k; ++kk) {
        const double product = static_cast<double>(a[i][kk]) * rounded(w[row + kk], types.to);
        truth += product;
        magnitude += std::abs(product);
      }
      const double bound = kEps * static_cast<double>(k + 1) * magnitude;
      expect_close(c[i][column + j], truth, bound, text.str(), ", row ", i, ", column ", j);
    }
    for (int64_t j = 0; j < width; ++j) alone[0][j] = j < column ? kSentinel : start[j];
    direct(1, k, a.const_rows() + i, w.data(), ld, count, with_bias ? bias.data() : nullptr, column,
           alone.rows());
    expect(alone[0].same_bits(c[i]), text.str(), ": row ", i,
           " has other bits alone than among the others");
  }
}

}  // namespace
}  // namespace rnnpack::check

int main() {
  using namespace rnnpack::check;
  Random random;
  for (const rnnpack::KernelTable* table : tables()) {
    for (const int64_t k : {0, 1, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33, 64, 150}) {
      for (int64_t count = 1; count <= 17; ++count) {
        for (int64_t rows = 1; rows <= 5; ++rows) {
          const Conversion types = kConversions[(rows + count + k) % std::size(kConversions)];
          check_direct(*table, types, random, rows, k, count, (k + count) % 4, rows % 2 == 0);
        }
      }
    }
  }
  return report("test_direct");
}
