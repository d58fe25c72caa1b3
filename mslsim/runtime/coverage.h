// Which instrumented points of the loaded libraries have run.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace mslsim {

// Of one library, as clang's trace-pc-guard and pc-table lay it out.
struct Coverage {
  const uintptr_t* points = nullptr;  // pairs of address and flags
  size_t n_points = 0;
  std::vector<bool> reached;
};

// Number of libraries with coverage so far, and the last of them.
size_t n_covered_libraries();
const Coverage* last_coverage();

}  // namespace mslsim
