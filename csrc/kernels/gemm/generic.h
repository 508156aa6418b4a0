// The register tile of gemm.h, once for every ISA and shape.
#pragma once

#include <type_traits>

#include "base/simd/storage.h"
#include "kernels/gemm/gemm.h"

namespace rnnpack::RNNPACK_ISA {

inline constexpr int kVecs = kPanel / kLanes;  // of one row of a panel

// The rows of k in one stored row of panels, as vectors of floats.
template <class Weight, int kPanels>
struct PanelRows {
  static constexpr int kCount = 1;
  Vec weights[kCount][kPanels][kVecs];

  RNNPACK_INLINE explicit PanelRows(const Weight* b) {
    for (int p = 0; p < kPanels; ++p) {
      for (int v = 0; v < kVecs; ++v) weights[0][p][v] = load(b + p * kPanel + v * kLanes);
    }
  }
};
template <int kPanels>
struct PanelRows<BFloat16, kPanels> {
  static constexpr int kCount = 2;
  Vec weights[kCount][kPanels][kVecs];

  RNNPACK_INLINE explicit PanelRows(const uint32_t* b) {
    for (int p = 0; p < kPanels; ++p) {
      for (int v = 0; v < kVecs; ++v) {
        const VecUint pair = load_pair(b + p * kPanel + v * kLanes);
        weights[0][p][v] = even_row(pair);
        weights[1][p][v] = odd_row(pair);
      }
    }
  }
};

template <class Weight, int kRows, int kPanels>
void gemm_tile(int64_t first_k, int64_t k, const float* const* a, const void* panels,
               int64_t b_stride, const int64_t* columns, const float* bias, float* const* c) {
  using Rows = PanelRows<Weight, kPanels>;
  using Lane = std::conditional_t<std::is_same_v<Weight, BFloat16>, uint32_t, Weight>;
  const Lane* b = static_cast<const Lane*>(panels);
  const float* row[kRows];
  for (int i = 0; i < kRows; ++i) row[i] = a[i] + first_k;

  Vec sum[kRows][kPanels][kVecs];
  for (int p = 0; p < kPanels; ++p) {
    for (int v = 0; v < kVecs; ++v) {
      const Vec start = bias == nullptr ? Vec{} : load(bias + columns[p] + v * kLanes);
      for (int i = 0; i < kRows; ++i) sum[i][p][v] = start;
    }
  }
  // Row by row: one register for inputs is enough, and all sums of the tile stay in the others.
  const auto add = [&](const Vec(&weights)[kPanels][kVecs], int64_t kk) RNNPACK_INLINE_LAMBDA {
    for (int i = 0; i < kRows; ++i) {
      const Vec input = broadcast(row[i][kk]);
      for (int p = 0; p < kPanels; ++p) {
        for (int v = 0; v < kVecs; ++v) sum[i][p][v] = fma(input, weights[p][v], sum[i][p][v]);
      }
    }
  };
  const int64_t whole = k / Rows::kCount * Rows::kCount;
  for (int64_t kk = 0; kk < whole; kk += Rows::kCount) {
    const Rows rows(b);
    for (int i = 0; i < Rows::kCount; ++i) add(rows.weights[i], kk + i);
    b += b_stride;
  }
  if (whole < k) add(Rows(b).weights[0], whole);
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
