// Product of a few rows with panels of packed weights.
//
//   c[i][columns[p] + j] = start + sum_k a[i][k] * w[k][p*16 + j]
//                                  for 0 <= i < rows, 0 <= p < panels, 0 <= j < 16
//
// a, c: one pointer a row; any rows: of a batch_first tensor, a slice, a packed sequence, a
// reversed one.
// start: bias[columns[p] + j]; where bias is null the sum starts at zero and is added to what c
// holds. c overlaps nothing else. Every output is a sum of parts of kLongestSum products, each
// added from zero in order of k: its bits depend on neither the tile, the rows beside it nor the
// threads.
#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "kernels/pack/layout.h"

namespace rnnpack {

inline constexpr int kMaxTileRows = 6;
inline constexpr int kMaxTilePanels = 4;
inline constexpr int kMaxStreamedRows = 2;

// What one tile multiplies: rows first_k .. first_k + k - 1 of neighbouring panels of one group
// (pack/layout.h); padded columns hold zeros.
struct Tile {
  int64_t first_k, k;
  const float* const* a;
  const void* b;     // the first of those rows (of bfloat16 an even one)
  int64_t b_stride;  // lanes from one stored row to the next
  int64_t panels;
  int64_t columns[kMaxTilePanels];
  const float* bias;
  float* const* c;
};
using GemmTile = void (*)(const Tile& tile);

// A tile of many rows, computed while `count` tiles of one or two rows are streamed, all of the
// same numbers of rows and panels. So few rows wait for their weights and leave the multiply units
// half idle; many rows keep them busy and wait for nothing. The bits are those of the tiles alone.
using PipelinedTile = void (*)(const Tile& tile, const Tile* streamed, int64_t count);

// tile[r - 1][p - 1] multiplies r <= max_rows rows with p panels. One table for each type of the
// panels.
struct GemmKernels {
  int max_rows;
  int panels[kMaxTileRows];  // of r rows, those whose sums the registers hold at once
  GemmTile tile[kMaxTileRows][kMaxTilePanels];
  // pipelined[r - 1][p - 1][s - 1] computes pipelined_rows rows with p <= pipelined_panels panels
  // beside streamed tiles of r <= streamed_rows rows and s panels; null where that would gain
  // nothing. Rows and panels are 0 where there is none. High and narrow: the weights of the
  // computed rows come from as far as the streamed ones, but serve many rows.
  int pipelined_rows, pipelined_panels, streamed_rows;
  PipelinedTile pipelined[kMaxStreamedRows][kMaxTilePanels][kMaxTilePanels];
};

// Products with k above this are sums of parts, each added from zero: one accumulator over a
// thousand products loses a digit. It sets bits, so it is one number for all; 256 rows of a group
// are 64 KiB, so more rows find them in the second-level cache.
inline constexpr int64_t kLongestSum = 256;

// All rows with the stored panels [first, last) of `map`.
struct Product {
  int64_t rows, k;
  const float* const* a;
  const void* b;  // panel 0
  PanelMap map;
  int64_t first, last;
  const float* bias;
  float* const* c;
  // From the last group of panels to the first. Weights that are read at every step, each time the
  // other way, find in a cache too small for them what was read last; always the same way, nothing.
  bool backwards = false;
};
void multiply(const GemmKernels& kernels, const Product& product);

// The tiles of a product whose rows fit one, at most `width` panels wide: groups in order, within
// them the parts of the sums in order.
int64_t tile_count(const Product& product, int64_t width);
void make_tiles(const Product& product, int64_t width, Tile* tiles);

// Tiles made beforehand, to be run again and again as what a and c point to changes.
struct Tiles {
  Tile* first;
  int64_t count;
};

// Tiles of `rows` <= streamed_rows rows, and beside them some of pipelined_rows rows, given as a
// panel, and at most pipelined_panels panels.
void multiply_pipelined(const GemmKernels& kernels, int64_t rows, const Tiles& streamed,
                        const Tiles& computed);

}  // namespace rnnpack
