#include "kernels/pack/pack.h"

#include <algorithm>

namespace rnnpack {

void panel_rows(const GateLayout& layout, const CellTraits& cell, const int* slot_of,
                const PanelMap& map, int64_t p, const void* w, DType dtype, int64_t ld_w,
                const void** rows) {
  int gate_of[kMaxSlots] = {-1, -1, -1, -1};
  for (int g = 0; g < cell.gates; ++g) gate_of[slot_of[g]] = g;
  const int64_t column = map.column(p);
  const int64_t block = std::min(column / (layout.slots * kBlockUnits), layout.blocks() - 1);
  const int64_t first = column - layout.column(block);
  const int64_t stored = layout.stored_units(block);
  for (int64_t j = 0; j < kPanel; ++j) {
    const int64_t slot = (first + j) / stored;
    const int64_t unit = (first + j) % stored;
    const bool real = slot < layout.slots && gate_of[slot] >= 0 && unit < layout.units(block);
    rows[j] = nullptr;
    if (!real) continue;
    const int64_t row = gate_of[slot] * layout.hidden + block * kBlockUnits + unit;
    rows[j] = element(w, dtype, row * ld_w);
  }
}

namespace {

void add(const float* __restrict from, int64_t count, float* __restrict to) {
  for (int64_t i = 0; i < count; ++i) to[i] += from[i];
}

// A full block's share has a known length, for which the compiler makes a few vector instructions.
void add_units(const float* from, int64_t units, float* to) {
  if (units == kBlockUnits) {
    add(from, kBlockUnits, to);
  } else {
    add(from, units, to);
  }
}

}  // namespace

void pack_bias(const GateLayout& layout, const CellTraits& cell, const float* bias_ih,
               const float* bias_hh, float* bias) {
  std::fill(bias, bias + layout.columns(), 0.0f);
  for (int64_t b = 0; b < layout.blocks(); ++b) {
    float* block = bias + layout.column(b);
    for (int g = 0; g < cell.gates; ++g) {
      const int64_t source = g * layout.hidden + b * kBlockUnits;
      float* ih = block + cell.ih_slot[g] * layout.stored_units(b);
      float* hh = block + cell.hh_slot[g] * layout.stored_units(b);
      if (bias_ih != nullptr) add_units(bias_ih + source, layout.units(b), ih);
      if (bias_hh != nullptr) add_units(bias_hh + source, layout.units(b), hh);
    }
  }
}

}  // namespace rnnpack
