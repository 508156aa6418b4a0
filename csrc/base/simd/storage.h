// 16-bit elements as vectors of floats: `load` widens, exactly; `store` rounds to nearest, ties to
// even, the same bits on every ISA. Included after vec.h, in its namespace.
//
// AVX-512's own bfloat16 instructions are not used: they take both factors in
// bfloat16, where inputs and states here are float32, and they flush denormals whatever the mode. A
// widened load costs one or two instructions for 16 weights and halves what comes from memory.
#pragma once

#include <type_traits>

#include "base/dtype.h"
#include "base/simd/vec.h"

namespace rnnpack::RNNPACK_ISA {

typedef uint16_t Vec16 __attribute__((vector_size(RNNPACK_VEC_BYTES / 2)));
typedef uint16_t Vec16Unaligned
    __attribute__((vector_size(RNNPACK_VEC_BYTES / 2), aligned(2), may_alias));

RNNPACK_INLINE Vec16 load_bits(const void* p) {
  return *reinterpret_cast<const Vec16Unaligned*>(p);
}
RNNPACK_INLINE VecUint unsigned_bits(Vec v) { return reinterpret_cast<VecUint>(v); }
RNNPACK_INLINE Vec from_bits(VecUint v) { return reinterpret_cast<Vec>(v); }

// Lanes of 16 bits to 32 and back, upper halves zero. Intrinsics, as GCC 12 makes four instructions
// of a __builtin_convertvector to a whole register.
#if RNNPACK_VEC_BYTES == 64
RNNPACK_INLINE VecUint widen_bits(Vec16 v) {
  return reinterpret_cast<VecUint>(
      _mm512_maskz_cvtepu16_epi32(kAllLanes, reinterpret_cast<__m256i>(v)));
}
RNNPACK_INLINE Vec16 narrow_bits(VecUint v) {
  return reinterpret_cast<Vec16>(
      _mm512_maskz_cvtepi32_epi16(kAllLanes, reinterpret_cast<__m512i>(v)));
}
#elif RNNPACK_VEC_BYTES == 32
RNNPACK_INLINE VecUint widen_bits(Vec16 v) {
  return reinterpret_cast<VecUint>(_mm256_cvtepu16_epi32(reinterpret_cast<__m128i>(v)));
}
RNNPACK_INLINE Vec16 narrow_bits(VecUint v) {
  const __m256i all = reinterpret_cast<__m256i>(v);
  return reinterpret_cast<Vec16>(
      _mm_packus_epi32(_mm256_castsi256_si128(all), _mm256_extracti128_si256(all, 1)));
}
#else
RNNPACK_INLINE VecUint widen_bits(Vec16 v) { return __builtin_convertvector(v, VecUint); }
RNNPACK_INLINE Vec16 narrow_bits(VecUint v) { return __builtin_convertvector(v, Vec16); }
#endif

RNNPACK_INLINE Vec widen(Vec16 v, BFloat16) { return from_bits(widen_bits(v) << 16); }

// NaN keeps its sign and becomes quiet.
RNNPACK_INLINE Vec16 narrow(Vec v, BFloat16) {
  const VecUint all = unsigned_bits(v);
  const VecUint rounded = (all + 0x7fff + ((all >> 16) & 1)) >> 16;
  const VecUint nan = (all >> 16) | 0x0040;
  return narrow_bits((all & 0x7fffffff) > 0x7f800000 ? nan : rounded);
}

// Two rows of bfloat16 in one: `even` in the low halves of the lanes, `odd` in the high ones. To
// floats it takes a shift or a mask, where neighbouring elements would have to be spread first.
RNNPACK_INLINE VecUint pair_up(Vec even, Vec odd) {
  return (unsigned_bits(even) >> 16) | (unsigned_bits(odd) & 0xffff0000);
}
RNNPACK_INLINE Vec even_row(VecUint pair) { return from_bits(pair << 16); }
RNNPACK_INLINE Vec odd_row(VecUint pair) { return from_bits(pair & 0xffff0000); }
RNNPACK_INLINE VecUint load_pair(const uint32_t* p) {
  return unsigned_bits(load(reinterpret_cast<const float*>(p)));
}
RNNPACK_INLINE void store_pair(uint32_t* p, VecUint v) {
  store(reinterpret_cast<float*>(p), from_bits(v));
}

// Any 16-bit element that is moved and not computed with, in the low half of its lane.
struct Bits16 {
  uint16_t bits;
};
RNNPACK_INLINE Vec widen(Vec16 v, Bits16) { return from_bits(widen_bits(v)); }
RNNPACK_INLINE Vec16 narrow(Vec v, Bits16) { return narrow_bits(unsigned_bits(v)); }

// Rows of k in one lane of a panel (kernels/pack/layout.h).
template <class T>
inline constexpr int kLaneRows = std::is_same_v<T, BFloat16> ? 2 : 1;

#if RNNPACK_VEC_BYTES == 64

RNNPACK_INLINE Vec widen(Vec16 v, Half) {
  return reinterpret_cast<Vec>(_mm512_maskz_cvtph_ps(kAllLanes, reinterpret_cast<__m256i>(v)));
}
RNNPACK_INLINE Vec16 narrow(Vec v, Half) {
  return reinterpret_cast<Vec16>(
      _mm512_maskz_cvtps_ph(kAllLanes, reinterpret_cast<__m512>(v), _MM_FROUND_TO_NEAREST_INT));
}

#elif RNNPACK_VEC_BYTES == 32

RNNPACK_INLINE Vec widen(Vec16 v, Half) {
  return reinterpret_cast<Vec>(_mm256_cvtph_ps(reinterpret_cast<__m128i>(v)));
}
RNNPACK_INLINE Vec16 narrow(Vec v, Half) {
  return reinterpret_cast<Vec16>(
      _mm256_cvtps_ph(reinterpret_cast<__m256>(v), _MM_FROUND_TO_NEAREST_INT));
}

#else

// By integer arithmetic. A denormal half is a small integer: added to the bits of 0.5 it is that
// many steps of 2^-24 above it.
RNNPACK_INLINE Vec widen(Vec16 v, Half) {
  const VecUint all = widen_bits(v);
  const VecUint magnitude = all & 0x7fff;
  const Vec denormal = from_bits(magnitude | 0x3f000000) - 0.5f;
  const VecUint normal = (magnitude << 13) + (112u << 23);
  const VecUint special = (magnitude << 13) | 0x7f800000;
  VecUint result = magnitude < 0x0400 ? unsigned_bits(denormal) : normal;
  result = magnitude >= 0x7c00 ? special : result;
  return from_bits(result | ((all & 0x8000) << 16));
}
RNNPACK_INLINE Vec16 narrow(Vec v, Half) {
  const VecUint all = unsigned_bits(v);
  const VecUint magnitude = all & 0x7fffffff;
  const VecUint denormal = unsigned_bits(from_bits(magnitude) + 0.5f) - 0x3f000000;
  const VecUint normal = (magnitude - (112u << 23) + 0x0fff + ((magnitude >> 13) & 1)) >> 13;
  const VecUint nan = ((magnitude >> 13) & 0x03ff) | 0x7e00;
  VecUint result = magnitude < 0x38800000 ? denormal : normal;
  result = magnitude >= 0x47800000 ? VecUint{} + 0x7c00 : result;
  result = magnitude > 0x7f800000 ? nan : result;
  return narrow_bits(result | ((all >> 16) & 0x8000));
}

#endif

RNNPACK_INLINE Vec load(const BFloat16* p) { return widen(load_bits(p), BFloat16{}); }
RNNPACK_INLINE Vec load(const Bits16* p) { return widen(load_bits(p), Bits16{}); }
RNNPACK_INLINE Vec load(const Half* p) { return widen(load_bits(p), Half{}); }

template <class T>
RNNPACK_INLINE Vec load_partial(const T* p, int64_t n) {
  T lanes[kLanes] = {};
  std::memcpy(lanes, p, static_cast<size_t>(n) * sizeof(T));
  return load(lanes);
}

template <class T>
RNNPACK_INLINE void store(T* p, Vec v) {
  *reinterpret_cast<Vec16Unaligned*>(p) = narrow(v, T{});
}

template <class T>
RNNPACK_INLINE void store_partial(T* p, Vec v, int64_t n) {
  T lanes[kLanes];
  store(lanes, v);
  std::memcpy(p, lanes, static_cast<size_t>(n) * sizeof(T));
}

// Elements of type From as they are once they have been stored in To.
template <class From, class To>
RNNPACK_INLINE Vec as_stored(Vec v) {
  if constexpr (std::is_same_v<From, To>) {
    return v;
  } else {
    return widen(narrow(v, To{}), To{});
  }
}

}  // namespace rnnpack::RNNPACK_ISA
