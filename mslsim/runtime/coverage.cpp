// Coverage: libraries announce their points when they are loaded; a guard reports its point once.
#include "coverage.h"

#include <utility>

namespace mslsim {
namespace {

// Never freed: libraries stay loaded. A guard holds its place in the second list.
std::vector<Coverage*>& libraries() {
  static auto& all = *new std::vector<Coverage*>;
  return all;
}

std::vector<std::pair<Coverage*, size_t>>& guards() {
  static auto& all = *new std::vector<std::pair<Coverage*, size_t>>{{nullptr, 0}};
  return all;
}

}  // namespace

size_t n_covered_libraries() { return libraries().size(); }

const Coverage* last_coverage() { return libraries().back(); }

}  // namespace mslsim

using namespace mslsim;

extern "C" {

void __sanitizer_cov_trace_pc_guard_init(uint32_t* begin, uint32_t* end) {
  if (begin == end || *begin != 0) {
    return;
  }
  auto* coverage = new Coverage;
  coverage->reached.resize(end - begin);
  libraries().push_back(coverage);
  for (uint32_t* guard = begin; guard != end; ++guard) {
    *guard = static_cast<uint32_t>(guards().size());
    guards().push_back({coverage, static_cast<size_t>(guard - begin)});
  }
}

void __sanitizer_cov_pcs_init(const uintptr_t* begin, const uintptr_t* end) {
  if (!libraries().empty() && libraries().back()->points == nullptr) {
    libraries().back()->points = begin;
    libraries().back()->n_points = (end - begin) / 2;
  }
}

void __sanitizer_cov_trace_pc_guard(uint32_t* guard) {
  if (*guard != 0) {
    const auto [coverage, index] = guards()[*guard];
    coverage->reached[index] = true;
    *guard = 0;
  }
}

}  // extern "C"
