// x86-64-v4: 32 registers of 16 floats, one per panel row.
#define RNNPACK_ISA avx512
#define RNNPACK_VEC_BYTES 64

#include "base/cpu.h"
#include "kernels/gemm/generic.h"

namespace rnnpack::avx512 {

inline constexpr Isa kIsa = Isa::kAvx512;

// 24 sums leave eight registers for weights; inputs are broadcast from memory.
template <class Weight>
constexpr void add_shapes(GemmKernels& gemm) {
  add_tiles<Weight, 24, 6>(gemm);
  // Of 16-bit weights one row is bound by widening them, not by waiting for them.
  if constexpr (std::is_same_v<Weight, float>) {
    gemm.pipelined_rows = 8;
    gemm.pipelined_panels = 2;
    gemm.streamed_rows = 2;
    gemm.pipelined[0][0][2] = &pipelined_tile<Weight, 8, 1, 1, 3>;
    gemm.pipelined[0][0][3] = &pipelined_tile<Weight, 8, 1, 1, 4>;
    gemm.pipelined[0][1][2] = &pipelined_tile<Weight, 8, 2, 1, 3>;
    gemm.pipelined[0][1][3] = &pipelined_tile<Weight, 8, 2, 1, 4>;
    gemm.pipelined[1][0][2] = &pipelined_tile<Weight, 8, 1, 2, 3>;
    gemm.pipelined[1][0][3] = &pipelined_tile<Weight, 8, 1, 2, 4>;
    gemm.pipelined[1][1][2] = &pipelined_tile<Weight, 8, 2, 2, 3>;
    gemm.pipelined[1][1][3] = &pipelined_tile<Weight, 8, 2, 2, 4>;
  }
}

}  // namespace rnnpack::avx512

#include "kernels/isa/table.inc"
