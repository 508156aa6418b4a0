// Where things lie: the gate buffer's columns, and the panels of packed weights. One description
// for every cell and ISA.
//
// Hidden units are taken in blocks of 16. A block holds its slots one after another (all units of
// slot 0, then slot 1, ...), so a block of LSTM is [i16 f16 g16 o16]: whole vectors on every ISA,
// and the cell finds all of a unit's gates within four cache lines. The last block holds its
// remaining units rounded up to 4, its columns rounded up to a whole panel.
//
// Columns of the gate buffer:
//   | block 0: slot 0 (16) slot 1 (16) ... | block 1 ... | last block: slot 0 (u) ... pad |
//
// A panel is 16 neighbouring columns over all k. Panels whose slots have no gate in a matrix (GRU:
// one of four) are not stored. The stored ones lie in groups: row k of every panel of a group, then
// row k + 1. A tile as wide as a group reads one stream of memory in order, which is what the
// prefetchers of every cache level follow; four streams of one panel each reach half the bandwidth.
//
// A panel of bfloat16 has two rows of k in one: each of its 16 lanes is 32 bits, row 2i in the low
// half and 2i + 1 in the high one (zero where k ends). To widen it takes one shift or mask, where
// neighbouring elements would have to be spread first.
#pragma once

#include <cstdint>

#include "base/align.h"
#include "base/dtype.h"
#include "kernels/cell/kind.h"

namespace rnnpack {

inline constexpr int64_t kPanel = 16;       // columns of a panel
inline constexpr int64_t kBlockUnits = 16;  // hidden units of a full block
// Panels of a group, at most: what every packed tensor has. Weights packed within a call may have
// smaller groups, as wide as the registers hold sums for.
inline constexpr int32_t kGroup = 4;

// The columns of one step's gates for one row.
struct GateLayout {
  int64_t hidden;
  int slots;

  RNNPACK_SHARED_INLINE int64_t blocks() const { return ceil_div(hidden, kBlockUnits); }
  // Units that block b stores (its last ones may be padding), and how many of them are real.
  RNNPACK_SHARED_INLINE int64_t stored_units(int64_t b) const {
    const int64_t left = round_up(hidden - b * kBlockUnits, 4);
    return left < kBlockUnits ? left : kBlockUnits;
  }
  RNNPACK_SHARED_INLINE int64_t units(int64_t b) const {
    const int64_t left = hidden - b * kBlockUnits;
    return left < kBlockUnits ? left : kBlockUnits;
  }
  RNNPACK_SHARED_INLINE int64_t block_columns(int64_t b) const {
    return round_up(slots * stored_units(b), kPanel);
  }
  RNNPACK_SHARED_INLINE int64_t column(int64_t b) const { return b * slots * kBlockUnits; }
  RNNPACK_SHARED_INLINE int64_t columns() const {
    return column(blocks() - 1) + block_columns(blocks() - 1);
  }
};

// The stored panels of one matrix: which columns of the destination each covers. Index p counts
// stored panels only.
struct PanelMap {
  int64_t count;                   // stored panels
  int64_t full_panels;             // those of full blocks
  int32_t per_block;               // stored panels of a full block
  int32_t block_columns;           // destination columns of a full block
  int32_t group;                   // panels of a group; the last group may have fewer
  DType type;                      // of the weights in them
  int32_t offset[kMaxSlots];       // column of a full block's i-th stored panel, within the block
  int32_t tail_offset[kMaxSlots];  // the same for the last block when it is not full
  int64_t tail_column;

  // The columns of panels p .. p + run - 1.
  constexpr void columns(int64_t p, int64_t run, int64_t* out) const {
    int64_t block = p / per_block, place = p - block * per_block;
    for (int64_t q = 0; q < run; ++q) {
      out[q] = p + q < full_panels ? block * block_columns + offset[place]
                                   : tail_column + tail_offset[p + q - full_panels];
      if (++place == per_block) {
        place = 0;
        ++block;
      }
    }
  }
  constexpr int64_t column(int64_t p) const {
    int64_t found = 0;
    columns(p, 1, &found);
    return found;
  }
  // Rows that k rows take, and the bytes of one of the 16 lanes of a row.
  constexpr int64_t stored_rows(int64_t k) const {
    return type == DType::kBFloat16 ? ceil_div(k, 2) : k;
  }
  constexpr int64_t lane_bytes() const { return type == DType::kHalf ? 2 : 4; }

  // Where a group starts in the packed matrix of k rows, in bytes, and the lanes from one of its
  // stored rows to the next.
  constexpr int64_t group_offset(int64_t g, int64_t k) const {
    return g * group * stored_rows(k) * kPanel * lane_bytes();
  }
  constexpr int64_t group_stride(int64_t g) const {
    const int64_t left = count - g * group;
    return (left < group ? left : group) * kPanel;
  }
  // The same of panel p, and where its row k starts from there (of bfloat16, an even one).
  constexpr int64_t offset_of(int64_t p, int64_t k) const {
    return group_offset(p / group, k) + p % group * kPanel * lane_bytes();
  }
  constexpr int64_t row_stride(int64_t p) const { return group_stride(p / group); }
  constexpr int64_t row_offset(int64_t p, int64_t k) const {
    return stored_rows(k) * row_stride(p) * lane_bytes();
  }
  constexpr int64_t bytes(int64_t k) const {
    return count * kPanel * stored_rows(k) * lane_bytes();
  }

  // First stored panel of block b (b may be one past the last block).
  constexpr int64_t first_panel(int64_t b) const {
    const int64_t p = b * per_block;
    return p <= full_panels ? p : count;
  }
};

// Panels of weight_ih (slot_of = ih_slot) or weight_hh (hh_slot).
constexpr PanelMap gate_panels(const GateLayout& layout, const CellTraits& cell, const int* slot_of,
                               int32_t group = kGroup, DType type = DType::kFloat) {
  PanelMap map{};
  map.type = type;
  map.block_columns = static_cast<int32_t>(layout.slots * kBlockUnits);
  bool used[kMaxSlots] = {};
  for (int g = 0; g < cell.gates; ++g) used[slot_of[g]] = true;
  for (int s = 0; s < layout.slots; ++s) {
    if (used[s]) map.offset[map.per_block++] = static_cast<int32_t>(s * kBlockUnits);
  }
  // A block's panels are a group where a group has room for them: then threads, which share blocks,
  // share no group.
  map.group = map.per_block > 1 && map.per_block < group ? map.per_block : group;
  const int64_t last = layout.blocks() - 1;
  const bool tail = layout.stored_units(last) < kBlockUnits;
  const int64_t full_blocks = tail ? last : last + 1;
  map.full_panels = full_blocks * map.per_block;
  map.count = map.full_panels;
  map.tail_column = layout.column(last);
  if (tail) {
    const int64_t units = layout.stored_units(last);
    int stored = 0;
    for (int64_t first = 0; first < layout.block_columns(last); first += kPanel) {
      bool any = false;
      for (int64_t c = first; c < first + kPanel; ++c)
        any = any || (c / units < layout.slots && used[c / units]);
      if (any) map.tail_offset[stored++] = static_cast<int32_t>(first);
    }
    map.count += stored;
  }
  return map;
}

// Panels of a matrix with plain columns (the projection, and the transposed products of the
// backward pass).
constexpr PanelMap plain_panels(int64_t columns, int32_t group = kGroup,
                                DType type = DType::kFloat) {
  PanelMap map{};
  map.type = type;
  map.count = map.full_panels = ceil_div(columns, kPanel);
  map.per_block = 1;
  map.block_columns = static_cast<int32_t>(kPanel);
  map.group = group;
  return map;
}

}  // namespace rnnpack
