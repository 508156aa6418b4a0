// What a call asks of the engine: sizes, rows, tensors as raw pointers. Made and checked by
// csrc/ops; owns nothing.
#pragma once

#include <cstdint>

#include "kernels/pack/pack.h"

namespace rnnpack {

// The sizes of one layer and direction, and where the parts of its packed weights lie.
struct LayerShape {
  CellKind cell;
  int64_t input;
  int64_t hidden;
  int64_t projection;         // 0: none
  int32_t ih_group = kGroup;  // panels of a group
  int32_t hh_group =
      kGroup;  // also of weight_hr, and of the transposed matrices of the backward pass
  DType storage = DType::kFloat;  // of the panels

  int64_t output() const { return projection > 0 ? projection : hidden; }
  GateLayout gates() const { return {hidden, traits(cell).slots}; }
  PanelMap ih_panels() const {
    return gate_panels(gates(), traits(cell), traits(cell).ih_slot, ih_group, storage);
  }
  PanelMap hh_panels() const {
    return gate_panels(gates(), traits(cell), traits(cell).hh_slot, hh_group, storage);
  }
  PanelMap hr_panels() const { return plain_panels(projection, hh_group, storage); }

  // Packed weights: bias, in floats | panels of weight_ih | of weight_hh | of weight_hr, each part
  // on a cache line. In bytes.
  int64_t ih_offset() const { return gates().columns() * static_cast<int64_t>(sizeof(float)); }
  int64_t hh_offset() const { return ih_offset() + bytes(ih_panels(), input); }
  int64_t hr_offset() const { return hh_offset() + bytes(hh_panels(), output()); }
  int64_t packed_bytes() const {
    return hr_offset() + (projection > 0 ? bytes(hr_panels(), hidden) : 0);
  }

 private:
  static int64_t bytes(const PanelMap& map, int64_t k) {
    return round_up(map.bytes(k), kCacheLine);
  }
};

// The weights of one layer and direction: either `packed` (packed_bytes() of them) or plain
// matrices with unit column stride.
struct LayerWeights {
  const void* packed = nullptr;
  DType dtype = DType::kFloat;      // of the matrices: the problem's storage, or float32
  const void* weight_ih = nullptr;  // [gates * hidden, input]
  const void* weight_hh = nullptr;  // [gates * hidden, output]
  const void* weight_hr = nullptr;  // [projection, hidden]
  int64_t ld_ih = 0, ld_hh = 0, ld_hr = 0;
  const float* bias_ih = nullptr;  // [gates * hidden]; null: zero
  const float* bias_hh = nullptr;
};

// A tensor of rows: row (t, r) starts at data + time_index(t) * time_stride + row_index(r) *
// row_stride.
struct SequenceView {
  float* data;
  int64_t time_stride;
  int64_t row_stride;
};

// Which rows there are. Rows are in processing order, longest first, so that those still running at
// a step are a prefix. Step s of a row is its time s, or its time length - 1 - s in the reverse
// direction.
struct Rows {
  int64_t steps;
  int64_t count;
  const int64_t* lengths;     // [count], not increasing; null: all have `steps`
  const int64_t* active;      // [steps], rows with length > s; null: count
  const int64_t* row_start;   // [steps], rows of all earlier steps; null: s * count
  const int64_t* row_offset;  // [count], steps of all rows before; null: r * steps
  const int64_t* time_index;  // [steps]; null: t
  const int64_t* row_index;   // [count]; null: r. Also the row of the states.

  int64_t length(int64_t r) const { return lengths == nullptr ? steps : lengths[r]; }
  int64_t active_at(int64_t s) const { return active == nullptr ? count : active[s]; }
  int64_t start_of(int64_t s) const { return row_start == nullptr ? s * count : row_start[s]; }
  int64_t total() const { return steps == 0 ? 0 : start_of(steps - 1) + active_at(steps - 1); }
  // Where step s of a row is kept for the backward pass: a row's steps together, so that what two
  // threads write lies apart. Where lengths differ and row_offset is null, all rows have room for
  // `steps`.
  int64_t kept_at(int64_t s, int64_t r) const {
    return (row_offset == nullptr ? r * steps : row_offset[r]) + s;
  }
  int64_t row_of(int64_t r) const { return row_index == nullptr ? r : row_index[r]; }
  int64_t time_of(int64_t s, int64_t r, bool reverse) const {
    return reverse ? length(r) - 1 - s : s;
  }

  float* at(const SequenceView& view, int64_t t, int64_t r) const {
    return view.data + (time_index == nullptr ? t : time_index[t]) * view.time_stride +
           row_of(r) * view.row_stride;
  }
};

struct Problem {
  int32_t ih_group = kGroup;  // see LayerShape
  int32_t hh_group = kGroup;
  DType storage = DType::kFloat;
  CellKind cell;
  int64_t input_size, hidden, projection;
  int64_t layers;
  int directions;
  bool reverse;  // of a single direction: run it backwards in time
  bool direct;   // multiply with the plain weights, pack nothing
  Rows rows;
  SequenceView input;
  SequenceView output;          // rows of directions * output floats
  const LayerWeights* weights;  // [layers * directions], all of them packed or none
  const float* h_0;             // [layers * directions, count, output]; null: zero
  const float* c_0;             // [layers * directions, count, hidden]; null: zero
  float* h_n;                   // as h_0, all written; null: the output is enough (one step)
  float* c_n;                   // null for cells without a cell state
  float* reserve_gates;         // [kept steps, columns], one layer and direction; null: inference
  float* reserve_c;             // [kept steps, padded units]
  float* reserve_h;  // [kept steps, output]: a copy, as the caller may change the output; null:
                     // there is none

  LayerShape shape(int64_t layer) const {
    const int64_t out = projection > 0 ? projection : hidden;
    return {
        cell,   layer == 0 ? input_size : directions * out, hidden, projection, ih_group, hh_group,
        storage};
  }
  // Panels by the columns of weight_ih, and of weight_hh or weight_hr: what the backward pass
  // reads.
  PanelMap ih_columns() const { return plain_panels(input_size, ih_group, storage); }
  PanelMap hh_columns(int64_t columns) const { return plain_panels(columns, hh_group, storage); }
  int64_t output_size() const { return projection > 0 ? projection : hidden; }
  bool reversed(int d) const { return directions == 2 ? d == 1 : reverse; }
};

}  // namespace rnnpack
