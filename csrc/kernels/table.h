// Every kernel of one instruction set, and the choice among those that were compiled.
#pragma once

#include "base/cpu.h"
#include "kernels/cell/cell.h"
#include "kernels/direct/direct.h"
#include "kernels/gemm/gemm.h"
#include "kernels/pack/pack.h"

namespace rnnpack {

struct KernelTable {
  Isa isa;
  GemmKernels gemm;
  DirectKernel direct;
  PackRows pack_rows;
  PackColumns pack_columns;
  CellForwardKernel forward[kCellKinds];
  CellBackwardKernel backward[kCellKinds];
};

// The table for `isa`, or null if it was not compiled or this processor cannot run it.
const KernelTable* kernels_for(Isa isa);

// The best table for this processor; RNNPACK_ISA=baseline|avx2|avx512|neon in the environment asks
// for a lower one. Chosen once.
const KernelTable& kernels();

}  // namespace rnnpack
