// Router: the experts of a token and their weights.
//
//   s[e] = sqrt(softplus(logits[t, e]))
//   ids  = the k experts of highest s[e] + bias[e], equal keys to the lower id, NaN last
//          (scored), or table[tokens[t]] (hashed)
//   weights[t, j] = s[ids[j]] / (sum_j s[ids[j]] + 1e-20) * scale
//
// Shapes    logits [T, E] f32   bias [E] f32   tokens [T] i32   table [V, k] i32
//           ids [T, k] i32   weights [T, k] f32   k <= 16
// Threads   one simdgroup per token; lane l reads experts l, l + 32, ...; lane j < k owns
//           the j-th choice; grid (ceil(T / 4), 1, 1) of threadgroups (32, 4, 1)
// Traffic   4 * E bytes per token, read k times (once from memory, then from cache)
// Numerics  f32; the sum runs in the order of the choices
// Page      docs/kernels/route.md

#include "route.h"

using namespace metal;

// log(1 + u) for u in [0, 1] to a few ulp: the rounding of 1 + u cancels in the ratio.
inline float log1p_unit(float u) {
  const float w = 1.0f + u;
  return w == 1.0f ? u : precise::log(w) * (u / (w - 1.0f));
}

// Neither side of softplus overflows, and NaN stays NaN.
inline float expert_score(float x) {
  const float above = x > 0.0f ? x : 0.0f;
  return precise::sqrt(above + log1p_unit(precise::exp(-fabs(x))));
}

// An expert in the order of choice: (key, id) comes before every other of a lower key, or of
// the same key and a higher id.
struct Choice {
  uint key;
  int id;
};

// Larger floats have larger keys; NaN has the lowest, 0.
inline uint ordered_key(float x) {
  const uint bits = as_type<uint>(x + 0.0f);  // -0 is 0
  const uint key = (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
  return isnan(x) ? 0 : key;
}

inline bool comes_before(Choice a, Choice b) {
  return a.key > b.key || (a.key == b.key && a.id < b.id);
}

// The first of all lanes' choices.
inline Choice first_of_simdgroup(Choice mine) {
  Choice first;
  first.key = simd_max(mine.key);
  first.id = simd_min(mine.key == first.key ? mine.id : INT_MAX);
  return first;
}

// Lane j < k holds the score of the j-th choice; `right` is false where an id is not one.
inline void store_weights(
    float score, bool right, device float* weights, RouteParams p, uint lane) {
  float sum = 0.0f;
  for (int j = 0; j < p.k; ++j) {
    sum += simd_shuffle(score, ushort(j));
  }
  const bool all_right = simd_all(right);
  if (int(lane) < p.k) {
    const float weight = score / (sum + 1e-20f) * p.scale;
    weights[lane] = all_right ? weight : NAN;
  }
}

[[kernel]] void route_scored(
    const device float* logits [[buffer(kRouteScoredLogits)]],
    const device float* bias [[buffer(kRouteScoredBias)]],
    device int* ids [[buffer(kRouteScoredIds)]],
    device float* weights [[buffer(kRouteScoredWeights)]],
    constant RouteParams& p [[buffer(kRouteScoredParams)]],
    uint group [[threadgroup_position_in_grid]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  const int t = int(group) * kRouteTokensPerGroup + int(simdgroup);
  if (t >= p.n_tokens) {
    return;
  }
  const device float* row = logits + size_t(t) * p.n_experts;
  Choice last{UINT_MAX, -1};
  Choice mine = last;
  for (int j = 0; j < p.k; ++j) {
    Choice best{0, INT_MAX};
    for (int e = int(lane); e < p.n_experts; e += kSimdWidth) {
      const Choice choice{ordered_key(expert_score(row[e]) + bias[e]), e};
      if (comes_before(last, choice) && comes_before(choice, best)) {
        best = choice;
      }
    }
    last = first_of_simdgroup(best);
    if (int(lane) == j) {
      mine = last;
    }
  }
  const bool chooses = int(lane) < p.k;
  if (chooses) {
    ids[size_t(t) * p.k + lane] = mine.id;
  }
  const float score = chooses ? expert_score(row[mine.id]) : 0.0f;
  store_weights(score, true, weights + size_t(t) * p.k, p, lane);
}

[[kernel]] void route_hashed(
    const device float* logits [[buffer(kRouteHashedLogits)]],
    const device int* tokens [[buffer(kRouteHashedTokens)]],
    const device int* table [[buffer(kRouteHashedTable)]],
    device int* ids [[buffer(kRouteHashedIds)]],
    device float* weights [[buffer(kRouteHashedWeights)]],
    constant RouteParams& p [[buffer(kRouteHashedParams)]],
    uint group [[threadgroup_position_in_grid]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  const int t = int(group) * kRouteTokensPerGroup + int(simdgroup);
  if (t >= p.n_tokens) {
    return;
  }
  const int token = tokens[t];
  const bool chooses = int(lane) < p.k;
  const bool known = token >= 0 && token < p.n_rows;
  int id = chooses && known ? table[size_t(token) * p.k + lane] : 0;
  const bool exists = id >= 0 && id < p.n_experts;
  id = exists ? id : 0;
  if (chooses) {
    ids[size_t(t) * p.k + lane] = id;
  }
  const float score = chooses ? expert_score(logits[size_t(t) * p.n_experts + id]) : 0.0f;
  store_weights(score, known && exists, weights + size_t(t) * p.k, p, lane);
}
