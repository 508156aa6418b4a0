#include "engine/packing.h"

#include <algorithm>

namespace rnnpack {

namespace {

void pack_gates(const KernelTable& kernels, const LayerShape& shape, const int* slot_of,
                const PanelMap& map, Range panels, const float* weight, int64_t ld, int64_t k,
                float* out) {
  const float* rows[kPanel];
  for (int64_t p = panels.first; p < panels.last; ++p) {
    panel_rows(shape.gates(), traits(shape.cell), slot_of, map, p, weight, ld, rows);
    kernels.pack_rows(k, rows, out + map.offset_of(p, k), map.row_stride(p));
  }
}

}  // namespace

void pack_share(const KernelTable& kernels, const LayerShape& shape, const LayerWeights& weights,
                int64_t parts, int64_t index, float* packed) {
  const CellTraits& cell = traits(shape.cell);
  if (index == 0) pack_bias(shape.gates(), cell, weights.bias_ih, weights.bias_hh, packed);
  const PanelMap ih = shape.ih_panels(), hh = shape.hh_panels();
  const Range blocks = share(shape.gates().blocks(), parts, index);
  pack_gates(kernels, shape, cell.ih_slot, ih,
             {ih.first_panel(blocks.first), ih.first_panel(blocks.last)}, weights.weight_ih,
             weights.ld_ih, shape.input, packed + shape.ih_offset());
  pack_gates(kernels, shape, cell.hh_slot, hh,
             {hh.first_panel(blocks.first), hh.first_panel(blocks.last)}, weights.weight_hh,
             weights.ld_hh, shape.output(), packed + shape.hh_offset());
  if (shape.projection > 0) {
    const PanelMap hr = shape.hr_panels();
    const Range panels = share(hr.count, parts, index);
    for (int64_t p = panels.first; p < panels.last; ++p) {
      const float* rows[kPanel];
      for (int64_t j = 0; j < kPanel; ++j) {
        const int64_t column = p * kPanel + j;
        rows[j] = column < shape.projection ? weights.weight_hr + column * weights.ld_hr : nullptr;
      }
      kernels.pack_rows(shape.hidden, rows,
                        packed + shape.hr_offset() + hr.offset_of(p, shape.hidden),
                        hr.row_stride(p));
    }
  }
}

void pack_columns_share(const KernelTable& kernels, const float* w, int64_t ld, int64_t k,
                        int64_t columns, int32_t group, int64_t parts, int64_t index,
                        float* panels) {
  constexpr int64_t kRows = 64;  // row pointers at a time
  const PanelMap map = plain_panels(columns, group);
  const Range own = share(map.count, parts, index);
  for (int64_t p = own.first; p < own.last; ++p) {
    for (int64_t kk = 0; kk < k; kk += kRows) {
      const int64_t count = std::min(kRows, k - kk);
      const float* rows[kRows];
      for (int64_t i = 0; i < count; ++i) rows[i] = w + (kk + i) * ld;
      kernels.pack_columns(count, rows, columns, p,
                           panels + map.offset_of(p, k) + kk * map.row_stride(p),
                           map.row_stride(p));
    }
  }
}

void choose_groups(const KernelTable& kernels, Problem& problem) {
  const auto width = [&gemm = kernels.gemm](int64_t rows) {
    return static_cast<int32_t>(gemm.panels[std::clamp<int64_t>(rows, 1, gemm.max_rows) - 1]);
  };
  problem.ih_group = width(problem.rows.total());
  problem.hh_group = width(problem.rows.count);
}

void pack_layer(const KernelTable& kernels, const LayerShape& shape, const LayerWeights& weights,
                float* packed) {
  pack_share(kernels, shape, weights, 1, 0, packed);
}

}  // namespace rnnpack
