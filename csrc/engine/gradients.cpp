#include "engine/gradients.h"

#include <algorithm>

#include "engine/packing.h"

namespace rnnpack {

namespace {

constexpr int64_t kGradientBlock = 128;        // rows summed in one accumulator
constexpr int kFloats = index(DType::kFloat);  // both factors of a weight gradient

int slot_runs(const CellTraits& cell, SlotRun* runs) {
  int count = 0;
  for (int g = 0; g < cell.gates; ++g) {
    if (g > 0 && cell.ih_slot[g] == cell.ih_slot[g - 1] + 1) {
      ++runs[count - 1].gates;
    } else {
      runs[count++] = {cell.ih_slot[g], g, 1};
    }
  }
  return count;
}

WeightTotals take_totals(Arena& arena, int64_t rows, int64_t columns, float* gradient) {
  const bool apart = gradient != nullptr && columns % kPanel != 0;
  return {apart ? arena.take<float>(rows * round_up(columns, kPanel)) : gradient, gradient, rows,
          columns};
}

int64_t gate_width(const Problem& p) { return round_up(traits(p.cell).slots * p.hidden, kPanel); }

int64_t chunk_capacity(const Problem& p) { return gradient_chunk_steps(p) * p.rows.count; }

}  // namespace

int64_t gradient_chunk_steps(const Problem& p) {
  const int64_t steps = ceil_div(kGradientBlock, std::max<int64_t>(p.rows.count, 1));
  return std::clamp<int64_t>(steps, 1, std::max<int64_t>(p.rows.steps, 1));
}

ChunkGradients lay_out_chunk(Arena& arena, const Problem& p) {
  ChunkGradients chunk{};
  chunk.gate_width = gate_width(p);
  chunk.projection = p.projection;
  chunk.units = p.hidden;
  const int64_t rows = chunk_capacity(p);
  chunk.dgates = arena.take<float>(rows * chunk.gate_width);
  if (p.projection > 0) {
    chunk.dh_total = arena.take<float>(rows * p.projection);
    chunk.hidden = arena.take<float>(rows * p.hidden);
  }
  return chunk;
}

GradientScratch lay_out_gradients(Arena& arena, const BackwardProblem& b, int threads,
                                  bool measure) {
  const Problem& p = b.forward;
  const int64_t gate_rows = traits(p.cell).gates * p.hidden;
  const int64_t input_columns = round_up(p.input_size, kPanel);
  const int64_t widest = std::max({input_columns, round_up(p.output_size(), kPanel),
                                   p.projection > 0 ? round_up(p.hidden, kPanel) : 0});

  GradientScratch s{};
  s.ih = take_totals(arena, gate_rows, p.input_size, b.grad_weight_ih);
  s.hh = take_totals(arena, gate_rows, p.output_size(), b.grad_weight_hh);
  s.hr = take_totals(arena, p.projection, p.hidden, b.grad_weight_hr);
  if (b.grad_bias_ih != nullptr || b.grad_bias_hh != nullptr)
    s.bias = arena.take<float>(gate_width(p));
  if (b.grad_input.data != nullptr) s.weight_ih = arena.take<char>(p.ih_columns().bytes(gate_rows));
  s.ones = arena.take<float>(kGradientBlock);
  s.members = arena.take<GradientMember>(threads);
  const int64_t own_rows = ceil_div(std::max(gate_rows, p.projection), threads) + 1;
  for (int i = 0; i < threads; ++i) {
    GradientMember m{};
    if (threads > 1) arena.leave_page();
    m.left = arena.take<float>(own_rows * kGradientBlock);
    m.right = arena.take<float>(kGradientBlock * widest);
    if (b.grad_input.data != nullptr && input_columns != p.input_size)
      m.input = arena.take<float>(kGradientBlock * input_columns);
    m.a = arena.take<const float*>(std::max(own_rows, kGradientBlock));
    m.source = arena.take<const void*>(2 * kGradientBlock);
    m.c = arena.take<float*>(std::max(own_rows, 2 * kGradientBlock));
    if (!measure) s.members[i] = m;
  }
  return s;
}

void Gradients::start() const {
  if (index_ == 0) {
    std::fill(scratch_.ones, scratch_.ones + kGradientBlock, 1.0f);
    if (scratch_.bias != nullptr) std::fill_n(scratch_.bias, chunk_.gate_width, 0.0f);
  }
  if (scratch_.weight_ih == nullptr) return;
  SlotRun runs[kMaxGates];
  const int count = slot_runs(traits(p_.cell), runs);
  for (int i = 0; i < count; ++i) {
    const int64_t first = runs[i].first_gate * p_.hidden;
    const LayerWeights& w = p_.weights[0];
    pack_columns_share(kernels_,
                       {element(w.weight_ih, w.dtype, first * w.ld_ih), w.dtype, w.ld_ih,
                        runs[i].gates * p_.hidden, p_.input_size},
                       p_.storage, p_.ih_group, threads_, index_, run_panels(runs[i]));
  }
}

void* Gradients::run_panels(const SlotRun& run) const {
  // The runs before it have an even number of rows together, where there are any: r and z.
  return static_cast<char*>(scratch_.weight_ih) + p_.ih_columns().bytes(run.first_gate * p_.hidden);
}

void Gradients::add_chunk(int64_t first, int64_t last) {
  const void** inputs = mine_.source;
  const void** states = mine_.source + kGradientBlock;
  float** outputs = mine_.c + kGradientBlock;
  int64_t block = 0, place = 0;
  const auto flush = [&] {
    if (block == 0) return;
    add_block(place, block, inputs, states);
    if (b_.grad_input.data != nullptr) add_input(place, block, outputs);
    place += block;
    block = 0;
    empty_ = false;
  };
  for (int64_t s = first; s < last; ++s) {
    for (int64_t r = 0; r < p_.rows.active_at(s); ++r) {
      const int64_t t = p_.rows.time_of(s, r, p_.reverse);
      inputs[block] = p_.rows.at(p_.input, t, r);
      states[block] = h_before(p_, p_.output, 0, p_.reverse, s, r, zeros_);
      if (b_.grad_input.data != nullptr) outputs[block] = p_.rows.at(b_.grad_input, t, r);
      if (++block == kGradientBlock) flush();
    }
  }
  flush();
}

void Gradients::add_block(int64_t first_row, int64_t rows, const void* const* inputs,
                          const void* const* states) const {
  const CellTraits& cell = traits(p_.cell);
  const int* held = nullptr;  // the slots of dgates that are transposed
  const auto add_gates = [&](const WeightTotals& weight, const int* slot_of,
                             const void* const* right) {
    if (weight.gradient == nullptr) return;
    transpose(weight, rows, chunk_.dgates_row(first_row), chunk_.gate_width, p_.hidden, slot_of,
              held);
    held = slot_of;
    add_weight(weight, rows, right);
  };
  add_gates(scratch_.ih, cell.ih_slot, inputs);
  add_gates(scratch_.hh, cell.hh_slot, states);
  if (scratch_.bias != nullptr) add_bias(first_row, rows);
  if (scratch_.hr.gradient == nullptr) return;
  const void* hidden[kGradientBlock];
  for (int64_t i = 0; i < rows; ++i) hidden[i] = chunk_.hidden_row(first_row + i);
  constexpr int kOneSlot[1] = {0};
  transpose(scratch_.hr, rows, chunk_.dh_total_row(first_row), chunk_.projection, chunk_.projection,
            kOneSlot, nullptr);
  add_weight(scratch_.hr, rows, hidden);
}

// Own columns of `left`: row j of the weight becomes a row of `rows` floats. held: the slots that
// are there already; null: none.
void Gradients::transpose(const WeightTotals& weight, int64_t rows, const float* left,
                          int64_t ld_left, int64_t slot_width, const int* slot_of,
                          const int* held) const {
  const PackRows pack_rows = kernels_.pack_rows[kFloats][kFloats];
  const Range own = share(weight.rows, threads_, index_);
  for (int64_t j = own.first; j < own.last;) {
    const int64_t gate = j / slot_width;
    const int64_t end = std::min((gate + 1) * slot_width, own.last);
    if (held == nullptr || held[gate] != slot_of[gate]) {
      const float* from = left + slot_of[gate] * slot_width + j % slot_width;
      for (int64_t i = 0; i < rows; i += kPanel) {
        const void* source[kPanel];
        for (int64_t q = 0; q < kPanel; ++q)
          source[q] = i + q < rows ? from + (i + q) * ld_left : nullptr;
        pack_rows(end - j, source, mine_.left + (j - own.first) * kGradientBlock + i,
                  kGradientBlock);
      }
    }
    j = end;
  }
}

void Gradients::add_weight(const WeightTotals& weight, int64_t rows,
                           const void* const* right) const {
  const PackColumns pack_columns = kernels_.pack_columns[kFloats][kFloats];
  const PanelMap map = plain_panels(weight.columns, p_.ih_group);
  for (int64_t p = 0; p < map.count; ++p) {
    pack_columns(rows, right, weight.columns, p,
                 reinterpret_cast<char*>(mine_.right) + map.offset_of(p, rows), map.row_stride(p));
  }
  const Range own = share(weight.rows, threads_, index_);
  const int64_t width = round_up(weight.columns, kPanel);
  // Row pointers of the totals share their array with outputs[] of add_chunk, which lie past the
  // first block: set them by batches.
  for (int64_t j = own.first; j < own.last; j += kGradientBlock) {
    const int64_t batch = std::min(kGradientBlock, own.last - j);
    for (int64_t q = 0; q < batch; ++q) {
      mine_.a[q] = mine_.left + (j - own.first + q) * kGradientBlock;
      mine_.c[q] = weight.totals + (j + q) * width;
    }
    multiply(kernels_.gemm[kFloats], {batch, rows, mine_.a, mine_.right, map, 0, map.count,
                                      empty_ ? zeros_ : nullptr, mine_.c});
  }
}

// Rows of dgates are one group of panels as they are.
PanelMap Gradients::dgates_panels() const {
  return plain_panels(chunk_.gate_width, static_cast<int32_t>(chunk_.gate_width / kPanel));
}

void Gradients::add_bias(int64_t first_row, int64_t rows) const {
  const PanelMap map = dgates_panels();
  const Range own = share(map.count, threads_, index_);
  const float* const ones = scratch_.ones;
  float* const totals = scratch_.bias;
  multiply(kernels_.gemm[kFloats], {1, rows, &ones, chunk_.dgates_row(first_row), map, own.first,
                                    own.last, nullptr, &totals});
}

void Gradients::add_input(int64_t first_row, int64_t rows, float* const* outputs) const {
  const Range own = share(rows, threads_, index_);
  const int64_t width = round_up(p_.input_size, kPanel);
  const int64_t count = own.last - own.first;
  SlotRun runs[kMaxGates];
  const int run_count = slot_runs(traits(p_.cell), runs);
  const PanelMap map = p_.ih_columns();
  for (int64_t i = 0; i < count; ++i)
    mine_.c[i] = mine_.input == nullptr ? outputs[own.first + i] : mine_.input + i * width;
  for (int n = 0; n < run_count; ++n) {
    for (int64_t i = 0; i < count; ++i)
      mine_.a[i] = chunk_.dgates_row(first_row + own.first + i) + runs[n].slot * p_.hidden;
    multiply(kernels_.gemm[index(p_.storage)],
             {count, runs[n].gates * p_.hidden, mine_.a, run_panels(runs[n]), map, 0, map.count,
              n == 0 ? zeros_ : nullptr, mine_.c});
  }
  if (mine_.input == nullptr) return;
  for (int64_t i = 0; i < count; ++i)
    LayerPass::copy(outputs[own.first + i], mine_.c[i], {0, p_.input_size});
}

void Gradients::finish() const {
  for (const WeightTotals* weight : {&scratch_.ih, &scratch_.hh, &scratch_.hr}) {
    if (weight->gradient == nullptr) continue;
    const Range own = share(weight->rows, threads_, index_);
    const int64_t columns = weight->columns;
    if (empty_) {
      std::fill(weight->gradient + own.first * columns, weight->gradient + own.last * columns,
                0.0f);
    } else if (weight->totals != weight->gradient) {
      for (int64_t j = own.first; j < own.last; ++j) {
        std::copy_n(weight->totals + j * round_up(columns, kPanel), columns,
                    weight->gradient + j * columns);
      }
    }
  }

  const Range panels = share(dgates_panels().count, threads_, index_);
  const auto write_bias = [&](const int* slot_of, float* gradient) {
    if (gradient == nullptr) return;
    for (int g = 0; g < traits(p_.cell).gates; ++g) {
      const int64_t slot = slot_of[g] * p_.hidden;
      const int64_t first = std::max(panels.first * kPanel, slot);
      const int64_t last = std::min(panels.last * kPanel, slot + p_.hidden);
      for (int64_t j = first; j < last; ++j) gradient[g * p_.hidden + j - slot] = scratch_.bias[j];
    }
  };
  write_bias(traits(p_.cell).ih_slot, b_.grad_bias_ih);
  write_bias(traits(p_.cell).hh_slot, b_.grad_bias_hh);
}

}  // namespace rnnpack
