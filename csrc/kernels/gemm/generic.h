// The register tile of gemm.h, once for every ISA and shape.
#pragma once

#include <type_traits>

#include "base/simd/storage.h"
#include "kernels/gemm/gemm.h"

namespace rnnpack::RNNPACK_ISA {

inline constexpr int kVecs = kPanel / kLanes;  // of one row of a panel

// A row of k, out of those that one stored row of panels holds, as a vector of floats.
template <class Weight>
struct StoredRow {
  using Lane = Weight;
  template <int kRow>
  static RNNPACK_INLINE Vec load_row(const Lane* b) {
    return load(b);
  }
};
template <>
struct StoredRow<BFloat16> {
  using Lane = uint32_t;
  template <int kRow>
  static RNNPACK_INLINE Vec load_row(const Lane* b) {
    const VecUint pair = load_pair(b);
    return kRow == 0 ? even_row(pair) : odd_row(pair);
  }
};

// The sums of one tile.
template <class Weight, int kRows, int kPanels>
struct TileSums {
  using Stored = StoredRow<Weight>;
  using Lane = typename Stored::Lane;

  Vec sum[kRows][kPanels][kVecs];

  RNNPACK_INLINE explicit TileSums(const Tile& tile) {
    for (int p = 0; p < kPanels; ++p) {
      for (int v = 0; v < kVecs; ++v) {
        const Vec start =
            tile.bias == nullptr ? Vec{} : load(tile.bias + tile.columns[p] + v * kLanes);
        for (int i = 0; i < kRows; ++i) sum[i][p][v] = start;
      }
    }
  }

  // Row kRow of those in one stored row of weights, times input(i) of each row i.
  template <int kRow, class Input>
  RNNPACK_INLINE void add(const Lane* b, Input input) {
    Vec weights[kPanels][kVecs];
    for (int p = 0; p < kPanels; ++p) {
      for (int v = 0; v < kVecs; ++v)
        weights[p][v] = Stored::template load_row<kRow>(b + p * kPanel + v * kLanes);
    }
    // Row by row: one register for inputs is enough, and all sums of the tile stay in the others.
    for (int i = 0; i < kRows; ++i) {
      const Vec x = broadcast(input(i));
      for (int p = 0; p < kPanels; ++p) {
        for (int v = 0; v < kVecs; ++v) sum[i][p][v] = fma(x, weights[p][v], sum[i][p][v]);
      }
    }
  }

  RNNPACK_INLINE void finish(const Tile& tile) const {
    for (int i = 0; i < kRows; ++i) {
      for (int p = 0; p < kPanels; ++p) {
        for (int v = 0; v < kVecs; ++v) {
          float* out = tile.c[i] + tile.columns[p] + v * kLanes;
          store(out, tile.bias == nullptr ? load(out) + sum[i][p][v] : sum[i][p][v]);
        }
      }
    }
  }
};

template <class Weight, int kRows, int kPanels>
void gemm_tile(const Tile& tile) {
  using Sums = TileSums<Weight, kRows, kPanels>;
  const auto* b = static_cast<const typename Sums::Lane*>(tile.b);
  const int64_t k = tile.k, b_stride = tile.b_stride;
  const float* row[kRows];
  for (int i = 0; i < kRows; ++i) row[i] = tile.a[i] + tile.first_k;

  Sums sums(tile);
  int64_t kk = 0;
  const auto first = [&](int i) RNNPACK_INLINE_LAMBDA { return row[i][kk]; };
  for (; kk + kLaneRows<Weight> <= k; kk += kLaneRows<Weight>) {
    sums.template add<0>(b, first);
    if constexpr (kLaneRows<Weight> == 2) {
      // Both rows of weights at once would leave too few registers for the sums: behind a pointer
      // that the compiler does not know to be the same, the pair is loaded again, from L1.
      const auto* again = b;
      asm("" : "+r"(again));
      sums.template add<1>(again, [&](int i) RNNPACK_INLINE_LAMBDA { return row[i][kk + 1]; });
    }
    b += b_stride;
  }
  if (kk < k) sums.template add<0>(b, first);
  sums.finish(tile);
}

// Streamed rows and the tile's rows in turn, in the proportion of their numbers, so that the
// processor always has both at hand.
template <class Weight, int kRows, int kPanels, int kStreamedRows, int kStreamedPanels>
void pipelined_tile(const Tile& tile, const Tile* streamed, int64_t count) {
  static_assert(kLaneRows<Weight> == 1);
  using Sums = TileSums<Weight, kRows, kPanels>;
  const auto* b = static_cast<const typename Sums::Lane*>(tile.b);
  const float* a = tile.a[0] + tile.first_k * kPanel;
  int64_t left = tile.k;
  int64_t total = 0;
  for (int64_t t = 0; t < count; ++t) total += streamed[t].k;
  const int64_t each = left == 0 ? total : ceil_div(total, left);

  Sums sums(tile);
  const auto add_row = [&]() RNNPACK_INLINE_LAMBDA {
    sums.template add<0>(b, [&](int i) RNNPACK_INLINE_LAMBDA { return a[i]; });
    a += kPanel;
    b += tile.b_stride;
    --left;
  };
  for (const Tile* const end = streamed + count; streamed < end; ++streamed) {
    TileSums<Weight, kStreamedRows, kStreamedPanels> few(*streamed);
    const auto* weights = static_cast<const typename Sums::Lane*>(streamed->b);
    const float* input[kStreamedRows];
    for (int i = 0; i < kStreamedRows; ++i) input[i] = streamed->a[i] + streamed->first_k;
    const int64_t k = streamed->k;
    for (int64_t kk = 0; kk < k;) {
      for (const int64_t last = kk + each < k ? kk + each : k; kk < last; ++kk) {
        few.template add<0>(weights, [&](int i) RNNPACK_INLINE_LAMBDA { return input[i][kk]; });
        weights += streamed->b_stride;
      }
      if (left > 0) add_row();
    }
    few.finish(*streamed);
  }
  while (left > 0) add_row();
  sums.finish(tile);
}

// Fills one height's row of the table with tiles of 1..kPanels panels.
template <class Weight, int kRows, int kPanels>
constexpr void add_tiles(GemmKernels& table) {
  if constexpr (kPanels > 0) {
    add_tiles<Weight, kRows, kPanels - 1>(table);
    table.tile[kRows - 1][kPanels - 1] = &gemm_tile<Weight, kRows, kPanels>;
    table.panels[kRows - 1] = kPanels;
    if (table.max_rows < kRows) table.max_rows = kRows;
  }
}

}  // namespace rnnpack::RNNPACK_ISA
