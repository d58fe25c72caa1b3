// Which token each expert of a call serves, and what becomes of ids that are no expert's.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "experts_cpu.h"

namespace mlx_dsv4 {

struct Slots {
  std::vector<ExpertGroup> groups;
  std::vector<int32_t> tokens;
  std::vector<float> weights;
};

inline bool is_expert(int32_t id, const ExpertsParams& p) {
  return id >= 0 && id < p.n_experts;
}

// Sorts the slots of n_tokens tokens by expert; slots of one expert keep their order, and those
// of no expert are left out.
inline Slots sort_slots(
    const int32_t* ids, const float* weights, int64_t n_tokens, const ExpertsParams& p) {
  const int64_t n = n_tokens * p.used;
  std::vector<int32_t> next(p.n_experts + 1);
  for (int64_t i = 0; i < n; ++i) {
    if (is_expert(ids[i], p)) {
      ++next[ids[i] + 1];
    }
  }
  Slots slots{{}, std::vector<int32_t>(n), std::vector<float>(n)};
  for (int e = 0; e < p.n_experts; ++e) {
    if (next[e + 1] > 0) {
      slots.groups.push_back({e, next[e], next[e + 1]});
    }
    next[e + 1] += next[e];
  }
  for (int64_t i = 0; i < n; ++i) {
    if (is_expert(ids[i], p)) {
      const int32_t slot = next[ids[i]]++;
      slots.tokens[slot] = static_cast<int32_t>(i / p.used);
      slots.weights[slot] = weights[i];
    }
  }
  return slots;
}

// A kernel cannot raise an error, see docs/architecture.md.
inline void store_nan(
    const int32_t* ids, float* out, int64_t n_tokens, const ExpertsParams& p) {
  for (int64_t i = 0; i < n_tokens * p.used; ++i) {
    if (!is_expert(ids[i], p)) {
      std::fill_n(out + i / p.used * p.dim, p.dim, std::nanf(""));
    }
  }
}

}  // namespace mlx_dsv4
