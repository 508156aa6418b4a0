// The conversions of convert.h, once for every ISA.
#pragma once

#include "base/simd/storage.h"
#include "kernels/convert/convert.h"

namespace rnnpack::RNNPACK_ISA {

template <class From, class To>
RNNPACK_INLINE void convert(int64_t count, const From* from, To* to) {
  const int64_t whole = count / kLanes * kLanes;
  for (int64_t i = 0; i < whole; i += kLanes) store(to + i, load(from + i));
  if (whole < count)
    store_partial(to + whole, load_partial(from + whole, count - whole), count - whole);
}

template <class From>
void to_floats(int64_t count, const void* from, float* to) {
  convert(count, static_cast<const From*>(from), to);
}

template <class To>
void from_floats(int64_t count, const float* from, void* to) {
  convert(count, from, static_cast<To*>(to));
}

}  // namespace rnnpack::RNNPACK_ISA
