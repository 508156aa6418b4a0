// Vectors of the width of one instruction set, in compiler vector extensions.
//
// Included only by the sources in kernels/isa, each of which sets RNNPACK_ISA (a namespace, so that
// code compiled with different flags never merges at link time) and RNNPACK_VEC_BYTES. Everything
// here is in that namespace. Intrinsics appear only where the language has no word for an
// operation: fused multiply-add and masked access.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__x86_64__) || defined(__i386__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#define RNNPACK_INLINE inline __attribute__((always_inline))
#define RNNPACK_INLINE_LAMBDA __attribute__((always_inline))

namespace rnnpack::RNNPACK_ISA {

inline constexpr int kLanes = RNNPACK_VEC_BYTES / 4;

typedef float Vec __attribute__((vector_size(RNNPACK_VEC_BYTES)));
typedef int32_t VecInt __attribute__((vector_size(RNNPACK_VEC_BYTES)));
typedef uint32_t VecUint __attribute__((vector_size(RNNPACK_VEC_BYTES)));
typedef float VecUnaligned __attribute__((vector_size(RNNPACK_VEC_BYTES), aligned(4), may_alias));

RNNPACK_INLINE Vec load(const float* p) { return *reinterpret_cast<const VecUnaligned*>(p); }
RNNPACK_INLINE void store(float* p, Vec v) { *reinterpret_cast<VecUnaligned*>(p) = v; }
RNNPACK_INLINE Vec broadcast(float x) { return x - Vec{}; }

RNNPACK_INLINE VecInt bits(Vec v) { return reinterpret_cast<VecInt>(v); }
RNNPACK_INLINE Vec from_bits(VecInt v) { return reinterpret_cast<Vec>(v); }

// a * b + c with one rounding where the instruction set has it; the baseline rounds twice.
RNNPACK_INLINE Vec fma(Vec a, Vec b, Vec c) {
#if RNNPACK_VEC_BYTES == 64
  return reinterpret_cast<Vec>(_mm512_fmadd_ps(
      reinterpret_cast<__m512>(a), reinterpret_cast<__m512>(b), reinterpret_cast<__m512>(c)));
#elif RNNPACK_VEC_BYTES == 32
  return reinterpret_cast<Vec>(_mm256_fmadd_ps(
      reinterpret_cast<__m256>(a), reinterpret_cast<__m256>(b), reinterpret_cast<__m256>(c)));
#elif defined(__aarch64__)
  return reinterpret_cast<Vec>(vfmaq_f32(reinterpret_cast<float32x4_t>(c),
                                         reinterpret_cast<float32x4_t>(a),
                                         reinterpret_cast<float32x4_t>(b)));
#else
  return a * b + c;
#endif
}

#if RNNPACK_VEC_BYTES == 32
// For masked access: the first n lanes set.
RNNPACK_INLINE __m256i first_lanes(int64_t n) {
  alignas(64) static constexpr int32_t kEdge[16] = {-1, -1, -1, -1, -1, -1, -1, -1};
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(kEdge + kLanes - n));
}
#endif

// The first n lanes (0 <= n <= kLanes); the others are zero and their memory is not touched.
RNNPACK_INLINE Vec load_partial(const float* p, int64_t n) {
#if RNNPACK_VEC_BYTES == 64
  const __mmask16 mask = static_cast<__mmask16>((1u << n) - 1);
  return reinterpret_cast<Vec>(_mm512_maskz_loadu_ps(mask, p));
#elif RNNPACK_VEC_BYTES == 32
  return reinterpret_cast<Vec>(_mm256_maskload_ps(p, first_lanes(n)));
#else
  float lanes[kLanes] = {};
  std::memcpy(lanes, p, static_cast<size_t>(n) * sizeof(float));
  return load(lanes);
#endif
}

RNNPACK_INLINE void store_partial(float* p, Vec v, int64_t n) {
#if RNNPACK_VEC_BYTES == 64
  const __mmask16 mask = static_cast<__mmask16>((1u << n) - 1);
  _mm512_mask_storeu_ps(p, mask, reinterpret_cast<__m512>(v));
#elif RNNPACK_VEC_BYTES == 32
  if (n == kLanes) return store(p, v);  // masked, it takes some processors 20 cycles
  _mm256_maskstore_ps(p, first_lanes(n), reinterpret_cast<__m256>(v));
#else
  float lanes[kLanes];
  store(lanes, v);
  std::memcpy(p, lanes, static_cast<size_t>(n) * sizeof(float));
#endif
}

#if RNNPACK_VEC_BYTES == 64
// For zero-masked forms with every lane set: the plain forms of GCC 12 read an undefined vector in
// its headers, of which it warns.
inline constexpr __mmask16 kAllLanes = 0xffff;
#endif

// min and max that keep a NaN of `x`: x86's instructions return their second operand where a
// comparison with NaN fails, and so does the selection.
RNNPACK_INLINE Vec at_least(Vec low, Vec x) {
#if RNNPACK_VEC_BYTES == 64
  return reinterpret_cast<Vec>(
      _mm512_maskz_max_ps(kAllLanes, reinterpret_cast<__m512>(low), reinterpret_cast<__m512>(x)));
#elif RNNPACK_VEC_BYTES == 32
  return reinterpret_cast<Vec>(
      _mm256_max_ps(reinterpret_cast<__m256>(low), reinterpret_cast<__m256>(x)));
#else
  return low > x ? low : x;
#endif
}
RNNPACK_INLINE Vec at_most(Vec high, Vec x) {
#if RNNPACK_VEC_BYTES == 64
  return reinterpret_cast<Vec>(
      _mm512_maskz_min_ps(kAllLanes, reinterpret_cast<__m512>(high), reinterpret_cast<__m512>(x)));
#elif RNNPACK_VEC_BYTES == 32
  return reinterpret_cast<Vec>(
      _mm256_min_ps(reinterpret_cast<__m256>(high), reinterpret_cast<__m256>(x)));
#else
  return high < x ? high : x;
#endif
}

RNNPACK_INLINE Vec abs(Vec x) { return from_bits(bits(x) & 0x7fffffff); }

// |x| with the sign of `sign`.
RNNPACK_INLINE Vec with_sign(Vec x, Vec sign) {
  return from_bits((bits(x) & 0x7fffffff) | (bits(sign) & static_cast<int32_t>(0x80000000)));
}

// Sum of all lanes, adding halves: the same tree for every call, so the same bits.
RNNPACK_INLINE float sum(Vec v) {
  float lanes[kLanes];
  store(lanes, v);
  for (int width = kLanes / 2; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) lanes[i] += lanes[i + width];
  }
  return lanes[0];
}

}  // namespace rnnpack::RNNPACK_ISA
