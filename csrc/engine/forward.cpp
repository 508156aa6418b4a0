// The time loop, forward: every cell, layer, direction, sequence layout and thread plan runs
// through here.
#include <algorithm>
#include <new>

#include "engine/arena.h"
#include "engine/layer_pass.h"
#include "engine/packing.h"
#include "engine/pass.h"
#include "engine/team.h"

namespace rnnpack {

namespace {

// Scratch of one lane of one group of rows.
struct LaneScratch {
  float* recent;     // [2, rows, padded units]: h after the last even and the last odd step; null:
                     // it is read where it is kept
  float* hidden;     // [rows, padded units]: o * tanh(c) before a projection
  float* projected;  // [rows, padded projection]
  Barrier* step_barrier;
};

// The rows of one input product.
struct Chunk {
  const float** input;  // [chunk_steps * rows]
  float** gates;        // [chunk_steps * rows]
};

// One layer and direction for one thread, where the plan is pipelined: the tiles of its products.
struct PipelinedLayer {
  Tiles recurrent[2];  // groups of panels forwards and backwards; rows MemberScratch::h_prev and
                       // step_gates
  Tiles input;         // of the next chunk; rows MemberScratch::next_rows
};

// Scratch of one thread: row pointers for the kernels.
struct MemberScratch {
  float* gates;    // [layers at once, gate_steps * rows, own columns]; null when the reserve takes
                   // its place
  float* c_state;  // [layers * directions, rows, own units]; null for cells without one
  Chunk now, next;
  int64_t* started;           // [layers * directions] steps whose gates have their input product
  PipelinedLayer* pipelined;  // [layers * directions]
  float** step_gates;         // [rows]
  float** next_rows;          // [1] the next chunk's input as a panel of rows
  const float** h_prev;
  float** h;
  const float** c_prev;
  float** c_next;
  float** projected;
};

struct Scratch {
  void** packed;            // [packings, layers * directions] weights packed by this call
  float* between[2];        // outputs of inner layers, in turn
  float* zeros;             // one absent initial hidden state
  float* projection_start;  // zeros, [padded projection]
  LaneScratch* lanes;
  MemberScratch* members;
  Barrier* group_barriers;
  Barrier* team_barrier;
};

// Steps whose gates are kept at a time: those of a chunk, and of the next one where it is computed
// beside.
int64_t gate_steps(const Plan& plan) { return (plan.pipelined ? 2 : 1) * plan.chunk_steps; }

// Layers whose gates a lane keeps at a time.
int64_t layers_at_once(const Problem& p, const Plan& plan) {
  return plan.wavefront(p) && plan.pipelined ? p.layers / plan.lanes : 1;
}

// Whether threads that share no h keep it to themselves: the output's rows lie between those that
// other threads are about to write. Where they do share it, they read what the output got, and with
// a reserve what that got.
bool keeps_recent(const Problem& p, const Plan& plan) {
  return plan.threads > 1 && plan.unit_threads == 1 && p.projection == 0 && p.reserve_h == nullptr;
}

// Room for the tiles of all panels, of which a thread has a share.
PipelinedLayer lay_out_tiles(Arena& arena, const LayerShape& shape) {
  // A tile for each panel is never too few.
  const auto tiles = [&arena](const PanelMap& map, int64_t k) {
    const int64_t count = map.count * (1 + k / kLongestSum);
    return Tiles{arena.take<Tile>(count), count};
  };
  PipelinedLayer layer;
  for (Tiles& recurrent : layer.recurrent) recurrent = tiles(shape.hh_panels(), shape.output());
  layer.input = tiles(shape.ih_panels(), shape.input);
  return layer;
}

Scratch lay_out(Arena& arena, const Problem& p, const Plan& plan, bool measure) {
  Scratch s{};
  const int64_t stacks = p.layers * p.directions;
  const int64_t rows = largest_group(p.rows, plan.row_groups);
  const GateLayout gates = p.shape(0).gates();
  const int64_t units = padded_units(p);
  const int64_t chunk_rows = plan.chunk_steps * rows;
  const int64_t padded_projection = round_up(p.projection, kPanel);

  s.packed = arena.take<void*>(plan.packings * stacks);
  for (int64_t i = 0; i < plan.packings * stacks; ++i) {
    const int64_t stack = i % stacks;
    const LayerShape shape = p.shape(stack / p.directions);
    // Direct products need the bias by slot all the same: the head of the packed form.
    const bool made_here = p.weights[stack].packed == nullptr;
    if (plan.packings > 1 && stack == 0) arena.leave_page();
    void* packed =
        made_here ? arena.take<char>(p.direct ? shape.ih_offset() : shape.packed_bytes()) : nullptr;
    if (!measure) s.packed[i] = packed;
  }
  if (p.layers > 1) {
    const int64_t places =
        p.rows.time_index == nullptr ? p.rows.steps * p.rows.count : p.rows.total();
    const int64_t floats = places * p.directions * p.output_size();
    s.between[0] = arena.take<float>(floats);
    if (p.layers > 2) s.between[1] = arena.take<float>(floats);
  }
  s.zeros = arena.take<float>(p.output_size());
  if (p.projection > 0) s.projection_start = arena.take<float>(padded_projection);

  const int lanes = plan.row_groups * plan.lanes;
  s.lanes = arena.take<LaneScratch>(lanes);
  for (int i = 0; i < lanes; ++i) {
    LaneScratch lane{};
    if (plan.threads > 1) arena.leave_page();
    if (keeps_recent(p, plan)) lane.recent = arena.take<float>(2 * rows * units);
    if (p.projection > 0) {
      lane.hidden = arena.take<float>(rows * units);
      lane.projected = arena.take<float>(rows * padded_projection);
    }
    lane.step_barrier = arena.take<Barrier>(1);
    if (!measure) s.lanes[i] = lane;
  }
  s.members = arena.take<MemberScratch>(plan.threads);
  for (int i = 0; i < plan.threads; ++i) {
    MemberScratch member{};
    if (plan.threads > 1) arena.leave_page();
    const Range blocks = share(gates.blocks(), plan.unit_threads, i % plan.unit_threads);
    if (traits(p.cell).has_cell_state)
      member.c_state = arena.take<float>(stacks * rows * units_of(blocks));
    if (p.reserve_gates == nullptr) {
      member.gates = arena.take<float>(layers_at_once(p, plan) * gate_steps(plan) * rows *
                                       columns_of(gates, blocks));
    }
    for (Chunk* chunk : {&member.now, &member.next}) {
      chunk->input = arena.take<const float*>(chunk_rows);
      chunk->gates = arena.take<float*>(chunk_rows);
    }
    member.started = arena.take<int64_t>(stacks);
    if (plan.pipelined) {
      member.pipelined = arena.take<PipelinedLayer>(stacks);
      member.step_gates = arena.take<float*>(rows);
      member.next_rows = arena.take<float*>(1);
      float* panel =
          arena.take<float>(kPanel * std::max(p.shape(0).input, p.shape(p.layers - 1).input));
      if (!measure) member.next_rows[0] = panel;
      for (int64_t k = 0; k < stacks; ++k) {
        const PipelinedLayer layer = lay_out_tiles(arena, p.shape(k / p.directions));
        if (!measure) member.pipelined[k] = layer;
      }
    }
    member.h_prev = arena.take<const float*>(rows);
    member.h = arena.take<float*>(rows);
    member.c_prev = arena.take<const float*>(rows);
    member.c_next = arena.take<float*>(rows);
    member.projected = arena.take<float*>(rows);
    if (!measure) s.members[i] = member;
  }
  s.group_barriers = arena.take<Barrier>(plan.row_groups);
  s.team_barrier = arena.take<Barrier>(1);
  return s;
}

// One member of a team at work.
class Member {
 public:
  Member(const KernelTable& kernels, const Problem& problem, const Plan& plan,
         const Scratch& scratch, int index)
      : p_(problem),
        plan_(plan),
        scratch_(scratch),
        group_(index / (plan.lanes * plan.unit_threads)),
        lane_index_(index / plan.unit_threads % plan.lanes),
        unit_thread_(index % plan.unit_threads),
        lane_(scratch.lanes[group_ * plan.lanes + lane_index_]),
        mine_(scratch.members[index]),
        made_(scratch.packed + group_ % plan.packings * problem.layers * problem.directions),
        pass_(kernels, problem, plan, group_, unit_thread_) {}

  void run() {
    pack();
    const bool wavefront = plan_.wavefront(p_);
    const int64_t lag = plan_.lag(p_);
    const int64_t steps = p_.rows.steps;
    const int64_t segments = steps == 0 ? 1 : ceil_div(steps, plan_.segment_steps);
    const int64_t phases = segments + lag * (p_.layers - 1);
    for (int64_t phase = 0; phase < phases; ++phase) {
      for (int64_t layer = 0; layer < p_.layers; ++layer) {
        const int64_t segment = phase - lag * layer;
        if (segment < 0 || segment >= segments) continue;
        const int64_t first = segment * plan_.segment_steps;
        const int64_t last = std::min(first + plan_.segment_steps, steps);
        // The layer below has finished as many segments more as this one is behind it.
        const int64_t ready =
            wavefront ? std::min((segment + lag) * plan_.segment_steps, steps) : last;
        for (int d = 0; d < p_.directions; ++d) {
          if (runs(layer, d)) run_segment(layer, d, first, last, ready);
        }
      }
      // The end of the team's work is a barrier too.
      if (phase + 1 < phases) scratch_.group_barriers[group_].wait();
    }
  }

 private:
  // Whether a layer and direction is this member's lane's.
  bool runs(int64_t layer, int d) const {
    return plan_.lanes == 1 || (p_.directions == 2 ? d : layer % plan_.lanes) == lane_index_;
  }

  bool runs_stack(int64_t stack) const {
    return runs(stack / p_.directions, static_cast<int>(stack % p_.directions));
  }

  float* recent_row(int64_t s, int64_t i) const {
    return lane_.recent + (s % 2 * pass_.set.count + i) * pass_.units;
  }

  int64_t stack_index(int64_t layer, int d) const { return layer * p_.directions + d; }

  // Each thread packs the units that it will read, as far as no other group reads them too: lines
  // that another thread has packed come late from its cache.
  void pack() {
    std::fill_n(mine_.started, p_.layers * p_.directions, 0);
    const int groups = plan_.row_groups / plan_.packings;  // that share what they pack
    const int parts = groups * plan_.unit_threads;
    const int part = group_ % groups * plan_.unit_threads + unit_thread_;
    for (int64_t i = 0; i < p_.layers * p_.directions; ++i) {
      const LayerWeights& w = p_.weights[i];
      if (w.packed != nullptr || !runs_stack(i)) continue;
      const LayerShape shape = p_.shape(i / p_.directions);
      if (!p_.direct) {
        pack_share(pass_.kernels, shape, w, parts, part, made_[i]);
      } else if (part == 0) {
        pack_bias(shape.gates(), traits(shape.cell), w.bias_ih, w.bias_hh,
                  static_cast<float*>(made_[i]));
      }
    }
    if (plan_.pipelined) make_pipelined_tiles();
    if (p_.weights[0].packed == nullptr) scratch_.team_barrier->wait();
  }

  void make_pipelined_tiles() {
    const auto make = [](const Product& product, int64_t width, Tiles& tiles) {
      tiles.count = tile_count(product, width);
      make_tiles(product, width, tiles.first);
    };
    for (int64_t i = 0; i < p_.layers * p_.directions; ++i) {
      if (!runs_stack(i)) continue;
      const LayerShape shape = p_.shape(i / p_.directions);
      const void* packed = packed_weights(i);
      PipelinedLayer& layer = mine_.pipelined[i];
      for (const bool backwards : {false, true}) {
        Product recurrent = pass_.gates_product(shape, packed, true, pass_.set.count, mine_.h_prev,
                                                nullptr, mine_.step_gates);
        recurrent.backwards = backwards;
        make(recurrent, kMaxTilePanels, layer.recurrent[backwards]);
      }
      make(pass_.gates_product(shape, packed, false, pass_.gemm().pipelined_rows, mine_.next_rows,
                               static_cast<const float*>(packed), mine_.next.gates),
           pass_.gemm().pipelined_panels, layer.input);
    }
  }

  const void* packed_weights(int64_t stack) const {
    const LayerWeights& w = p_.weights[stack];
    return w.packed != nullptr ? w.packed : made_[stack];
  }

  SequenceView between(int64_t layer) const {
    const int64_t width = p_.directions * p_.output_size();
    const int64_t time_stride = p_.rows.time_index == nullptr ? p_.rows.count * width : width;
    return {scratch_.between[layer % 2], time_stride, width};
  }

  // c of the group's row i after step s (s = -1: before the first).
  float* c_row(int64_t stack, int64_t s, int64_t i) const {
    if (p_.reserve_c != nullptr && s >= 0)
      return p_.reserve_c + p_.rows.kept_at(s, pass_.set.row(i)) * pass_.units;
    return LayerPass::own_row(mine_.c_state, stack * pass_.set.count + i, pass_.blocks);
  }

  float* gates_row(int64_t layer, int64_t s, int64_t i) const {
    if (p_.reserve_gates != nullptr)
      return p_.reserve_gates + p_.rows.kept_at(s, pass_.set.row(i)) * pass_.gates.columns();
    const int64_t place = plan_.pipelined ? layer / plan_.lanes % layers_at_once(p_, plan_) : 0;
    const int64_t steps = gate_steps(plan_);
    return pass_.own_gates_row(mine_.gates, (place * steps + s % steps) * pass_.set.count + i);
  }

  // One layer and direction, as all steps of a segment see it.
  struct Layer {
    int64_t index, stack;
    int64_t first;  // step of the segment
    bool reverse;
    LayerShape shape;
    const LayerWeights& w;
    const void* packed;
    SequenceView input, output;
  };

  Layer layer_of(int64_t index, int d, int64_t first) const {
    const int64_t stack = stack_index(index, d);
    const LayerWeights& w = p_.weights[stack];
    SequenceView output = index == p_.layers - 1 ? p_.output : between(index);
    output.data += d * p_.output_size();
    return {index,
            stack,
            first,
            p_.reversed(d),
            p_.shape(index),
            w,
            packed_weights(stack),
            index == 0 ? p_.input : between(index - 1),
            output};
  }

  int64_t gather(const Layer& layer, int64_t first, int64_t last, const Chunk& chunk) const {
    return pass_.gather_rows(layer.input, layer.reverse, first, last, chunk.input, chunk.gates,
                             [&](int64_t s, int64_t i) { return gates_row(layer.index, s, i); });
  }

  // Steps [first, last); the input is there up to step `ready`.
  void run_segment(int64_t index, int d, int64_t first, int64_t last, int64_t ready) {
    const Layer layer = layer_of(index, d, first);
    int64_t& started = mine_.started[layer.stack];
    if (first == 0) start_cell_state(layer.stack);
    for (int64_t s = first; s < last;) {
      const int64_t end = std::min(s + plan_.chunk_steps, last);
      const int64_t rows = gather(layer, s, end, mine_.now);
      if (started < end) {
        pass_.start_gates(layer.shape, layer.w, layer.packed, rows, mine_.now.input,
                          mine_.now.gates);
        started = end;
      } else {  // the product was computed ahead
        pass_.start_other_slots(layer.packed, rows, mine_.now.gates);
      }
      const int64_t next_end = std::min(end + plan_.chunk_steps, ready);
      // Whole tiles only, of rows that still run at all of their steps.
      const bool ahead = plan_.pipelined && next_end - end == plan_.chunk_steps &&
                         pass_.set.active_at(p_.rows, next_end - 1) == pass_.set.count;
      if (ahead) {
        gather(layer, end, next_end, mine_.next);
        pack_next_rows(layer.shape.input);
        started = next_end;
      }
      float** gates = mine_.now.gates;
      for (int64_t step = s; step < end; ++step) {
        const int64_t active = pass_.set.active_at(p_.rows, step);
        run_step(layer, step, active, gates, ahead, end - s, step - s);
        gates += active;
        lane_.step_barrier->wait();
      }
      s = end;
    }
    finish_states(layer, d, last);
  }

  // The next chunk's input, from rows to a panel of them.
  void pack_next_rows(int64_t features) const {
    const void* rows[kPanel] = {};
    std::copy_n(mine_.next.input, pass_.gemm().pipelined_rows, rows);
    constexpr int kFloats = index(DType::kFloat);
    pass_.kernels.pack_rows[kFloats][kFloats](features, rows, mine_.next_rows[0], kPanel);
  }

  // part of parts: of the next chunk's input product, where it is computed ahead.
  void run_step(const Layer& layer, int64_t s, int64_t active, float* const* gates, bool ahead,
                int64_t parts, int64_t part) {
    const auto& [index, stack, first, reverse, shape, w, packed, input, output] = layer;
    const bool projected = p_.projection > 0, recent = lane_.recent != nullptr;
    const auto output_row = [&](int64_t i) {
      const int64_t r = pass_.set.row(i);
      return p_.rows.at(output, p_.rows.time_of(s, r, reverse), r);
    };
    for (int64_t i = 0; i < active; ++i) {
      const int64_t r = pass_.set.row(i);
      mine_.h_prev[i] = recent && s > first
                            ? recent_row(s - 1, i)
                            : h_before(p_, output, stack, reverse, s, r, scratch_.zeros);
      mine_.h[i] = recent      ? recent_row(s, i)
                   : projected ? lane_.hidden + i * pass_.units
                               : output_row(i);
      if (mine_.c_state != nullptr) {
        mine_.c_prev[i] = c_row(stack, s - 1, i);
        mine_.c_next[i] = c_row(stack, s, i);
      }
    }
    ask_for_others_outputs(active);
    // An absent h_0 is zero: its product is not computed.
    const bool recurrent = s > 0 || p_.h_0 != nullptr;
    if (ahead) {
      const PipelinedLayer& tiles = mine_.pipelined[stack];
      const Range own = share(tiles.input.count, parts, part);
      std::copy_n(gates, active, mine_.step_gates);
      Tiles row = tiles.recurrent[LayerPass::reads_backwards(s)];
      if (!recurrent) row.count = 0;
      multiply_pipelined(pass_.gemm(), active, row,
                         {tiles.input.first + own.first, own.last - own.first});
    } else if (recurrent) {
      pass_.multiply_gates(shape, w, packed, true, active, mine_.h_prev, nullptr, gates,
                           LayerPass::reads_backwards(s));
    }
    pass_.kernels.forward[static_cast<int>(p_.cell)](
        {pass_.gates, active, pass_.blocks.first, pass_.blocks.last, gates, mine_.c_prev,
         mine_.c_next, mine_.h_prev, mine_.h, p_.reserve_gates != nullptr});
    if (projected) project(shape, w, packed, reverse, s, active, output);
    for (int64_t i = 0; i < active; ++i) {
      if (recent) LayerPass::copy(output_row(i), mine_.h[i], pass_.own_outputs());
      if (p_.reserve_h == nullptr) continue;
      float* kept = p_.reserve_h + p_.rows.kept_at(s, pass_.set.row(i)) * p_.output_size();
      LayerPass::copy(kept, output_row(i), pass_.own_outputs());
    }
  }

  // The product waits for one line of h after the other; lines that other threads wrote come sooner
  // when all are asked for at once.
  void ask_for_others_outputs(int64_t active) const {
    constexpr int64_t kLineFloats = kCacheLine / sizeof(float);
    if (plan_.unit_threads == 1) return;
    const Range own = pass_.own_outputs();
    for (int64_t i = 0; i < active; ++i) {
      for (int64_t j = 0; j < p_.output_size(); j += kLineFloats) {
        if (j < own.first || j >= own.last) __builtin_prefetch(mine_.h_prev[i] + j);
      }
    }
  }

  void project(const LayerShape& shape, const LayerWeights& w, const void* packed, bool reverse,
               int64_t s, int64_t active, const SequenceView& output) {
    lane_.step_barrier->wait();  // all blocks of `hidden` are there
    const int64_t width = round_up(p_.projection, kPanel);
    for (int64_t i = 0; i < active; ++i) mine_.projected[i] = lane_.projected + i * width;
    const Range own = pass_.own_outputs();
    if (p_.direct) {
      if (own.first < own.last) {
        pass_.direct(w)(
            active, p_.hidden, mine_.h, element(w.weight_hr, w.dtype, own.first * w.ld_hr), w.ld_hr,
            own.last - own.first, scratch_.projection_start, own.first, mine_.projected);
      }
    } else {
      multiply(pass_.gemm(),
               {active, p_.hidden, mine_.h, pass_.part(packed, shape.hr_offset()),
                shape.hr_panels(), pass_.projection_panels.first, pass_.projection_panels.last,
                scratch_.projection_start, mine_.projected});
    }
    for (int64_t i = 0; i < active; ++i) {
      const int64_t r = pass_.set.row(i);
      LayerPass::copy(p_.rows.at(output, p_.rows.time_of(s, r, reverse), r), mine_.projected[i],
                      own);
    }
  }

  void start_cell_state(int64_t stack) {
    if (mine_.c_state == nullptr) return;
    const Range units = pass_.own_units();
    for (int64_t i = 0; i < pass_.set.count; ++i) {
      const int64_t r = pass_.set.row(i);
      float* c = c_row(stack, -1, i);
      // Padding too: it is computed with, never shown, and must not slow the arithmetic down as a
      // denormal would.
      std::fill(c + pass_.blocks.first * kBlockUnits, c + pass_.blocks.last * kBlockUnits, 0.0f);
      if (p_.c_0 != nullptr)
        LayerPass::copy(c, p_.c_0 + pass_.state_row(stack, r) * p_.hidden, units);
    }
  }

  // Of rows that end in a segment, up to step `last`: a layer above may write over what lies
  // between layers before the longest row has ended.
  void finish_states(const Layer& layer, int d, int64_t last) {
    const bool reverse = p_.reversed(d);
    const int64_t stack = layer.stack;
    const Range outputs = pass_.own_outputs();
    for (int64_t i = 0; i < pass_.set.count; ++i) {
      const int64_t r = pass_.set.row(i);
      const int64_t length = p_.rows.length(r);
      if (length > last || (length <= layer.first && layer.first > 0)) continue;
      const int64_t state = pass_.state_row(stack, r);
      const float* h = h_before(p_, layer.output, stack, reverse, length, r, scratch_.zeros);
      if (p_.h_n != nullptr) LayerPass::copy(p_.h_n + state * p_.output_size(), h, outputs);
      if (p_.c_n != nullptr)
        LayerPass::copy(p_.c_n + state * p_.hidden, c_row(stack, length - 1, i), pass_.own_units());
    }
  }

  const Problem& p_;
  const Plan& plan_;
  const Scratch& scratch_;
  const int group_, lane_index_, unit_thread_;
  const LaneScratch& lane_;
  const MemberScratch& mine_;
  void* const* const made_;  // the group's share of Scratch::packed
  const LayerPass pass_;
};

struct ForwardPass {
  using Problem = rnnpack::Problem;
  using Scratch = rnnpack::Scratch;
  using Member = rnnpack::Member;

  static constexpr auto lay_out = &rnnpack::lay_out;
  static void start(const Scratch& s, const Problem& p, const Plan& plan) {
    for (int i = 0; i < plan.row_groups * plan.lanes; ++i)
      (new (s.lanes[i].step_barrier) Barrier)->reset(plan.unit_threads);
    for (int g = 0; g < plan.row_groups; ++g)
      (new (s.group_barriers + g) Barrier)->reset(plan.lanes * plan.unit_threads);
    (new (s.team_barrier) Barrier)->reset(plan.threads);
    std::fill_n(s.zeros, p.output_size(), 0.0f);
    if (p.projection > 0) std::fill_n(s.projection_start, round_up(p.projection, kPanel), 0.0f);
  }
};

}  // namespace

int64_t forward_scratch_bytes(const Problem& problem, const Plan& plan) {
  return scratch_bytes<ForwardPass>(problem, plan);
}

void run_forward(const KernelTable& kernels, const Problem& problem, const Plan& plan,
                 void* scratch) {
  Run<ForwardPass>(kernels, problem, plan, scratch);
}

}  // namespace rnnpack
