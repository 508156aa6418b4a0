// Any processor: 16-byte vectors with the compiler's default flags.
#define RNNPACK_ISA baseline
#define RNNPACK_VEC_BYTES 16

#include "base/cpu.h"
#include "kernels/gemm/generic.h"

namespace rnnpack::baseline {

inline constexpr Isa kIsa = Isa::kBaseline;

// 12 sums leave what a multiply and an add without a fused form need.
template <class Weight>
constexpr void add_shapes(GemmKernels& gemm) {
  add_tiles<Weight, 12, 3>(gemm);
}

}  // namespace rnnpack::baseline

#include "kernels/isa/table.inc"
