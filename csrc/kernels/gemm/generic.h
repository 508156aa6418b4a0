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

// Vectors kFirst .. kFirst + kVectors - 1 of a tile's columns, for each of its rows.
template <class Weight, int kRows, int kFirst, int kVectors>
struct TileSums {
  using Stored = StoredRow<Weight>;
  using Lane = typename Stored::Lane;

  Vec sum[kRows][kVectors];

  static RNNPACK_INLINE int64_t column(const Tile& tile, int v) {
    return tile.columns[(kFirst + v) / kVecs] + (kFirst + v) % kVecs * kLanes;
  }

  RNNPACK_INLINE void start(const Tile& tile) {
    for (int v = 0; v < kVectors; ++v) {
      const Vec start = tile.bias == nullptr ? Vec{} : load(tile.bias + column(tile, v));
      for (int i = 0; i < kRows; ++i) sum[i][v] = start;
    }
  }

  // Row kRow of those in one stored row of weights, times input(i) of each row i.
  template <int kRow, class Input>
  RNNPACK_INLINE void add(const Lane* b, Input input) {
    Vec weights[kVectors];
    for (int v = 0; v < kVectors; ++v)
      weights[v] = Stored::template load_row<kRow>(b + (kFirst + v) * kLanes);
    // Row by row: one register for inputs is enough, and all sums stay in the others.
    for (int i = 0; i < kRows; ++i) {
      const Vec x = broadcast(input(i));
      for (int v = 0; v < kVectors; ++v) sum[i][v] = fma(x, weights[v], sum[i][v]);
    }
  }

  RNNPACK_INLINE void finish(const Tile& tile) const {
    for (int i = 0; i < kRows; ++i) {
      for (int v = 0; v < kVectors; ++v) {
        float* out = tile.c[i] + column(tile, v);
        store(out, tile.bias == nullptr ? load(out) + sum[i][v] : sum[i][v]);
      }
    }
  }
};

// The tile in parts of its columns, as wide as kSums registers allow. Several parts take turns on
// blocks of k: then all of them together read the weights in their order, once from the
// second-level cache, each block being asked for while the one before it is multiplied.
template <class Weight, int kRows, int kPanels, int kSums>
class TileInParts {
 public:
  RNNPACK_INLINE explicit TileInParts(const Tile& tile)
      : tile_(tile), b_(static_cast<const Lane*>(tile.b)) {
    for (int i = 0; i < kRows; ++i) row_[i] = tile.a[i] + tile.first_k;
  }

  RNNPACK_INLINE void run() {
    if constexpr (kParts == 1) {
      run_part<0>(0, tile_.k);
    } else {
      int64_t first = 0;
      do {  // once, too, where k is 0
        run_part<0>(first, first + kBlock < tile_.k ? first + kBlock : tile_.k);
        b_ += block_stride();
        first += kBlock;
      } while (first < tile_.k);
    }
  }

 private:
  using Lane = typename StoredRow<Weight>::Lane;
  static constexpr int kVectors = kPanels * kVecs;
  static constexpr int kParts = static_cast<int>(ceil_div(kVectors, kSums / kRows));
  // 8 KiB of weights. Zen 3, 4 rows: 16 is 3 % slower, 64 is 5 %.
  static constexpr int64_t kBlock = 32;

  int64_t block_stride() const { return kBlock / kLaneRows<Weight> * tile_.b_stride; }

  // Rows [first, last) of k, for this part of the columns and for those behind it.
  template <int kPart>
  RNNPACK_INLINE void run_part(int64_t first, int64_t last) {
    constexpr int kFirst = kVectors * kPart / kParts;
    constexpr int kWidth = kVectors * (kPart + 1) / kParts - kFirst;
    TileSums<Weight, kRows, kFirst, kWidth> sums;
    if (first == 0) {
      sums.start(tile_);
    } else {
      for (int i = 0; i < kRows; ++i)
        for (int v = 0; v < kWidth; ++v) sums.sum[i][v] = aside_[i][kFirst + v];
    }
    add<kPart>(sums, first, last);
    if (last == tile_.k) {
      sums.finish(tile_);
    } else {
      for (int i = 0; i < kRows; ++i)
        for (int v = 0; v < kWidth; ++v) aside_[i][kFirst + v] = sums.sum[i][v];
    }
    if constexpr (kPart + 1 < kParts) run_part<kPart + 1>(first, last);
  }

  template <int kPart, class Sums>
  RNNPACK_INLINE void add(Sums& sums, int64_t kk, int64_t last) const {
    // This part's share of the lines of the next block.
    constexpr int kFirstLine = kPanels * kPart / kParts;
    constexpr int kLastLine = kParts == 1 ? 0 : kPanels * (kPart + 1) / kParts;
    const Lane* b = b_;
    const auto input = [&](int i) RNNPACK_INLINE_LAMBDA { return row_[i][kk]; };
    for (; kk + kLaneRows<Weight> <= last; kk += kLaneRows<Weight>) {
      for (int line = kFirstLine; line < kLastLine; ++line)
        __builtin_prefetch(b + block_stride() + line * kPanel);
      sums.template add<0>(b, input);
      if constexpr (kLaneRows<Weight> == 2) {
        // Both rows of weights at once would leave too few registers for the sums: behind a pointer
        // that the compiler does not know to be the same, the pair is loaded again, from L1.
        const auto* again = b;
        asm("" : "+r"(again));
        sums.template add<1>(again, [&](int i) RNNPACK_INLINE_LAMBDA { return row_[i][kk + 1]; });
      }
      b += tile_.b_stride;
    }
    if (kk < last) sums.template add<0>(b, input);
  }

  const Tile& tile_;
  const Lane* b_;
  const float* row_[kRows];
  Vec aside_[kRows][kVectors];  // sums of the parts between their blocks
};

template <class Weight, int kRows, int kPanels, int kSums>
void gemm_tile(const Tile& tile) {
  TileInParts<Weight, kRows, kPanels, kSums>(tile).run();
}

// Streamed rows and the tile's rows in turn, in the proportion of their numbers, so that the
// processor always has both at hand.
template <class Weight, int kRows, int kPanels, int kStreamedRows, int kStreamedPanels>
void pipelined_tile(const Tile& tile, const Tile* streamed, int64_t count) {
  static_assert(kLaneRows<Weight> == 1);
  using Sums = TileSums<Weight, kRows, 0, kPanels * kVecs>;
  const auto* b = static_cast<const typename Sums::Lane*>(tile.b);
  const float* a = tile.a[0] + tile.first_k * kPanel;
  int64_t left = tile.k;
  int64_t total = 0;
  for (int64_t t = 0; t < count; ++t) total += streamed[t].k;
  const int64_t each = left == 0 ? total : ceil_div(total, left);

  Sums sums;
  sums.start(tile);
  const auto add_row = [&]() RNNPACK_INLINE_LAMBDA {
    sums.template add<0>(b, [&](int i) RNNPACK_INLINE_LAMBDA { return a[i]; });
    a += kPanel;
    b += tile.b_stride;
    --left;
  };
  for (const Tile* const end = streamed + count; streamed < end; ++streamed) {
    TileSums<Weight, kStreamedRows, 0, kStreamedPanels * kVecs> few;
    few.start(*streamed);
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

// Fills the table with tiles of up to kRows rows on kSums registers.
template <class Weight, int kSums, int kRows>
constexpr void add_tiles(GemmKernels& gemm) {
  if constexpr (kRows > 0) {
    add_tiles<Weight, kSums, kRows - 1>(gemm);
    GemmTile* const tile = gemm.tile[kRows - 1];
    tile[0] = &gemm_tile<Weight, kRows, 1, kSums>;
    tile[1] = &gemm_tile<Weight, kRows, 2, kSums>;
    tile[2] = &gemm_tile<Weight, kRows, 3, kSums>;
    tile[3] = &gemm_tile<Weight, kRows, 4, kSums>;
    static_assert(kMaxTilePanels == 4);
    constexpr int kPanelsAtOnce = kSums / (kRows * kVecs);
    gemm.panels[kRows - 1] = kPanelsAtOnce < 1                ? 1
                             : kPanelsAtOnce > kMaxTilePanels ? kMaxTilePanels
                                                              : kPanelsAtOnce;
    gemm.max_rows = kRows;
  }
}

}  // namespace rnnpack::RNNPACK_ISA
