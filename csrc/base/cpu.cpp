#include "base/cpu.h"

#include <cstdlib>
#include <cstring>

#if defined(__unix__) || defined(__APPLE__)
#include <unistd.h>
#endif

namespace rnnpack {

namespace {

struct Feature {
  const char* name;
  bool (*present)();
};

constexpr Feature kFeatures[] = {
#if defined(__x86_64__)
    {"avx2", [] { return __builtin_cpu_supports("avx2") != 0; }},
    {"fma", [] { return __builtin_cpu_supports("fma") != 0; }},
    {"avx512f", [] { return __builtin_cpu_supports("avx512f") != 0; }},
    {"avx512vl", [] { return __builtin_cpu_supports("avx512vl") != 0; }},
    {"avx512bw", [] { return __builtin_cpu_supports("avx512bw") != 0; }},
    {"avx512dq", [] { return __builtin_cpu_supports("avx512dq") != 0; }},
    {"avx512vnni", [] { return __builtin_cpu_supports("avx512vnni") != 0; }},
    {"avx512bf16", [] { return __builtin_cpu_supports("avx512bf16") != 0; }},
#elif defined(__aarch64__)
    {"neon", [] { return true; }},
#endif
    {nullptr, nullptr},
};

}  // namespace

const char* isa_name(Isa isa) {
  constexpr const char* kNames[kIsas] = {"baseline", "neon", "avx2", "avx512"};
  return kNames[static_cast<int>(isa)];
}

bool cpu_supports(Isa isa) {
  switch (isa) {
    case Isa::kBaseline: return true;
#if defined(__aarch64__)
    case Isa::kNeon: return true;
#else
    case Isa::kNeon: return false;
#endif
#if defined(__x86_64__)
    case Isa::kAvx2: return __builtin_cpu_supports("x86-64-v3") != 0;
    case Isa::kAvx512: return __builtin_cpu_supports("x86-64-v4") != 0;
#else
    case Isa::kAvx2:
    case Isa::kAvx512: return false;
#endif
  }
  return false;
}

Isa chosen_isa() {
  const char* asked = std::getenv("RNNPACK_ISA");
  Isa best = Isa::kBaseline;
  for (int i = 0; i < kIsas; ++i) {
    const Isa isa = static_cast<Isa>(i);
    if (!cpu_supports(isa)) continue;
    best = isa;
    if (asked != nullptr && std::strcmp(asked, isa_name(isa)) == 0) return isa;
  }
  return best;
}

const char* cpu_feature_name(int i) { return kFeatures[i].name; }
bool cpu_feature(int i) { return kFeatures[i].present(); }

int64_t l2_cache_bytes() {
  int64_t bytes = 0;
#if defined(_SC_LEVEL2_CACHE_SIZE)
  bytes = sysconf(_SC_LEVEL2_CACHE_SIZE);
#endif
  return bytes > 0 ? bytes : int64_t{1} << 20;
}

}  // namespace rnnpack
