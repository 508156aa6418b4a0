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

template <class Weight, int kRows, int kPanels>
void gemm_tile(int64_t first_k, int64_t k, const float* const* a, const void* panels,
               int64_t b_stride, const int64_t* columns, const float* bias, float* const* c) {
  using Stored = StoredRow<Weight>;
  const auto* b = static_cast<const typename Stored::Lane*>(panels);
  const float* row[kRows];
  for (int i = 0; i < kRows; ++i) row[i] = a[i] + first_k;

  Vec sum[kRows][kPanels][kVecs];
  for (int p = 0; p < kPanels; ++p) {
    for (int v = 0; v < kVecs; ++v) {
      const Vec start = bias == nullptr ? Vec{} : load(bias + columns[p] + v * kLanes);
      for (int i = 0; i < kRows; ++i) sum[i][p][v] = start;
    }
  }
  const auto add = [&]<int kRow>(const typename Stored::Lane* from, int64_t kk)
                       RNNPACK_INLINE_LAMBDA {
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
  };
  int64_t kk = 0;
  for (; kk + kLaneRows<Weight> <= k; kk += kLaneRows<Weight>) {
    add.template operator()<0>(b, kk);
    if constexpr (kLaneRows<Weight> == 2) {
      // Both rows of weights at once would leave too few registers for the sums: behind a pointer
      // that the compiler does not know to be the same, the pair is loaded again, from L1.
      const auto* again = b;
      asm("" : "+r"(again));
      add.template operator()<1>(again, kk + 1);
    }
    b += b_stride;
  }
  if (kk < k) add.template operator()<0>(b, kk);
  for (int i = 0; i < kRows; ++i) {
    for (int p = 0; p < kPanels; ++p) {
      for (int v = 0; v < kVecs; ++v) {
        float* out = c[i] + columns[p] + v * kLanes;
        store(out, bias == nullptr ? load(out) + sum[i][p][v] : sum[i][p][v]);
      }
    }
  }
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
