// Alignment and rounding shared by every layout in the library.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>

namespace rnnpack {

// One cache line, and one AVX-512 vector: panels and scratch sections start on it.
inline constexpr int64_t kCacheLine = 64;

// Small functions that sources of different instruction sets share must never be emitted out of
// line: the linker keeps one copy of such a function, and it might keep one that this processor
// cannot run.
#define RNNPACK_SHARED_INLINE constexpr __attribute__((always_inline))

RNNPACK_SHARED_INLINE int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
RNNPACK_SHARED_INLINE int64_t round_up(int64_t a, int64_t b) { return ceil_div(a, b) * b; }

}  // namespace rnnpack
