// Every kernel of one instruction set, and the choice among those that were compiled.
#pragma once

#include "base/cpu.h"
#include "kernels/cell/cell.h"
#include "kernels/convert/convert.h"
#include "kernels/direct/direct.h"
#include "kernels/gemm/gemm.h"
#include "kernels/pack/pack.h"

namespace rnnpack {

struct KernelTable {
  Isa isa;
  GemmKernels gemm[kDTypes];  // by the type of the panels
  // By the type of the weights and that to which they are rounded: the same one, or from float32 to
  // another; null elsewhere.
  DirectKernel direct[kDTypes][kDTypes];
  PackRows pack_rows[kDTypes][kDTypes];
  PackColumns pack_columns[kDTypes][kDTypes];
  ToFloats to_floats[kDTypes];  // null for float32
  FromFloats from_floats[kDTypes];
  CellForwardKernel forward[kCellKinds];
  CellBackwardKernel backward[kCellKinds];
};

// The table for `isa`, or null if it was not compiled or this processor cannot run it.
const KernelTable* kernels_for(Isa isa);

// The best table for this processor; RNNPACK_ISA=baseline|avx2|avx512|neon in the environment asks
// for a lower one. Chosen once.
const KernelTable& kernels();

}  // namespace rnnpack
