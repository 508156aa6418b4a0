// x86-64-v3: 16 registers of 8 floats, two per panel row.
#define RNNPACK_ISA avx2
#define RNNPACK_VEC_BYTES 32

#include "base/cpu.h"
#include "kernels/gemm/generic.h"

namespace rnnpack::avx2 {

inline constexpr Isa kIsa = Isa::kAvx2;

// 12 sums leave four registers for weights and inputs.
template <class Weight>
constexpr void add_shapes(GemmKernels& gemm) {
  add_tiles<Weight, 12, 6>(gemm);
}

}  // namespace rnnpack::avx2

#include "kernels/isa/table.inc"
