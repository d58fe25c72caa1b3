#include "route_cpu.h"

#include <cmath>

#include "simd.h"

namespace mlx_dsv4::DSV4_ISA {
namespace {

// sqrt(softplus(x)), stable on both sides.
float expert_score(float x) {
  return std::sqrt((x > 0 ? x : 0) + std::log1p(std::exp(-std::fabs(x))));
}

// Orders keys best first: higher first, NaN after every number. Equal keys are not "better",
// so the id that was inserted earlier, the lower one, stays in front.
bool better(float a, float b) { return a > b || (std::isnan(b) && !std::isnan(a)); }

void weigh(const float* logits, const int32_t* ids, float* weights, RouteParams p) {
  float sum = 0;
  for (int j = 0; j < p.k; ++j) {
    weights[j] = expert_score(logits[ids[j]]);
    sum += weights[j];
  }
  for (int j = 0; j < p.k; ++j) {
    weights[j] = weights[j] / (sum + 1e-20f) * p.scale;
  }
}

void scored(
    const float* logits,
    const float* bias,
    int32_t* ids,
    float* weights,
    RouteParams p,
    int64_t begin,
    int64_t end) {
  for (int64_t t = begin; t < end; ++t) {
    const float* row = logits + t * p.n_experts;
    int32_t* best = ids + t * p.k;
    float keys[kRouteMaxExpertsUsed];
    int found = 0;
    for (int e = 0; e < p.n_experts; ++e) {
      const float key = expert_score(row[e]) + bias[e];
      if (found == p.k && !better(key, keys[p.k - 1])) {
        continue;
      }
      int at = found < p.k ? found++ : p.k - 1;
      for (; at > 0 && better(key, keys[at - 1]); --at) {
        keys[at] = keys[at - 1];
        best[at] = best[at - 1];
      }
      keys[at] = key;
      best[at] = e;
    }
    weigh(row, best, weights + t * p.k, p);
  }
}

void hashed(
    const float* logits,
    const int32_t* tokens,
    const int32_t* table,
    int32_t* ids,
    float* weights,
    RouteParams p,
    int64_t begin,
    int64_t end) {
  for (int64_t t = begin; t < end; ++t) {
    int32_t* chosen = ids + t * p.k;
    std::memcpy(chosen, table + int64_t{tokens[t]} * p.k, sizeof(int32_t) * p.k);
    weigh(logits + t * p.n_experts, chosen, weights + t * p.k, p);
  }
}

}  // namespace

const RouteKernels& kernels(const RouteKernels*) {
  static constexpr RouteKernels table{scored, hashed};
  return table;
}

}  // namespace mlx_dsv4::DSV4_ISA
