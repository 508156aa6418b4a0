// aarch64: 32 registers of 4 floats, four per panel row.
#define RNNPACK_ISA neon
#define RNNPACK_VEC_BYTES 16

#include "base/cpu.h"
#include "kernels/gemm/generic.h"

namespace rnnpack::neon {

inline constexpr Isa kIsa = Isa::kNeon;

template <class Weight>
constexpr void add_shapes(GemmKernels& gemm) {
  add_tiles<Weight, 24, 6>(gemm);
}

}  // namespace rnnpack::neon

#include "kernels/isa/table.inc"
