// What the passes over a layer share, forward and backward: where a thread's rows, blocks and
// buffers lie, and the products that make gates.
#pragma once

#include <algorithm>
#include <cstring>

#include "engine/engine.h"
#include "engine/row_set.h"

namespace rnnpack {

inline int64_t padded_units(const Problem& p) { return p.shape(0).gates().blocks() * kBlockUnits; }

// Of some blocks of units: what they store of a row of units and of a row of gates.
inline int64_t units_of(Range blocks) { return (blocks.last - blocks.first) * kBlockUnits; }
inline int64_t columns_of(const GateLayout& gates, Range blocks) {
  if (blocks.first == blocks.last) return 0;
  return gates.column(blocks.last - 1) + gates.block_columns(blocks.last - 1) -
         gates.column(blocks.first);
}

// Where the state of row r lies among those of all layers, directions and rows.
inline int64_t state_row(const Problem& p, int64_t stack, int64_t r) {
  return stack * p.rows.count + p.rows.row_of(r);
}

// h before step s; `absent` stands for a missing h_0.
inline const float* h_before(const Problem& p, const SequenceView& output, int64_t stack,
                             bool reverse, int64_t s, int64_t r, const float* absent) {
  if (s > 0 && p.reserve_h != nullptr)
    return p.reserve_h + p.rows.kept_at(s - 1, r) * p.output_size();
  if (s > 0) return p.rows.at(output, p.rows.time_of(s - 1, r, reverse), r);
  return p.h_0 != nullptr ? p.h_0 + state_row(p, stack, r) * p.output_size() : absent;
}

// One thread's share of one problem: the rows of its group, and its blocks of units within the
// lane.
struct LayerPass {
  const KernelTable& kernels;
  const Problem& p;
  RowSet set;
  GateLayout gates;
  int64_t units;            // padded
  Range blocks;             // of hidden units
  Range projection_panels;  // of the projection's outputs

  LayerPass(const KernelTable& table, const Problem& problem, const Plan& plan, int group,
            int unit_thread)
      : kernels(table),
        p(problem),
        set(rows_of_group(problem.rows, plan.row_groups, group)),
        gates(problem.shape(0).gates()),
        units(padded_units(problem)),
        blocks(share(gates.blocks(), plan.unit_threads, unit_thread)),
        projection_panels(
            share(plain_panels(problem.projection).count, plan.unit_threads, unit_thread)) {}

  // This thread's columns of the hidden units, and of h.
  Range own_units() const {
    return {blocks.first * kBlockUnits, std::min(blocks.last * kBlockUnits, p.hidden)};
  }
  Range own_outputs() const {
    const Range own = p.projection > 0 ? projection_panels : blocks;
    return {own.first * kPanel, std::min(own.last * kPanel, p.output_size())};
  }

  // Row i of memory that holds only what this thread owns of a row, so that what two threads write
  // lies apart: addressed by the row's first unit (output, gate column), which another may own.
  static float* own_row(float* rows, int64_t i, Range own) {
    return rows + i * units_of(own) - own.first * kBlockUnits;
  }
  float* own_gates_row(float* rows, int64_t i) const {
    return rows + i * columns_of(gates, blocks) - gates.column(blocks.first);
  }

  static void copy(float* to, const float* from, Range columns) {
    if (columns.first < columns.last) {
      std::memcpy(to + columns.first, from + columns.first,
                  static_cast<size_t>(columns.last - columns.first) * sizeof(float));
    }
  }

  const GemmKernels& gemm() const { return kernels.gemm[index(p.storage)]; }
  DirectKernel direct(const LayerWeights& w) const {
    return kernels.direct[index(w.dtype)][index(p.storage)];
  }
  static const void* part(const void* packed, int64_t offset) {
    return static_cast<const char*>(packed) + offset;
  }

  int64_t state_row(int64_t stack, int64_t r) const { return rnnpack::state_row(p, stack, r); }

  // Whether step s takes its weights from the last to the first (Product::backwards).
  static bool reads_backwards(int64_t s) { return s % 2 != 0; }

  // The product behind multiply_gates where weights are packed.
  Product gates_product(const LayerShape& shape, const void* packed, bool recurrent, int64_t rows,
                        const float* const* a, const float* bias, float* const* out) const {
    const PanelMap map = recurrent ? shape.hh_panels() : shape.ih_panels();
    return {rows,
            recurrent ? shape.output() : shape.input,
            a,
            part(packed, recurrent ? shape.hh_offset() : shape.ih_offset()),
            map,
            map.first_panel(blocks.first),
            map.first_panel(blocks.last),
            bias,
            out};
  }

  // gates[rows][own columns] = start + a * weights, from panels or from the plain matrix. start:
  // bias, or what gates hold if null.
  void multiply_gates(const LayerShape& shape, const LayerWeights& w, const void* packed,
                      bool recurrent, int64_t rows, const float* const* a, const float* bias,
                      float* const* out, bool backwards = false) const {
    if (!p.direct) {
      Product product = gates_product(shape, packed, recurrent, rows, a, bias, out);
      product.backwards = backwards;
      multiply(gemm(), product);
      return;
    }
    const int64_t k = recurrent ? shape.output() : shape.input;
    const CellTraits& cell = traits(p.cell);
    const void* weight = recurrent ? w.weight_hh : w.weight_ih;
    const int64_t ld = recurrent ? w.ld_hh : w.ld_ih;
    for (int64_t b = blocks.first; b < blocks.last; ++b) {
      for (int g = 0; g < cell.gates; ++g) {
        const int slot = recurrent ? cell.hh_slot[g] : cell.ih_slot[g];
        direct(w)(rows, k, a, element(weight, w.dtype, (g * p.hidden + b * kBlockUnits) * ld), ld,
                  gates.units(b), bias, gates.column(b) + slot * gates.stored_units(b), out);
      }
    }
  }

  // The input's share of the gates, bias included.
  void start_gates(const LayerShape& shape, const LayerWeights& w, const void* packed, int64_t rows,
                   const float* const* a, float* const* out) const {
    multiply_gates(shape, w, packed, false, rows, a, static_cast<const float*>(packed), out);
    start_other_slots(packed, rows, out);
  }

  // Slots that belong to no input product (GRU: the recurrent part of n) get their bias, once it is
  // there: the last block's panels hold zeros for them, which make NaN of an infinite input.
  void start_other_slots(const void* packed, int64_t rows, float* const* out) const {
    const float* bias = static_cast<const float*>(packed);
    const CellTraits& cell = traits(p.cell);
    for (int slot = 0; slot < cell.slots; ++slot) {
      if (std::find(cell.ih_slot, cell.ih_slot + cell.gates, slot) != cell.ih_slot + cell.gates)
        continue;
      for (int64_t i = 0; i < rows; ++i) {
        for (int64_t b = blocks.first; b < blocks.last; ++b) {
          const int64_t column = gates.column(b) + slot * gates.stored_units(b);
          copy(out[i], bias, {column, column + gates.stored_units(b)});
        }
      }
    }
  }

  // Pointers to the input rows and gate rows of steps [first, last); returns how many. gates_row(s,
  // i) places them.
  template <class GatesRow>
  int64_t gather_rows(const SequenceView& input, bool reverse, int64_t first, int64_t last,
                      const float** a, float** out, GatesRow gates_row) const {
    int64_t rows = 0;
    for (int64_t s = first; s < last; ++s) {
      const int64_t active = set.active_at(p.rows, s);
      for (int64_t i = 0; i < active; ++i, ++rows) {
        const int64_t r = set.row(i);
        a[rows] = p.rows.at(input, p.rows.time_of(s, r, reverse), r);
        out[rows] = gates_row(s, i);
      }
    }
    return rows;
  }
};

}  // namespace rnnpack
