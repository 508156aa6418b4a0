// Packing of pack.h, once for every ISA: square blocks are transposed in registers.
#pragma once

#include <utility>

#include "base/simd/vec.h"
#include "kernels/pack/pack.h"

namespace rnnpack::RNNPACK_ISA {

// Lanes with bit `kStep` clear come from a, the others from b; both from lanes with that bit clear
// (low) or set (high).
template <int kStep, bool kHigh, int... kLane>
RNNPACK_INLINE Vec exchange(Vec a, Vec b, std::integer_sequence<int, kLane...>) {
  return __builtin_shufflevector(a, b,
                                 ((kLane & kStep) == 0 ? kLane + (kHigh ? kStep : 0)
                                                       : kLanes + kLane - (kHigh ? 0 : kStep))...);
}

template <int kStep>
RNNPACK_INLINE void transpose_steps(Vec* v) {
  if constexpr (kStep < kLanes) {
    constexpr auto kSequence = std::make_integer_sequence<int, kLanes>{};
    for (int i = 0; i < kLanes; ++i) {
      if ((i & kStep) != 0) continue;
      const Vec a = v[i], b = v[i + kStep];
      v[i] = exchange<kStep, false>(a, b, kSequence);
      v[i + kStep] = exchange<kStep, true>(a, b, kSequence);
    }
    transpose_steps<kStep * 2>(v);
  }
}

inline void pack_rows(int64_t k, const float* const* rows, float* panel, int64_t row_stride) {
  for (int64_t group = 0; group < kPanel; group += kLanes) {
    for (int64_t kk = 0; kk < k; kk += kLanes) {
      const int64_t count = k - kk < kLanes ? k - kk : kLanes;
      Vec block[kLanes];
      for (int j = 0; j < kLanes; ++j) {
        const float* row = rows[group + j];
        block[j] = row == nullptr    ? Vec{}
                   : count == kLanes ? load(row + kk)
                                     : load_partial(row + kk, count);
      }
      transpose_steps<1>(block);
      float* out = panel + kk * row_stride + group;
      if (count == kLanes) {
        for (int j = 0; j < kLanes; ++j) store(out + j * row_stride, block[j]);
      } else {
        for (int64_t j = 0; j < count; ++j) store(out + j * row_stride, block[j]);
      }
    }
  }
}

inline void pack_columns(int64_t k, const float* const* rows, int64_t columns, int64_t p,
                         float* panel, int64_t row_stride) {
  const int64_t count = columns - p * kPanel;
  for (int64_t kk = 0; kk < k; ++kk) {
    for (int v = 0; v < kPanel / kLanes; ++v) {
      const int64_t left = count - v * kLanes;
      const float* from = rows[kk] + p * kPanel + v * kLanes;
      store(panel + kk * row_stride + v * kLanes, left >= kLanes ? load(from)
                                                  : left > 0     ? load_partial(from, left)
                                                                 : Vec{});
    }
  }
}

}  // namespace rnnpack::RNNPACK_ISA
