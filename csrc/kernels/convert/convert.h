// Rows of another storage type to floats and back, rounded to nearest. Stand in tables by that
// type.
#pragma once

#include <cstdint>

namespace rnnpack {

using ToFloats = void (*)(int64_t count, const void* from, float* to);
using FromFloats = void (*)(int64_t count, const float* from, void* to);

}  // namespace rnnpack
