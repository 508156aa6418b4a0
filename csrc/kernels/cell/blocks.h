// Walks a cell's equations over rows and blocks of units, whole vectors at a time.
//
// A cell writes its equations once, on vectors; `Access` loads and stores whole vectors in full
// blocks and parts of them in the last one.
#pragma once

#include "base/simd/vec.h"
#include "kernels/cell/cell.h"

namespace rnnpack::RNNPACK_ISA {

// Units [unit, unit + kLanes) of one row. Buffers of gates hold slot s of them at s * stride.
template <bool kWhole>
struct Access {
  int64_t stored;  // lanes that padded buffers have
  int64_t real;    // lanes that the caller's tensors have

  RNNPACK_INLINE Vec padded(const float* p) const {
    return kWhole ? rnnpack::RNNPACK_ISA::load(p) : load_partial(p, stored);
  }
  RNNPACK_INLINE void padded(float* p, Vec v) const {
    kWhole ? rnnpack::RNNPACK_ISA::store(p, v) : store_partial(p, v, stored);
  }
  RNNPACK_INLINE Vec tensor(const float* p) const {
    return kWhole ? rnnpack::RNNPACK_ISA::load(p) : load_partial(p, real);
  }
  RNNPACK_INLINE void tensor(float* p, Vec v) const {
    kWhole ? rnnpack::RNNPACK_ISA::store(p, v) : store_partial(p, v, real);
  }
};

// body(access, unit, column, stride) over one row: `column` is where slot 0 of `unit` lies in a row
// of gates.
template <class Body>
RNNPACK_INLINE void for_each_vector_of_row(const GateLayout& layout, int64_t first_block,
                                           int64_t last_block, Body body) {
  for (int64_t b = first_block; b < last_block; ++b) {
    const int64_t column = layout.column(b);
    const int64_t unit = b * kBlockUnits;
    if (layout.units(b) == kBlockUnits) {
      for (int64_t u = 0; u < kBlockUnits; u += kLanes) {
        body(Access<true>{kLanes, kLanes}, unit + u, column + u, kBlockUnits);
      }
    } else {
      const int64_t stored = layout.stored_units(b), real = layout.units(b);
      for (int64_t u = 0; u < real; u += kLanes) {
        const auto part = [u](int64_t n) {
          return n - u < kLanes ? n - u : static_cast<int64_t>(kLanes);
        };
        body(Access<false>{part(stored), part(real)}, unit + u, column + u, stored);
      }
    }
  }
}

// body(access, row, unit, column, stride) over rows [first_row, last_row).
template <class Body>
RNNPACK_INLINE void for_each_vector(const GateLayout& layout, int64_t first_row, int64_t last_row,
                                    int64_t first_block, int64_t last_block, Body body) {
  for (int64_t row = first_row; row < last_row; ++row) {
    for_each_vector_of_row(layout, first_block, last_block,
                           [&](auto access, int64_t unit, int64_t column, int64_t stride)
                               RNNPACK_INLINE_LAMBDA { body(access, row, unit, column, stride); });
  }
}

// The same in two passes, where the second part of an equation waits for the first: units side by
// side give the processor more to do at a time than one unit's long chain. What the first part
// leaves for the second is still in the first-level cache.
template <class First, class Second>
RNNPACK_INLINE void for_each_vector_in_two_passes(const GateLayout& layout, int64_t rows,
                                                  int64_t first_block, int64_t last_block,
                                                  First first, Second second) {
  constexpr int64_t kBlocksOfAPass = 4;  // at least, where there are enough rows
  const int64_t blocks = last_block - first_block;
  const int64_t together = blocks > 0 ? ceil_div(kBlocksOfAPass, blocks) : kBlocksOfAPass;
  for (int64_t row = 0; row < rows; row += together) {
    const int64_t end = row + together < rows ? row + together : rows;
    for_each_vector(layout, row, end, first_block, last_block, first);
    for_each_vector(layout, row, end, first_block, last_block, second);
  }
}

}  // namespace rnnpack::RNNPACK_ISA
