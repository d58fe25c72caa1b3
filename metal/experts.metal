// Routed experts: a clamped SwiGLU per chosen expert, summed with the router's weights.
//
//   h[p]   = silu(min(G_e x[t], c)) * clip(U_e x[t], -c, c)     pair p = (t, j), e = ids[p]
//   y[p]   = D_e h[p]
//   out[t] = sum_j weights[t, j] y[t, j]   by ascending expert, then j; NaN if an id is none
//
// Shapes    x [T, K] f32   ids [T, k] i32   weights [T, k] f32   gate, up [E, F, row_bytes] u8
//           down [E, K, row_bytes] u8   h [T k, F] f32   y [T k, K] f32   out [T, K] f32
// Threads   few tokens: one pair per tile. experts_hidden_few: 8 rows of gate and of up per
//           simdgroup; experts_down_few: 16 rows; grids (rows, T k) of (32, 8)
//           many: experts_order, a simdgroup per expert, lists the pairs by expert;
//           experts_tiles, one simdgroup, cuts the lists into tiles of 32 pairs;
//           experts_hidden_many: 16 + 16 rows x 32 pairs per simdgroup;
//           experts_down_many: 32 rows x 32 pairs; grids (rows, max_pair_tiles) of (32, 4)
//           experts_combine: a thread per value; grid (ceil(K / 256), T) of 256
// Traffic   few: the chosen experts' blocks once per pair; many: once per 32 pairs; h and y
//           once each way
// Numerics  products in the order of tile_products.h; exp and division precise; one fma per
//           term of out. A pair's values do not depend on its tile
// Page      docs/kernels/experts.md

#include "experts.h"
#include "tile_products.h"

// Pairs with a smaller expert id are before an expert's own, so each simdgroup finds its place.
[[kernel]] void experts_order(
    const device int* ids [[buffer(kOrderIds)]],
    device int* pairs [[buffer(kOrderPairs)]],
    device PairGroup* groups [[buffer(kOrderGroups)]],
    constant ExpertsParams& p [[buffer(kOrderParams)]],
    uint at [[threadgroup_position_in_grid]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  const int expert = int(at) * kOrderSimdgroups + int(simdgroup);
  if (expert >= p.n_experts) {
    return;
  }
  const int n_pairs = p.n_tokens * p.used;
  int smaller = 0;
  for (int pair = int(lane); pair < n_pairs; pair += kSimdWidth) {
    smaller += ids[pair] >= 0 && ids[pair] < expert ? 1 : 0;
  }
  const int first = simd_sum(smaller);
  int n = 0;
  for (int base = 0; base < n_pairs; base += kSimdWidth) {
    const int pair = base + int(lane);
    const int mine = pair < n_pairs && ids[pair] == expert ? 1 : 0;
    const int before = simd_prefix_exclusive_sum(mine);
    if (mine == 1) {
      pairs[first + n + before] = pair;
    }
    n += simd_sum(mine);
  }
  if (lane == 0) {
    groups[expert] = PairGroup{first, n};
  }
}

[[kernel]] void experts_tiles(
    const device PairGroup* groups [[buffer(kTilesGroups)]],
    device PairTile* out [[buffer(kTilesOut)]],
    constant ExpertsParams& p [[buffer(kTilesParams)]],
    uint lane [[thread_index_in_simdgroup]]) {
  int n = 0;
  for (int base = 0; base < p.n_experts; base += kSimdWidth) {
    const int expert = base + int(lane);
    const PairGroup group = expert < p.n_experts ? groups[expert] : PairGroup{0, 0};
    const int n_own = tiles(group.n, kManyTokens);
    const int to = n + simd_prefix_exclusive_sum(n_own);
    for (int i = 0; i < n_own; ++i) {
      const int begin = i * kManyTokens;
      out[to + i] =
          PairTile{expert, group.first + begin, min(kManyTokens, group.n - begin)};
    }
    n += simd_sum(n_own);
  }
  const int n_tiles = max_pair_tiles(p.n_tokens * p.used, p.n_experts);
  for (int i = n + int(lane); i < n_tiles; i += kSimdWidth) {
    out[i] = PairTile{0, 0, 0};
  }
}

// The pairs of this lane's columns: `tile.first` itself, or places of `pairs` where pairs
// are grouped. `shared` pairs have one row of x.
template <int kTokenTiles, bool kGrouped>
inline TokenColumns<kTokenTiles> pair_columns(
    PairTile tile, const device int* pairs, int shared, FragmentLane at) {
  TokenColumns<kTokenTiles> columns;
  DSV4_UNROLL
  for (int j = 0; j < kTokenTiles; ++j) {
    for (int c = 0; c < 2; ++c) {
      const int i = kFragment * j + at.column + c;
      const int pair = i >= tile.n ? -1 : kGrouped ? pairs[tile.first + i] : tile.first;
      columns.rows[j][c] = pair < 0 ? -1 : pair / shared;
    }
  }
  return columns;
}

// Comparisons are false for NaN, which stays.
inline float clamped_swiglu(float gate, float up, float clamp) {
  const float g = gate > clamp ? clamp : gate;
  const float u = up > clamp ? clamp : up < -clamp ? -clamp : up;
  return g * precise::divide(1.0f, 1.0f + precise::exp(-g)) * u;
}

// Rows [first_row, n) of one expert's matrix.
inline WeightRows expert_rows(
    const device uchar* matrices, int expert, int first_row, int n, int n_bytes) {
  const size_t row = size_t(expert) * n + first_row;
  return WeightRows{matrices + row * n_bytes, n_bytes, n - first_row};
}
