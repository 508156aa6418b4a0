// sigmoid and tanh over vectors, from one exponential core.
//
// Law:    sigmoid(x) = 1 / (1 + exp(-x)),   |tanh(x)| = (1 - q) / (1 + q) with q = exp(-2|x|).
// Bound:  3 ulp for both wherever the result is a normal number (tests/native/test_activation.cpp
// walks through them). Limits: sigmoid is exactly 1 above 17.4 and exactly 0 below -88.4; |tanh| is
// exactly 1 above 9.1; NaN stays NaN.
//
// The polynomial is a minimax fit made for this file (least squares with iterated weights at 4,000
// Chebyshev nodes): expm1(r) = r + r^2 q(r) on |r| <= ln(2)/2 with a relative error of 1.4e-8, a
// quarter of an fp32 rounding.
#pragma once

#include "base/simd/vec.h"

namespace rnnpack::RNNPACK_ISA {

// exp(x) = scale * (1 + p), p = expm1 of the reduced argument. Requires -87.3 <= x <= 89 (or NaN,
// which reaches p).
struct ExpParts {
  Vec scale;  // 2^n; infinity at n = 128
  Vec p;      // in [-0.2929, 0.4143]
};

RNNPACK_INLINE ExpParts exp_parts(Vec x) {
  constexpr float kLog2E = 1.44269504f;
  constexpr float kLn2High = 0.693359375f;  // 10 bits: n * kLn2High is exact
  constexpr float kLn2Low = -2.12194440e-4f;
  // Adding 1.5 * 2^23 leaves the nearest integer in the low bits of the sum.
  constexpr float kRound = 12582912.0f;

  const Vec shifted = fma(x, broadcast(kLog2E), broadcast(kRound));
  const Vec n = shifted - kRound;
  Vec r = fma(n, broadcast(-kLn2High), x);
  r = fma(n, broadcast(-kLn2Low), r);

  Vec q = broadcast(0.001388252131f);
  q = fma(q, r, broadcast(0.008366520588f));
  q = fma(q, r, broadcast(0.04166719986f));
  q = fma(q, r, broadcast(0.1666654362f));
  q = fma(q, r, broadcast(0.4999999815f));
  const Vec p = fma(r * r, q, r);

  // Unsigned: the rounding constant's own bits, and a NaN's, are shifted out.
  const VecUint exponent = (reinterpret_cast<VecUint>(shifted) + 127u) << 23;
  return {reinterpret_cast<Vec>(exponent), p};
}

// sigmoid(x) is 1 over this.
RNNPACK_INLINE Vec sigmoid_denominator(Vec x) {
  const Vec bounded = at_most(broadcast(87.3f), at_least(broadcast(-89.0f), x));
  const ExpParts e = exp_parts(-bounded);
  return 1.0f + e.scale * (1.0f + e.p);
}

RNNPACK_INLINE Vec sigmoid(Vec x) { return 1.0f / sigmoid_denominator(x); }

RNNPACK_INLINE ExpParts exp_of_tanh(Vec magnitude) {
  return exp_parts(at_least(broadcast(-40.0f), magnitude * -2.0f));
}

RNNPACK_INLINE Vec tanh(Vec x) {
  constexpr float kFar =
      0.55f;  // from here on 1 - small is the more accurate form: half an ulp near 1
  const Vec magnitude = abs(x);
  const ExpParts e = exp_of_tanh(magnitude);
  const Vec exp = fma(e.scale, e.p, e.scale);
  const Vec expm1 = fma(e.scale, e.p, e.scale - 1.0f);
  const VecInt far = magnitude > broadcast(kFar);
  const Vec quotient = (far ? exp * 2.0f : -expm1) / (exp + 1.0f);
  return with_sign(far ? 1.0f - quotient : quotient, x);
}

// sigmoid(gate) * tanh(x) with one division instead of two and a product: as many roundings. The
// denominator of the sigmoid is given.
RNNPACK_INLINE Vec gated_tanh(Vec gate_denominator, Vec x) {
  const ExpParts e = exp_of_tanh(abs(x));
  const Vec expm1 = fma(e.scale, e.p, e.scale - 1.0f);
  return with_sign(expm1, x) / (gate_denominator * (expm1 + 2.0f));
}

}  // namespace rnnpack::RNNPACK_ISA
