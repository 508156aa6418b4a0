// Packing of pack.h, once for every ISA: square blocks are transposed in registers.
#pragma once

#include <utility>

#include "base/simd/storage.h"
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

// Stores `count` rows of k, each a vector, from an even one on; `out` is where the first one
// starts.
template <class To>
RNNPACK_INLINE void store_rows(const Vec* rows, int64_t count, To* out, int64_t row_stride) {
  for (int64_t i = 0; i < count; ++i) store(out + i * row_stride, rows[i]);
}
RNNPACK_INLINE void store_rows(const Vec* rows, int64_t count, BFloat16* out, int64_t row_stride) {
  uint32_t* pairs = reinterpret_cast<uint32_t*>(out);
  for (int64_t i = 0; i < count; i += 2)
    store_pair(pairs + i / 2 * row_stride, pair_up(rows[i], i + 1 < count ? rows[i + 1] : Vec{}));
}

// A row of elements of type From, ready for store_rows: rounded already where it will be
// paired, as pair_up does not round.
template <class From, class To>
RNNPACK_INLINE Vec to_store(Vec v) {
  return std::is_same_v<To, BFloat16> ? as_stored<From, To>(v) : v;
}

// Where row k (of bfloat16, an even one) of a panel starts.
template <class To>
RNNPACK_INLINE To* panel_row(void* panel, int64_t k, int64_t row_stride) {
  return static_cast<To*>(panel) + k * row_stride;
}

template <class From, class To>
void pack_rows(int64_t k, const void* const* rows, void* panel, int64_t row_stride) {
  for (int64_t group = 0; group < kPanel; group += kLanes) {
    for (int64_t kk = 0; kk < k; kk += kLanes) {
      const int64_t count = k - kk < kLanes ? k - kk : kLanes;
      Vec block[kLanes];
      for (int j = 0; j < kLanes; ++j) {
        const From* row = static_cast<const From*>(rows[group + j]);
        const Vec values = row == nullptr    ? Vec{}
                           : count == kLanes ? load(row + kk)
                                             : load_partial(row + kk, count);
        block[j] = to_store<From, To>(values);
      }
      transpose_steps<1>(block);
      To* out = panel_row<To>(panel, kk, row_stride) + group * kLaneRows<To>;
      if (count == kLanes) {
        store_rows(block, kLanes, out, row_stride);
      } else {
        store_rows(block, count, out, row_stride);
      }
    }
  }
}

template <class From, class To>
void pack_columns(int64_t k, const void* const* rows, int64_t columns, int64_t p, void* panel,
                  int64_t row_stride) {
  constexpr int64_t kRows = kLaneRows<To>;
  const int64_t count = columns - p * kPanel;
  for (int64_t kk = 0; kk < k; kk += kRows) {
    for (int v = 0; v < kPanel / kLanes; ++v) {
      const int64_t left = count - v * kLanes;
      Vec values[kRows] = {};
      for (int64_t i = 0; i < kRows && kk + i < k; ++i) {
        const From* from = static_cast<const From*>(rows[kk + i]) + p * kPanel + v * kLanes;
        const Vec row = left >= kLanes ? load(from) : left > 0 ? load_partial(from, left) : Vec{};
        values[i] = to_store<From, To>(row);
      }
      store_rows(values, kRows, panel_row<To>(panel, kk, row_stride) + v * kLanes * kRows,
                 row_stride);
    }
  }
}

}  // namespace rnnpack::RNNPACK_ISA
