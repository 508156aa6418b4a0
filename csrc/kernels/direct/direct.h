// Product of a few rows with a plain weight matrix, as dot products along its rows: for work too
// small to pay for packing.
//
//   c[i][column + j] = start + sum_k a[i][k] * w[j*ld_w + k]
//                      for 0 <= i < rows, 0 <= j < round_up(count, 4)
//
// start: bias[column + j], or what c holds where bias is null.
// Rows of w past `count` are not read: the columns that pad to 4 repeat the last row's value.
// The sum runs over the lanes of a vector first, so its last bits differ from the packed product's.
#pragma once

#include <cstdint>

namespace rnnpack {

// Stands in a table by the type of w and the type to which its elements are rounded first.
using DirectKernel = void (*)(int64_t rows, int64_t k, const float* const* a, const void* w,
                              int64_t ld_w, int64_t count, const float* bias, int64_t column,
                              float* const* c);

}  // namespace rnnpack
