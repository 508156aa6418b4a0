// Any processor: 16-byte vectors with the compiler's default flags.
#define RNNPACK_ISA baseline
#define RNNPACK_VEC_BYTES 16

#include "base/cpu.h"
#include "kernels/gemm/generic.h"

namespace rnnpack::baseline {

inline constexpr Isa kIsa = Isa::kBaseline;

// SSE2 has 16 registers: 8 sums and what a multiply and an add without a fused form need.
template <class Weight>
constexpr void add_shapes(GemmKernels& gemm) {
  add_tiles<Weight, 1, 2>(gemm);
  add_tiles<Weight, 2, 1>(gemm);
  add_tiles<Weight, 3, 1>(gemm);
}

}  // namespace rnnpack::baseline

#include "kernels/isa/table.inc"
