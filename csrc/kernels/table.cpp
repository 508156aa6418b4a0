#include "kernels/table.h"

namespace rnnpack {

namespace baseline { extern const KernelTable table; }
#if defined(__x86_64__)
namespace avx2 { extern const KernelTable table; }
namespace avx512 { extern const KernelTable table; }
#endif
#if defined(__aarch64__)
namespace neon { extern const KernelTable table; }
#endif

const KernelTable* kernels_for(Isa isa) {
  if (!cpu_supports(isa)) return nullptr;
  switch (isa) {
    case Isa::kBaseline: return &baseline::table;
#if defined(__x86_64__)
    case Isa::kAvx2: return &avx2::table;
    case Isa::kAvx512: return &avx512::table;
#endif
#if defined(__aarch64__)
    case Isa::kNeon: return &neon::table;
#endif
    default: return nullptr;
  }
}

const KernelTable& kernels() {
  static const KernelTable& chosen = *kernels_for(chosen_isa());
  return chosen;
}

}  // namespace rnnpack
