// The time loop, backward: gradients of one layer and direction, from the last chunk of steps to
// the first.
//
// Each step turns dh into dgates (the cell's derivative, by blocks of units) and dgates into the dh
// of the step before (a product with weight_hh, by columns of h). Both are shared in the same way,
// so one barrier a step is enough: after dgates. When a chunk's dgates are there and still in the
// cache, the products that need no order in time follow (gradients.h): gradients of weights, biases
// and input.
#include <algorithm>
#include <new>

#include "engine/arena.h"
#include "engine/gradients.h"
#include "engine/layer_pass.h"
#include "engine/packing.h"
#include "engine/pass.h"
#include "engine/team.h"

namespace rnnpack {

namespace {

// Of the rows of the first six there is only what the thread owns: its blocks of units, its panels
// of outputs.
struct MemberScratch {
  float* own_dh;  // [rows, own outputs]
  float* own_dc;  // [rows, own units], as the three below; null for cells without a cell state
  float* own_c_0;
  float* own_gates;  // [chunk rows, own columns] when rebuilt
  float* unused_h;   // [rows, own units]: where a rebuilt step's h and c go
  float* unused_c;
  const float** a;  // [chunk rows] rows of input, then of h, of a chunk whose gates are rebuilt
  float** gates;    // [chunk rows]
  const float** c_prev;
  const float** c;
  const float** h_prev;
  const float** grad_output;
  const float** dgates_in;
  float** dh;
  float** dc;
  float** dgates;
  float** dh_total;
  float** dhidden;
  float** hidden;
  float** unused;
};

struct GroupScratch {
  float* dhidden;  // [rows, padded units]
  Barrier* step_barrier;
};

struct Scratch {
  void* packed;     // forward weights, when gates are rebuilt
  void* weight_hh;  // panels of weight_hh by its columns: k = gates * hidden
  void* weight_hr;  // panels of weight_hr by its columns: k = projection
  float* zeros;     // max(input, outputs, units), padded
  ChunkGradients chunk;
  GroupScratch* groups;
  MemberScratch* members;
  GradientScratch gradients;
  Barrier* team_barrier;
};

int64_t zeros_wanted(const Problem& p) {
  return std::max(
      {padded_units(p), round_up(p.output_size(), kPanel), round_up(p.input_size, kPanel)});
}

int64_t gate_columns(const Problem& p) { return traits(p.cell).gates * p.hidden; }

Scratch lay_out(Arena& arena, const BackwardProblem& b, const Plan& plan, bool measure) {
  const Problem& p = b.forward;
  const bool has_cell_state = traits(p.cell).has_cell_state;
  const LayerShape shape = p.shape(0);
  const int64_t rows = largest_group(p.rows, plan.row_groups);
  const int64_t units = padded_units(p);
  const int64_t outputs = round_up(p.output_size(), kPanel);
  const int64_t chunk_rows = gradient_chunk_steps(p) * rows;

  Scratch s{};
  if (b.recompute()) s.packed = arena.take<char>(shape.packed_bytes());
  s.weight_hh = arena.take<char>(p.hh_columns(p.output_size()).bytes(gate_columns(p)));
  if (p.projection > 0) s.weight_hr = arena.take<char>(p.hh_columns(p.hidden).bytes(p.projection));
  s.zeros = arena.take<float>(zeros_wanted(p));
  s.chunk = lay_out_chunk(arena, p);
  s.groups = arena.take<GroupScratch>(plan.row_groups);
  for (int g = 0; g < plan.row_groups; ++g) {
    GroupScratch group{};
    if (plan.threads > 1) arena.leave_page();
    if (p.projection > 0) group.dhidden = arena.take<float>(rows * units);
    group.step_barrier = arena.take<Barrier>(1);
    if (!measure) s.groups[g] = group;
  }
  s.members = arena.take<MemberScratch>(plan.threads);
  for (int i = 0; i < plan.threads; ++i) {
    MemberScratch m{};
    if (plan.threads > 1) arena.leave_page();
    const int unit_thread = i % plan.unit_threads;
    const Range blocks = share(shape.gates().blocks(), plan.unit_threads, unit_thread);
    const Range panels = share(outputs / kPanel, plan.unit_threads, unit_thread);
    m.own_dh = arena.take<float>(rows * units_of(panels));
    if (has_cell_state) {
      m.own_dc = arena.take<float>(rows * units_of(blocks));
      m.own_c_0 = arena.take<float>(rows * units_of(blocks));
    }
    if (b.recompute()) {
      m.own_gates = arena.take<float>(chunk_rows * columns_of(shape.gates(), blocks));
      m.unused_h = arena.take<float>(rows * units_of(blocks));
      if (has_cell_state) m.unused_c = arena.take<float>(rows * units_of(blocks));
    }
    m.a = arena.take<const float*>(chunk_rows);
    m.gates = arena.take<float*>(chunk_rows);
    for (const float*** rows_of : {&m.c_prev, &m.c, &m.h_prev, &m.grad_output, &m.dgates_in})
      *rows_of = arena.take<const float*>(rows);
    for (float*** rows_of :
         {&m.dh, &m.dc, &m.dgates, &m.dh_total, &m.dhidden, &m.hidden, &m.unused})
      *rows_of = arena.take<float*>(rows);
    if (!measure) s.members[i] = m;
  }
  s.gradients = lay_out_gradients(arena, b, plan.threads, measure);
  s.team_barrier = arena.take<Barrier>(1);
  return s;
}

class Member {
 public:
  Member(const KernelTable& kernels, const BackwardProblem& problem, const Plan& plan,
         const Scratch& scratch, int index)
      : b_(problem),
        p_(problem.forward),
        plan_(plan),
        scratch_(scratch),
        index_(index),
        group_(scratch.groups[index / plan.unit_threads]),
        mine_(scratch.members[index]),
        pass_(kernels, problem.forward, plan, index / plan.unit_threads, index % plan.unit_threads),
        gradients_(kernels, problem, scratch.gradients, scratch.chunk, scratch.zeros, plan.threads,
                   index),
        shape_(problem.forward.shape(0)) {}

  void run() {
    pack();
    start_gradients();
    const int64_t chunk_steps = gradient_chunk_steps(p_);
    for (int64_t last = p_.rows.steps; last > 0;) {
      const int64_t first = std::max<int64_t>(last - chunk_steps, 0);
      run_chunk(first, last);
      scratch_.team_barrier->wait();  // all of the chunk's dgates are there
      gradients_.add_chunk(first, last);
      scratch_.team_barrier->wait();  // and may be written over
      last = first;
    }
    finish_gradients();
    gradients_.finish();
  }

 private:
  void pack() {
    const LayerWeights& w = p_.weights[0];
    if (b_.recompute())
      pack_share(pass_.kernels, shape_, w, plan_.threads, index_, scratch_.packed);
    pack_columns_share(pass_.kernels,
                       {w.weight_hh, w.dtype, w.ld_hh, gate_columns(p_), p_.output_size()},
                       p_.storage, p_.hh_group, plan_.threads, index_, scratch_.weight_hh);
    if (p_.projection > 0) {
      pack_columns_share(pass_.kernels, {w.weight_hr, w.dtype, w.ld_hr, p_.projection, p_.hidden},
                         p_.storage, p_.hh_group, plan_.threads, index_, scratch_.weight_hr);
    }
    gradients_.start();
    scratch_.team_barrier->wait();
  }

  // Columns of dh that this thread makes, in panels.
  Range own_output_panels() const {
    return p_.projection > 0 ? pass_.projection_panels : pass_.blocks;
  }

  // Of the group's row i.
  float* dh_row(int64_t i) const {
    return LayerPass::own_row(mine_.own_dh, i, own_output_panels());
  }
  float* dc_row(int64_t i) const { return LayerPass::own_row(mine_.own_dc, i, pass_.blocks); }
  float* c_0_row(int64_t i) const { return LayerPass::own_row(mine_.own_c_0, i, pass_.blocks); }

  void start_gradients() {
    const Range outputs = pass_.own_outputs();
    const Range units = pass_.own_units();
    const Range padded{pass_.blocks.first * kBlockUnits, pass_.blocks.last * kBlockUnits};
    for (int64_t i = 0; i < pass_.set.count; ++i) {
      const int64_t r = pass_.set.row(i);
      float* dh = dh_row(i);
      std::fill(dh + own_output_panels().first * kPanel, dh + own_output_panels().last * kPanel,
                0.0f);
      LayerPass::copy(dh, b_.grad_h_0 + p_.rows.row_of(r) * p_.output_size(), outputs);
      if (mine_.own_dc == nullptr) continue;
      float* dc = dc_row(i);
      float* c_0 = c_0_row(i);
      std::fill(dc + padded.first, dc + padded.last, 0.0f);
      std::fill(c_0 + padded.first, c_0 + padded.last, 0.0f);
      LayerPass::copy(dc, b_.grad_c_0 + p_.rows.row_of(r) * p_.hidden, units);
      if (p_.c_0 != nullptr) LayerPass::copy(c_0, p_.c_0 + p_.rows.row_of(r) * p_.hidden, units);
    }
  }

  void finish_gradients() {
    for (int64_t i = 0; i < pass_.set.count; ++i) {
      const int64_t r = pass_.set.row(i);
      LayerPass::copy(b_.grad_h_0 + p_.rows.row_of(r) * p_.output_size(), dh_row(i),
                      pass_.own_outputs());
      if (mine_.own_dc != nullptr) {
        LayerPass::copy(b_.grad_c_0 + p_.rows.row_of(r) * p_.hidden, dc_row(i), pass_.own_units());
      }
    }
  }

  void run_chunk(int64_t first, int64_t last) {
    int64_t end = b_.recompute() ? rebuild_gates(first, last) : 0;
    for (int64_t s = last - 1; s >= first; --s) {
      const int64_t active = pass_.set.active_at(p_.rows, s);
      if (b_.recompute()) {
        end -= active;
      } else {
        for (int64_t i = 0; i < active; ++i) {
          mine_.gates[i] =
              p_.reserve_gates + p_.rows.kept_at(s, pass_.set.row(i)) * pass_.gates.columns();
        }
      }
      run_step(s, p_.rows.start_of(s) - p_.rows.start_of(first), active, mine_.gates + end);
    }
  }

  // c of the group's row i before step s.
  const float* c_before(int64_t s, int64_t i) const {
    return s > 0 ? p_.reserve_c + p_.rows.kept_at(s - 1, pass_.set.row(i)) * pass_.units
                 : c_0_row(i);
  }

  const float* h_before(int64_t s, int64_t r) const {
    return rnnpack::h_before(p_, p_.output, 0, p_.reverse, s, r, scratch_.zeros);
  }

  // Gates of steps [first, last) from input, h and c, with the sums in the forward pass's order:
  // the same bits. Returns the number of rows.
  int64_t rebuild_gates(int64_t first, int64_t last) {
    const int64_t rows = pass_.gather_rows(p_.input, p_.reverse, first, last, mine_.a, mine_.gates,
                                           [&](int64_t s, int64_t i) {
      return pass_.own_gates_row(mine_.own_gates, (s - first) * pass_.set.count + i);
    });
    pass_.start_gates(shape_, p_.weights[0], scratch_.packed, rows, mine_.a, mine_.gates);

    const bool skip_first = first == 0 && p_.h_0 == nullptr;
    const int64_t skipped = skip_first ? pass_.set.active_at(p_.rows, 0) : 0;
    int64_t row = 0;
    for (int64_t s = first; s < last; ++s) {
      for (int64_t i = 0; i < pass_.set.active_at(p_.rows, s); ++i)
        mine_.a[row++] = h_before(s, pass_.set.row(i));
    }
    pass_.multiply_gates(shape_, p_.weights[0], scratch_.packed, true, rows - skipped,
                         mine_.a + skipped, nullptr, mine_.gates + skipped);

    float** gates = mine_.gates;
    for (int64_t s = first; s < last; ++s) {
      const int64_t active = pass_.set.active_at(p_.rows, s);
      for (int64_t i = 0; i < active; ++i) {
        const int64_t r = pass_.set.row(i);
        if (mine_.unused_c != nullptr) {
          mine_.c_prev[i] = c_before(s, i);
          mine_.dc[i] = LayerPass::own_row(mine_.unused_c, i, pass_.blocks);
        }
        mine_.h_prev[i] = h_before(s, r);
        mine_.unused[i] = LayerPass::own_row(mine_.unused_h, i, pass_.blocks);
      }
      pass_.kernels.forward[static_cast<int>(p_.cell)](
          {pass_.gates, active, pass_.blocks.first, pass_.blocks.last, gates, mine_.c_prev,
           mine_.dc, mine_.h_prev, mine_.unused, true});
      gates += active;
    }
    return rows;
  }

  // place: rows of the chunk's earlier steps.
  void run_step(int64_t s, int64_t place, int64_t active, const float* const* gates) {
    const bool projected = p_.projection > 0;
    for (int64_t i = 0; i < active; ++i) {
      const int64_t r = pass_.set.row(i);
      if (mine_.own_dc != nullptr) {
        mine_.c_prev[i] = c_before(s, i);
        mine_.c[i] = p_.reserve_c + p_.rows.kept_at(s, r) * pass_.units;
        mine_.dc[i] = dc_row(i);
      }
      mine_.h_prev[i] = h_before(s, r);
      mine_.dh[i] = dh_row(i);
      mine_.dgates_in[i] = mine_.dgates[i] = scratch_.chunk.dgates_row(place + r);
      if (b_.grad_output.data != nullptr)
        mine_.grad_output[i] = p_.rows.at(b_.grad_output, p_.rows.time_of(s, r, p_.reverse), r);
      if (projected) {
        mine_.dh_total[i] = scratch_.chunk.dh_total_row(place + r);
        mine_.hidden[i] = scratch_.chunk.hidden_row(place + r);
        mine_.dhidden[i] = group_.dhidden + i * pass_.units;
      }
    }
    if (projected) unproject(active);

    pass_.kernels.backward[static_cast<int>(p_.cell)](
        {pass_.gates, active, pass_.blocks.first, pass_.blocks.last, gates, mine_.c_prev, mine_.c,
         mine_.h_prev, projected || b_.grad_output.data == nullptr ? nullptr : mine_.grad_output,
         projected ? mine_.dhidden : mine_.dh, mine_.dc, mine_.dgates,
         projected ? mine_.hidden : nullptr});
    group_.step_barrier->wait();

    const Range own = own_output_panels();
    multiply(pass_.gemm(), {active, gate_columns(p_), mine_.dgates_in, scratch_.weight_hh,
                            p_.hh_columns(p_.output_size()), own.first, own.last, nullptr, mine_.dh,
                            LayerPass::reads_backwards(s)});
  }

  // dh of the projected state to dh of the cell's own: dh_total = dh + grad_output, then the
  // product with weight_hr.
  void unproject(int64_t active) {
    const Range own = pass_.own_outputs();
    for (int64_t i = 0; i < active; ++i) {
      for (int64_t j = own.first; j < own.last; ++j) {
        mine_.dh_total[i][j] =
            mine_.dh[i][j] + (b_.grad_output.data != nullptr ? mine_.grad_output[i][j] : 0.0f);
      }
      std::fill(mine_.dh[i] + own_output_panels().first * kPanel,
                mine_.dh[i] + own_output_panels().last * kPanel, 0.0f);
    }
    group_.step_barrier->wait();
    multiply(pass_.gemm(),
             {active, p_.projection, mine_.dh_total, scratch_.weight_hr, p_.hh_columns(p_.hidden),
              pass_.blocks.first, pass_.blocks.last, scratch_.zeros, mine_.dhidden});
  }

  const BackwardProblem& b_;
  const Problem& p_;
  const Plan& plan_;
  const Scratch& scratch_;
  const int index_;
  const GroupScratch& group_;
  const MemberScratch& mine_;
  const LayerPass pass_;
  Gradients gradients_;
  const LayerShape shape_;
};

struct BackwardPass {
  using Problem = rnnpack::BackwardProblem;
  using Scratch = rnnpack::Scratch;
  using Member = rnnpack::Member;

  static constexpr auto lay_out = &rnnpack::lay_out;
  static void start(const Scratch& s, const Problem& b, const Plan& plan) {
    for (int g = 0; g < plan.row_groups; ++g)
      (new (s.groups[g].step_barrier) Barrier)->reset(plan.unit_threads);
    (new (s.team_barrier) Barrier)->reset(plan.threads);
    std::fill_n(s.zeros, zeros_wanted(b.forward), 0.0f);
  }
};

}  // namespace

int64_t backward_scratch_bytes(const BackwardProblem& problem, const Plan& plan) {
  return scratch_bytes<BackwardPass>(problem, plan);
}

void run_backward(const KernelTable& kernels, const BackwardProblem& problem, const Plan& plan,
                  void* scratch) {
  Run<BackwardPass>(kernels, problem, plan, scratch);
}

}  // namespace rnnpack
