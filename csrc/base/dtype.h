// The types that numbers are stored in. Arithmetic is in float32 whatever they are.
#pragma once

#include <cstdint>

#include "base/align.h"

namespace rnnpack {

enum class DType : int32_t { kFloat = 0, kBFloat16 = 1, kHalf = 2 };
inline constexpr int kDTypes = 3;

struct BFloat16 {
  uint16_t bits;
};
struct Half {
  uint16_t bits;
};

RNNPACK_SHARED_INLINE int64_t size_of(DType type) { return type == DType::kFloat ? 4 : 2; }
RNNPACK_SHARED_INLINE int index(DType type) { return static_cast<int>(type); }

// Element `i` of an array of `type`.
__attribute__((always_inline)) inline const void* element(const void* data, DType type, int64_t i) {
  return static_cast<const char*>(data) + i * size_of(type);
}
__attribute__((always_inline)) inline void* element(void* data, DType type, int64_t i) {
  return static_cast<char*>(data) + i * size_of(type);
}

}  // namespace rnnpack
