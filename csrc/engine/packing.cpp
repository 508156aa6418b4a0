#include "engine/packing.h"

#include <algorithm>

namespace rnnpack {

namespace {

struct Packer {
  const LayerShape& shape;
  DType dtype;  // of the plain weights
  PackRows pack_rows;
  char* packed;

  void panel(const PanelMap& map, int64_t p, int64_t k, const void* const* rows,
             int64_t part) const {
    pack_rows(k, rows, packed + part + map.offset_of(p, k), map.row_stride(p));
  }

  void gates(const int* slot_of, const PanelMap& map, Range blocks, const void* weight, int64_t ld,
             int64_t k, int64_t part) const {
    const void* rows[kPanel];
    for (int64_t p = map.first_panel(blocks.first); p < map.first_panel(blocks.last); ++p) {
      panel_rows(shape.gates(), traits(shape.cell), slot_of, map, p, weight, dtype, ld, rows);
      panel(map, p, k, rows, part);
    }
  }
};

}  // namespace

void pack_share(const KernelTable& kernels, const LayerShape& shape, const LayerWeights& weights,
                int64_t parts, int64_t member, void* packed) {
  const CellTraits& cell = traits(shape.cell);
  if (member == 0)
    pack_bias(shape.gates(), cell, weights.bias_ih, weights.bias_hh, static_cast<float*>(packed));
  const Packer pack{shape, weights.dtype,
                    kernels.pack_rows[index(weights.dtype)][index(shape.storage)],
                    static_cast<char*>(packed)};
  const PanelMap ih = shape.ih_panels(), hh = shape.hh_panels();
  const Range blocks = share(shape.gates().blocks(), parts, member);
  pack.gates(cell.ih_slot, ih, blocks, weights.weight_ih, weights.ld_ih, shape.input,
             shape.ih_offset());
  pack.gates(cell.hh_slot, hh, blocks, weights.weight_hh, weights.ld_hh, shape.output(),
             shape.hh_offset());
  if (shape.projection > 0) {
    const PanelMap hr = shape.hr_panels();
    const Range panels = share(hr.count, parts, member);
    for (int64_t p = panels.first; p < panels.last; ++p) {
      const void* rows[kPanel];
      for (int64_t j = 0; j < kPanel; ++j) {
        const int64_t column = p * kPanel + j;
        rows[j] = column < shape.projection
                      ? element(weights.weight_hr, weights.dtype, column * weights.ld_hr)
                      : nullptr;
      }
      pack.panel(hr, p, shape.hidden, rows, shape.hr_offset());
    }
  }
}

void pack_columns_share(const KernelTable& kernels, const PlainMatrix& matrix, DType storage,
                        int32_t group, int64_t parts, int64_t member, void* panels) {
  constexpr int64_t kRows = 64;  // row pointers at a time
  const PackColumns pack_columns = kernels.pack_columns[index(matrix.dtype)][index(storage)];
  const PanelMap map = plain_panels(matrix.columns, group, storage);
  const Range own = share(map.count, parts, member);
  for (int64_t p = own.first; p < own.last; ++p) {
    for (int64_t kk = 0; kk < matrix.k; kk += kRows) {
      const int64_t count = std::min(kRows, matrix.k - kk);
      const void* rows[kRows];
      for (int64_t i = 0; i < count; ++i)
        rows[i] = element(matrix.data, matrix.dtype, (kk + i) * matrix.ld);
      pack_columns(count, rows, matrix.columns, p,
                   static_cast<char*>(panels) + map.offset_of(p, matrix.k) + map.row_offset(p, kk),
                   map.row_stride(p));
    }
  }
}

void choose_groups(const KernelTable& kernels, Problem& problem) {
  const auto width = [&gemm = kernels.gemm[index(problem.storage)]](int64_t rows) {
    return static_cast<int32_t>(gemm.panels[std::clamp<int64_t>(rows, 1, gemm.max_rows) - 1]);
  };
  problem.ih_group = width(problem.rows.total());
  problem.hh_group = width(problem.rows.count);
}

void pack_layer(const KernelTable& kernels, const LayerShape& shape, const LayerWeights& weights,
                void* packed) {
  pack_share(kernels, shape, weights, 1, 0, packed);
}

}  // namespace rnnpack
