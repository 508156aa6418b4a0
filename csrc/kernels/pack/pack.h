// Weights into panels (layout.h).
#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "kernels/pack/layout.h"

namespace rnnpack {

// Kernels stand in tables by the type of the rows and that of the panel, to which they round.

// Element (kk, j) of the panel = rows[j][kk] for 0 <= kk < k and 0 <= j < 16, or 0 where rows[j] is
// null. row_stride: lanes from one stored row to the next.
using PackRows = void (*)(int64_t k, const void* const* rows, void* panel, int64_t row_stride);

// Panel p of plain_panels(columns) from k rows as they are: row kk holds rows[kk][p*16 + j], or 0
// from column `columns` on.
using PackColumns = void (*)(int64_t k, const void* const* rows, int64_t columns, int64_t p,
                             void* panel, int64_t row_stride);

// The 16 rows of a gate matrix (weight_ih or weight_hh, gates * hidden rows) that make stored panel
// p; null for padding.
void panel_rows(const GateLayout& layout, const CellTraits& cell, const int* slot_of,
                const PanelMap& map, int64_t p, const void* w, DType dtype, int64_t ld_w,
                const void** rows);

// The bias of each column: bias_ih and bias_hh (null: none) summed into their slots, 0 in padding.
// bias: layout.columns() floats.
void pack_bias(const GateLayout& layout, const CellTraits& cell, const float* bias_ih,
               const float* bias_hh, float* bias);

}  // namespace rnnpack
