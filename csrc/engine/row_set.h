// The rows of one group of threads.
#pragma once

#include <algorithm>

#include "engine/plan.h"

namespace rnnpack {

// Rows first, first + stride, ...: neighbours where all have the same length, every groups-th where
// they are sorted by length, so that each group gets as many long ones as the next.
struct RowSet {
  int64_t first, stride, count;

  int64_t row(int64_t i) const { return first + i * stride; }
  // How many of them still run at step s: a prefix, as rows are sorted.
  int64_t active_at(const Rows& rows, int64_t s) const {
    if (rows.active == nullptr) return count;
    return std::clamp<int64_t>(ceil_div(rows.active[s] - first, stride), 0, count);
  }
};

inline RowSet rows_of_group(const Rows& rows, int groups, int group) {
  if (rows.active == nullptr) {
    const Range range = share(rows.count, groups, group);
    return {range.first, 1, range.last - range.first};
  }
  return {group, groups, ceil_div(rows.count - group, groups)};
}

inline int64_t largest_group(const Rows& rows, int groups) { return ceil_div(rows.count, groups); }

}  // namespace rnnpack
