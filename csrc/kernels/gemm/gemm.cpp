#include "kernels/gemm/gemm.h"

#include <algorithm>

namespace rnnpack {

void multiply(const GemmKernels& kernels, int64_t rows, int64_t k, const float* const* a,
              const void* b, const PanelMap& map, int64_t first, int64_t last, const float* bias,
              float* const* c) {
  if (rows == 0) return;
  // Tiles of nearly equal height: 9 rows run as 5 + 4, not as 8 and a slow 1.
  const int64_t tiles = ceil_div(rows, kernels.max_rows);
  const int64_t height = rows / tiles;
  const int64_t taller = rows % tiles;
  const int64_t width = kernels.panels[height + (taller > 0 ? 1 : 0) - 1];

  // Panels outside, rows inside: a panel is read from L2 once and from L1 by every further tile.
  for (int64_t p = first; p < last;) {
    const int64_t group_end = (p / map.group + 1) * map.group;
    const int64_t panels = std::min({width, last - p, group_end - p});
    const char* panel = static_cast<const char*>(b) + map.offset_of(p, k);
    const int64_t row_stride = map.row_stride(p);
    int64_t columns[kMaxTilePanels];
    for (int64_t q = 0; q < panels; ++q) columns[q] = map.column(p + q);
    for (int64_t first_k = 0; first_k == 0 || first_k < k; first_k += kLongestSum) {
      int64_t row = 0;
      for (int64_t t = 0; t < tiles; ++t) {
        const int64_t count = height + (t < taller ? 1 : 0);
        kernels.tile[count - 1][panels - 1](first_k, std::min(kLongestSum, k - first_k), a + row,
                                            panel + map.row_offset(p, first_k), row_stride, columns,
                                            first_k == 0 ? bias : nullptr, c + row);
        row += count;
      }
    }
    p += panels;
  }
}

}  // namespace rnnpack
