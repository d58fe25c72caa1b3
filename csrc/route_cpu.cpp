#include "route_cpu.h"

#include <cmath>

#include "simd.h"

namespace mlx_dsv4::DSV4_ISA {
namespace {

static_assert(
    kRouteMaxExpertsUsed == 16, "the chosen experts of a token fill one vector");

// sqrt(softplus(x)), stable on both sides.
F32x16 expert_scores(F32x16 x) {
  const F32x16 zero = simd::set1(0);
  const F32x16 below = simd::min(x, simd::sub(zero, x));  // -|x|, and NaN stays NaN
  return simd::sqrt(simd::add(simd::max(zero, x), simd::log1p_unit(simd::exp(below))));
}

// Orders keys best first: higher first, NaN after every number. Equal keys are not "better",
// so the id that was inserted earlier, the lower one, stays in front.
bool better(float a, float b) { return a > b || (std::isnan(b) && !std::isnan(a)); }

void weigh(const float* logits, const int32_t* ids, float* weights, RouteParams p) {
  float scores[16] = {};
  for (int j = 0; j < p.k; ++j) {
    scores[j] = logits[ids[j]];
  }
  simd::store(scores, expert_scores(simd::load(scores)));
  float sum = 0;
  for (int j = 0; j < p.k; ++j) {
    sum += scores[j];
  }
  for (int j = 0; j < p.k; ++j) {
    weights[j] = scores[j] / (sum + 1e-20f) * p.scale;
  }
}

// The best keys seen so far, best first.
struct Best {
  int32_t* ids;
  int k;
  int found = 0;
  float keys[kRouteMaxExpertsUsed] = {};

  void offer(int expert, float key) {
    if (found == k && !better(key, keys[k - 1])) {
      return;
    }
    int at = found < k ? found++ : k - 1;
    for (; at > 0 && better(key, keys[at - 1]); --at) {
      keys[at] = keys[at - 1];
      ids[at] = ids[at - 1];
    }
    keys[at] = key;
    ids[at] = expert;
  }
};

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
    Best best{.ids = ids + t * p.k, .k = p.k};
    for (int first = 0; first < p.n_experts; first += 16) {
      const int n = p.n_experts - first < 16 ? p.n_experts - first : 16;
      float scores[16] = {};
      std::memcpy(scores, row + first, sizeof(float) * n);
      simd::store(scores, expert_scores(simd::load(scores)));
      for (int i = 0; i < n; ++i) {
        best.offer(first + i, scores[i] + bias[first + i]);
      }
    }
    weigh(row, best.ids, weights + t * p.k, p);
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
    const bool known = tokens[t] >= 0 && tokens[t] < p.n_rows;
    bool right = known;
    for (int j = 0; j < p.k; ++j) {
      const int32_t id = known ? table[int64_t{tokens[t]} * p.k + j] : 0;
      const bool exists = id >= 0 && id < p.n_experts;
      chosen[j] = exists ? id : 0;
      right = right && exists;
    }
    weigh(logits + t * p.n_experts, chosen, weights + t * p.k, p);
    for (int j = 0; j < p.k && !right; ++j) {
      weights[t * p.k + j] = __builtin_nanf("");
    }
  }
}

}  // namespace

const RouteKernels& kernels(const RouteKernels*) {
  static constexpr RouteKernels table{scored, hashed};
  return table;
}

}  // namespace mlx_dsv4::DSV4_ISA
