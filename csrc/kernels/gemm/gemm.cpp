#include "kernels/gemm/gemm.h"

namespace rnnpack {

void multiply(const GemmKernels& kernels, int64_t rows, int64_t k, const float* const* a, const float* b, const PanelMap& map,
              int64_t first, int64_t last, const float* bias, float* const* c) {
  if (rows == 0) return;
  const int64_t b_stride = k * kPanel;
  // Tiles of nearly equal height: 9 rows run as 5 + 4, not as 8 and a slow 1.
  const int64_t tiles = ceil_div(rows, kernels.max_rows);
  const int64_t height = rows / tiles;
  const int64_t taller = rows % tiles;
  const int64_t width = kernels.panels[height + (taller > 0 ? 1 : 0) - 1];

  // Panels outside, rows inside: a panel is read from L2 once and from L1 by every further tile.
  for (int64_t p = first; p < last; p += width) {
    const int64_t panels = last - p < width ? last - p : width;
    int64_t columns[kMaxTilePanels];
    for (int64_t q = 0; q < panels; ++q) columns[q] = map.column(p + q);
    int64_t row = 0;
    for (int64_t t = 0; t < tiles; ++t) {
      const int64_t count = height + (t < taller ? 1 : 0);
      kernels.tile[count - 1][panels - 1](k, a + row, b + p * b_stride, b_stride, columns, bias, c + row);
      row += count;
    }
  }
}

}  // namespace rnnpack
