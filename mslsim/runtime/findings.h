// What kernels did wrong, collected over one dispatch.
#pragma once

#include <mutex>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "threads.h"

namespace mslsim {

struct Finding {
  std::string kind;
  std::string text;
  uint64_t at;     // address in the kernel's code, 0 if unknown
  uint64_t other;  // of the access or call that it conflicts with
};

class Findings {
 public:
  // Keeps the first finding of each kind at each pair of addresses, up to a limit.
  void add(Finding finding);
  const std::vector<Finding>& all() const { return all_; }

 private:
  std::mutex mutex_;
  std::vector<Finding> all_;
  std::set<std::tuple<std::string, uint64_t, uint64_t>> seen_;
};

// Adds to the findings of the current dispatch.
void report(const char* kind, std::string text, uint64_t at = 0, uint64_t other = 0);

// Reports from a fibre, and ends the dispatch.
[[noreturn]] void fail(
    const char* kind, std::string text, uint64_t at = 0, uint64_t other = 0);

// "thread 40 (lane 8 of SIMD-group 1) of threadgroup (0,0,0)"
std::string described(const msl_thread& thread);

}  // namespace mslsim

struct msl_findings {
  std::vector<mslsim::Finding> all;
};
