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

  const Tile& tile;
  const Lane* b;  // the next stored row
  const float* row[kRows];
  Vec sum[kRows][kPanels][kVecs];

  RNNPACK_INLINE explicit TileSums(const Tile& of) : tile(of), b(static_cast<const Lane*>(of.b)) {
    for (int i = 0; i < kRows; ++i) row[i] = of.a[i] + of.first_k;
    for (int p = 0; p < kPanels; ++p) {
      for (int v = 0; v < kVecs; ++v) {
        const Vec start = of.bias == nullptr ? Vec{} : load(of.bias + of.columns[p] + v * kLanes);
        for (int i = 0; i < kRows; ++i) sum[i][p][v] = start;
      }
    }
  }

  template <int kRow>
  RNNPACK_INLINE void add(const Lane* from, int64_t kk) {
    Vec weights[kPanels][kVecs];
    for (int p = 0; p < kPanels; ++p) {
      for (int v = 0; v < kVecs; ++v)
        weights[p][v] = Stored::template load_row<kRow>(from + p * kPanel + v * kLanes);
    }
    // Row by row: one register for inputs is enough, and all sums of the tile stay in the others.
    for (int i = 0; i < kRows; ++i) {
      const Vec input = broadcast(row[i][kk]);
      for (int p = 0; p < kPanels; ++p) {
        for (int v = 0; v < kVecs; ++v) sum[i][p][v] = fma(input, weights[p][v], sum[i][p][v]);
      }
    }
  }

  // The next stored row, which holds rows kk .. kk + kLaneRows - 1 of k, all of them real.
  RNNPACK_INLINE void add_stored(int64_t kk) {
    add<0>(b, kk);
    if constexpr (kLaneRows<Weight> == 2) {
      // Both rows of weights at once would leave too few registers for the sums: behind a pointer
      // that the compiler does not know to be the same, the pair is loaded again, from L1.
      const auto* again = b;
      asm("" : "+r"(again));
      add<1>(again, kk + 1);
    }
    b += tile.b_stride;
  }

  RNNPACK_INLINE void finish() const {
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
  const Tile own = tile;  // its fields in registers, whatever is stored to c
  TileSums<Weight, kRows, kPanels> sums(own);
  int64_t kk = 0;
  for (; kk + kLaneRows<Weight> <= own.k; kk += kLaneRows<Weight>) sums.add_stored(kk);
  if (kk < own.k) sums.template add<0>(sums.b, kk);
  sums.finish();
}

// Streamed rows and the tile's rows in turn, in the proportion of their numbers, so that the
// processor always has both at hand.
template <class Weight, int kRows, int kPanels>
void pipelined_tile(const Tile& tile, const Tile* streamed, int64_t count) {
  static_assert(kLaneRows<Weight> == 1);
  const Tile own = tile;
  TileSums<Weight, kRows, kPanels> sums(own);
  int64_t total = 0;
  for (int64_t t = 0; t < count; ++t) total += streamed[t].k;
  const int64_t each = own.k == 0 ? total : ceil_div(total, own.k);
  int64_t kk = 0;
  for (int64_t t = 0; t < count; ++t) {
    const Tile one = streamed[t];
    TileSums<Weight, 1, kPanels> row(one);
    for (int64_t r = 0; r < one.k;) {
      const int64_t end = r + each < one.k ? r + each : one.k;
      for (; r < end; ++r) row.add_stored(r);
      if (kk < own.k) sums.add_stored(kk++);
    }
    row.finish();
  }
  for (; kk < own.k; ++kk) sums.add_stored(kk);
  sums.finish();
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
