// Product of a few rows with panels of packed weights.
//
//   c[i][columns[p] + j] = start + sum_k a[i][k] * w[k][p*16 + j]    for 0 <= i < rows, 0
//   <= p < panels, 0 <= j < 16
//
// a, c: one pointer a row; any rows: of a batch_first tensor, a slice, a packed sequence, a
// reversed one. b:    neighbouring panels of one group (pack/layout.h); padded columns hold zeros.
// b_stride: lanes from one stored row to the next.
// start: bias[columns[p] + j]; where bias is null the sum starts at zero and is added to what c
// holds. c overlaps nothing else. Every output is one accumulator that adds in order of k: its bits
// depend on neither the tile, the batch nor the threads.
#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "kernels/pack/layout.h"

namespace rnnpack {

// A tile multiplies rows first_k .. first_k + k - 1; b points at the first (of bfloat16 an even
// one).
using GemmTile = void (*)(int64_t first_k, int64_t k, const float* const* a, const void* b,
                          int64_t b_stride, const int64_t* columns, const float* bias,
                          float* const* c);

inline constexpr int kMaxTileRows = 14;
inline constexpr int kMaxTilePanels = 4;

// tile[r - 1][p - 1] multiplies r rows with p panels, for r <= max_rows and p <= panels[r - 1].
// One table for each type of the panels.
struct GemmKernels {
  int max_rows;
  int panels[kMaxTileRows];
  GemmTile tile[kMaxTileRows][kMaxTilePanels];
};

// Products with k above this are sums of parts, each added from zero: one accumulator over a
// thousand products loses a digit. It sets bits, so it is one number for all; 256 rows of a group
// are 64 KiB, so more rows find them in the second-level cache.
inline constexpr int64_t kLongestSum = 256;

// All rows with the stored panels [first, last) of `map`; b points at panel 0.
void multiply(const GemmKernels& kernels, int64_t rows, int64_t k, const float* const* a,
              const void* b, const PanelMap& map, int64_t first, int64_t last, const float* bias,
              float* const* c);

}  // namespace rnnpack
