// The register tile of gemm.h, once for every ISA and shape.
#pragma once

#include "base/simd/vec.h"
#include "kernels/gemm/gemm.h"

namespace rnnpack::RNNPACK_ISA {

template <int kRows, int kPanels>
void gemm_tile(int64_t first_k, int64_t k, const float* const* a, const float* b, int64_t b_stride,
               const int64_t* columns, const float* bias, float* const* c) {
  constexpr int kVecs = kPanel / kLanes;
  const float* row[kRows];
  for (int i = 0; i < kRows; ++i) row[i] = a[i] + first_k;

  Vec sum[kRows][kPanels][kVecs];
  for (int p = 0; p < kPanels; ++p) {
    for (int v = 0; v < kVecs; ++v) {
      const Vec start = bias == nullptr ? Vec{} : load(bias + columns[p] + v * kLanes);
      for (int i = 0; i < kRows; ++i) sum[i][p][v] = start;
    }
  }
  for (int64_t kk = 0; kk < k; ++kk) {
    Vec weights[kPanels][kVecs];
    for (int p = 0; p < kPanels; ++p) {
      for (int v = 0; v < kVecs; ++v)
        weights[p][v] = load(b + kk * b_stride + p * kPanel + v * kLanes);
    }
    // Row by row: one register for inputs is enough, and all sums of the tile stay in the others.
    for (int i = 0; i < kRows; ++i) {
      const Vec input = broadcast(row[i][kk]);
      for (int p = 0; p < kPanels; ++p) {
        for (int v = 0; v < kVecs; ++v) sum[i][p][v] = fma(input, weights[p][v], sum[i][p][v]);
      }
    }
  }
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
template <int kRows, int kPanels>
constexpr void add_tiles(GemmKernels& table) {
  if constexpr (kPanels > 0) {
    add_tiles<kRows, kPanels - 1>(table);
    table.tile[kRows - 1][kPanels - 1] = &gemm_tile<kRows, kPanels>;
    table.panels[kRows - 1] = kPanels;
    if (table.max_rows < kRows) table.max_rows = kRows;
  }
}

}  // namespace rnnpack::RNNPACK_ISA
