// x86-64-v3: 16 registers of 8 floats, two per panel row.
#define RNNPACK_ISA avx2
#define RNNPACK_VEC_BYTES 32

#include "base/cpu.h"
#include "kernels/gemm/generic.h"

namespace rnnpack::avx2 {

inline constexpr Isa kIsa = Isa::kAvx2;

// 12 sums leave four registers for weights and inputs; a single row keeps four panels in flight or
// starves the multiply units.
template <class Weight>
constexpr void add_shapes(GemmKernels& gemm) {
  add_tiles<Weight, 1, 4>(gemm);
  add_tiles<Weight, 2, 3>(gemm);
  add_tiles<Weight, 3, 2>(gemm);
  add_tiles<Weight, 4, 1>(gemm);
  add_tiles<Weight, 5, 1>(gemm);
  add_tiles<Weight, 6, 1>(gemm);
}

}  // namespace rnnpack::avx2

#include "kernels/isa/table.inc"
