// The product of direct.h, once for every ISA.
#pragma once

#include "base/simd/storage.h"
#include "kernels/direct/direct.h"

namespace rnnpack::RNNPACK_ISA {

typedef float Vec4 __attribute__((vector_size(16)));
typedef float Vec4Unaligned __attribute__((vector_size(16), aligned(4), may_alias));

RNNPACK_INLINE Vec4 fold(Vec v) {
#if RNNPACK_VEC_BYTES == 64
  typedef float Vec8 __attribute__((vector_size(32)));
  const Vec8 half = __builtin_shufflevector(v, v, 0, 1, 2, 3, 4, 5, 6, 7) +
                    __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15);
  return __builtin_shufflevector(half, half, 0, 1, 2, 3) +
         __builtin_shufflevector(half, half, 4, 5, 6, 7);
#elif RNNPACK_VEC_BYTES == 32
  return __builtin_shufflevector(v, v, 0, 1, 2, 3) + __builtin_shufflevector(v, v, 4, 5, 6, 7);
#else
  return v;
#endif
}

// The sums of four vectors, side by side.
RNNPACK_INLINE Vec4 sum4(Vec a, Vec b, Vec c, Vec d) {
  const Vec4 x = fold(a), y = fold(b), z = fold(c), w = fold(d);
  const Vec4 xy =
      __builtin_shufflevector(x, y, 0, 4, 1, 5) + __builtin_shufflevector(x, y, 2, 6, 3, 7);
  const Vec4 zw =
      __builtin_shufflevector(z, w, 0, 4, 1, 5) + __builtin_shufflevector(z, w, 2, 6, 3, 7);
  return __builtin_shufflevector(xy, zw, 0, 1, 4, 5) + __builtin_shufflevector(xy, zw, 2, 3, 6, 7);
}

template <class From, class To, int kRows>
void direct_rows(int64_t k, const float* const* a, const From* w, int64_t ld_w, int64_t count,
                 const float* bias, int64_t column, float* const* c) {
  const float* row[kRows];
  for (int i = 0; i < kRows; ++i) row[i] = a[i];
  const int64_t whole = k / kLanes * kLanes;
  for (int64_t j = 0; j < count; j += 4) {
    const From* weights[4];
    for (int q = 0; q < 4; ++q) weights[q] = w + (j + q < count ? j + q : count - 1) * ld_w;
    Vec sum[kRows][4] = {};
    for (int64_t kk = 0; kk < whole; kk += kLanes) {
      for (int i = 0; i < kRows; ++i) {
        const Vec x = load(row[i] + kk);
        for (int q = 0; q < 4; ++q)
          sum[i][q] = fma(x, as_stored<From, To>(load(weights[q] + kk)), sum[i][q]);
      }
    }
    if (whole < k) {
      for (int i = 0; i < kRows; ++i) {
        const Vec x = load_partial(row[i] + whole, k - whole);
        for (int q = 0; q < 4; ++q) {
          const Vec weight = as_stored<From, To>(load_partial(weights[q] + whole, k - whole));
          sum[i][q] = fma(x, weight, sum[i][q]);
        }
      }
    }
    for (int i = 0; i < kRows; ++i) {
      float* out = c[i] + column + j;
      const Vec4 start =
          *reinterpret_cast<const Vec4Unaligned*>(bias == nullptr ? out : bias + column + j);
      *reinterpret_cast<Vec4Unaligned*>(out) =
          start + sum4(sum[i][0], sum[i][1], sum[i][2], sum[i][3]);
    }
  }
}

template <class From, class To>
void direct(int64_t rows, int64_t k, const float* const* a, const void* w, int64_t ld_w,
            int64_t count, const float* bias, int64_t column, float* const* c) {
  for (int64_t i = 0; i < rows; i += 2) {
    const auto run = rows - i == 1 ? &direct_rows<From, To, 1> : &direct_rows<From, To, 2>;
    run(k, a + i, static_cast<const From*>(w), ld_w, count, bias, column, c + i);
  }
}

}  // namespace rnnpack::RNNPACK_ISA
