// Which instruction sets this processor has, and which one the library uses.
#pragma once

#include <cstdint>

namespace rnnpack {

// In order of preference; values are part of no file format.
enum class Isa : int32_t { kBaseline = 0, kNeon = 1, kAvx2 = 2, kAvx512 = 3 };
inline constexpr int kIsas = 4;

const char* isa_name(Isa isa);
bool cpu_supports(Isa isa);

// The best supported one, or what the environment variable RNNPACK_ISA names if that is supported.
Isa chosen_isa();

// Features that matter to kernels, present or not, for reports: name i, or null past the last.
const char* cpu_feature_name(int i);
bool cpu_feature(int i);

// Bytes of the second-level cache of one core; a common size (1 MiB) where the system does not say.
int64_t l2_cache_bytes();

}  // namespace rnnpack
