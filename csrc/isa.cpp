#include "isa.h"

#include <atomic>
#include <sstream>
#include <stdexcept>

namespace mlx_dsv4 {
namespace {

#define DSV4_SPELL_ISA(isa, unused) #isa,
constexpr const char* kNames[] = {DSV4_EACH_ISA(DSV4_SPELL_ISA, )};
constexpr int kIsas = sizeof(kNames) / sizeof(kNames[0]);

bool cpu_has(int isa) {
#if defined(__x86_64__)
  switch (static_cast<Isa>(isa)) {
    case Isa::avx512:
      return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
             __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
             cpu_has(static_cast<int>(Isa::avx2));
    case Isa::avx2:
      // Every CPU with AVX2 also converts half precision (F16C).
      return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    default:
      return true;
  }
#else
  return isa < kIsas;
#endif
}

int best_isa() {
  int best = 0;
  for (int isa = 1; isa < kIsas; ++isa) {
    best = cpu_has(isa) ? isa : best;
  }
  return best;
}

std::atomic<int> chosen{best_isa()};

}  // namespace

Isa active_isa() { return static_cast<Isa>(chosen.load(std::memory_order_relaxed)); }

std::string isa_name() { return kNames[chosen]; }

std::vector<std::string> available_isas() {
  std::vector<std::string> names;
  for (int isa = 0; isa < kIsas; ++isa) {
    if (cpu_has(isa)) {
      names.push_back(kNames[isa]);
    }
  }
  return names;
}

void set_isa(const std::string& name) {
  for (int isa = 0; isa < kIsas; ++isa) {
    if (kNames[isa] == name && cpu_has(isa)) {
      chosen = isa;
      return;
    }
  }
  std::ostringstream message;
  message << "[set_isa] name must be one of";
  for (const auto& known : available_isas()) {
    message << " " << known;
  }
  message << "; got " << name;
  throw std::invalid_argument(message.str());
}

}  // namespace mlx_dsv4
