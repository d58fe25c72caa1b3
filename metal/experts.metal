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
// Bad ids   an id outside 0..E - 1 is in no list and no tile; nothing of it is read
// Page      docs/kernels/experts.md

#include "experts.h"
#include "tile_products.h"

// An expert's pairs stand behind as many places as there are smaller ids, so each simdgroup finds
// its own; places of negative ids stay empty, and nobody reads them.
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
    smaller += ids[pair] < expert ? 1 : 0;
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
    PairGroup group = {0, 0};
    if (expert < p.n_experts) {
      group = groups[expert];
    }
    const int n_own = ceil_div(group.n, kManyTokens);
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

// The pairs of this lane's columns: place i of a tile has the pair of place tile.first + i of
// `pairs`.
template <int kTokenTiles>
inline TokenColumns<kTokenTiles> listed_pairs(
    PairTile tile, const device int* pairs, MatrixLane at) {
  TokenColumns<kTokenTiles> columns;
  DSV4_UNROLL
  for (int j = 0; j < kTokenTiles; ++j) {
    for (int c = 0; c < 2; ++c) {
      const int i = kFragment * j + at.column + c;
      columns.rows[j][c] = i < tile.n ? pairs[tile.first + i] : -1;
    }
  }
  return columns;
}

// One pair, in the first column.
inline TokenColumns<1> single_pair(int pair, MatrixLane at) {
  TokenColumns<1> columns;
  columns.rows[0][0] = at.column == 0 ? pair : -1;
  columns.rows[0][1] = -1;
  return columns;
}

template <int kTokenTiles>
inline TokenColumns<kTokenTiles> tokens_of(
    thread const TokenColumns<kTokenTiles>& pairs, int used) {
  TokenColumns<kTokenTiles> columns;
  DSV4_UNROLL
  for (int j = 0; j < kTokenTiles; ++j) {
    for (int c = 0; c < 2; ++c) {
      columns.rows[j][c] = pairs.rows[j][c] < 0 ? -1 : pairs.rows[j][c] / used;
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

// Rows from `first_row` on of one expert's matrix of n rows.
inline WeightRows expert_rows(
    const device uchar* matrices, int expert, int first_row, int n, int n_bytes) {
  const size_t row = size_t(expert) * n + first_row;
  return WeightRows{matrices + row * n_bytes, n_bytes, n - first_row};
}

// One tile of h: rows from `first_row` on of gate and of up, times the tokens of `pairs`.
template <int kGateFormat, int kUpFormat, int kRowTiles, int kTokenTiles>
inline void hidden_tile(
    const device float* x,
    const device uchar* gate,
    const device uchar* up,
    device float* out,
    constant ExpertsParams& p,
    int expert,
    int first_row,
    thread const TokenColumns<kTokenTiles>& pairs,
    int n_pairs,
    threadgroup Partial<kRowTiles, kTokenTiles>* partials,
    TilePart own) {
  const TokenColumns<kTokenTiles> tokens = tokens_of(pairs, p.used);
  const int n_token_tiles = ceil_div(n_pairs, kFragment);
  const WeightRows gate_rows =
      expert_rows(gate, expert, first_row, p.hidden, int(row_bytes(kGateFormat, p.dim)));
  const WeightRows up_rows =
      expert_rows(up, expert, first_row, p.hidden, int(row_bytes(kUpFormat, p.dim)));
  Totals<kRowTiles, kTokenTiles> h = sum_tile<kGateFormat, kRowTiles>(
      gate_rows, x, size_t(p.dim), tokens, n_token_tiles, p.dim, partials, own);
  const Totals<kRowTiles, kTokenTiles> u = sum_tile<kUpFormat, kRowTiles>(
      up_rows, x, size_t(p.dim), tokens, n_token_tiles, p.dim, partials, own);
  if (own.part != 0) {
    return;
  }
  DSV4_UNROLL
  for (int i = 0; i < kRowTiles; ++i) {
    DSV4_UNROLL
    for (int j = 0; j < kTokenTiles; ++j) {
      for (int c = 0; c < 2; ++c) {
        h.of[i][j][c] = clamped_swiglu(h.of[i][j][c], u.of[i][j][c], p.clamp);
      }
    }
  }
  store_tile(
      h, pairs, out + first_row, size_t(p.hidden), gate_rows.n, matrix_lane(own.lane));
}

template <int kGateFormat, int kUpFormat>
[[kernel]] void experts_hidden_few(
    const device float* x [[buffer(kHiddenX)]],
    const device int* ids [[buffer(kHiddenIds)]],
    const device uchar* gate [[buffer(kHiddenGate)]],
    const device uchar* up [[buffer(kHiddenUp)]],
    device float* out [[buffer(kHiddenOut)]],
    constant ExpertsParams& p [[buffer(kHiddenParams)]],
    uint2 at [[threadgroup_position_in_grid]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  threadgroup Partial<kFewHiddenTiles, 1> partials[kFewSimdgroups];
  const int pair = int(at.y), expert = ids[pair];
  if (expert < 0 || expert >= p.n_experts) {
    return;
  }
  const TokenColumns<1> pairs = single_pair(pair, matrix_lane(lane));
  const TilePart own = tile_part(few_parts(p.dim), kFewSimdgroups, at.x, simdgroup, lane);
  hidden_tile<kGateFormat, kUpFormat>(
      x,
      gate,
      up,
      out,
      p,
      expert,
      own.tile * kFewHiddenTiles * kFragment,
      pairs,
      1,
      partials,
      own);
}

template <int kGateFormat, int kUpFormat>
[[kernel]] void experts_hidden_many(
    const device float* x [[buffer(kHiddenX)]],
    const device int* pairs [[buffer(kHiddenPairs)]],
    const device PairTile* pair_tiles [[buffer(kHiddenTiles)]],
    const device uchar* gate [[buffer(kHiddenGate)]],
    const device uchar* up [[buffer(kHiddenUp)]],
    device float* out [[buffer(kHiddenOut)]],
    constant ExpertsParams& p [[buffer(kHiddenParams)]],
    uint2 at [[threadgroup_position_in_grid]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  const PairTile tile = pair_tiles[at.y];
  if (tile.n == 0) {
    return;
  }
  const TokenColumns<kManyTokenTiles> columns =
      listed_pairs<kManyTokenTiles>(tile, pairs, matrix_lane(lane));
  const TilePart own = tile_part(1, kManySimdgroups, at.x, simdgroup, lane);
  hidden_tile<kGateFormat, kUpFormat>(
      x,
      gate,
      up,
      out,
      p,
      tile.expert,
      own.tile * kManyHiddenTiles * kFragment,
      columns,
      tile.n,
      (threadgroup Partial<kManyHiddenTiles, kManyTokenTiles>*)nullptr,
      own);
}

// One tile of y: rows from `first_row` on of down, times h of `pairs`.
template <int kFormat, int kRowTiles, int kTokenTiles>
inline void down_tile(
    const device float* h,
    const device uchar* down,
    device float* out,
    constant ExpertsParams& p,
    int expert,
    int first_row,
    thread const TokenColumns<kTokenTiles>& pairs,
    int n_pairs,
    threadgroup Partial<kRowTiles, kTokenTiles>* partials,
    TilePart own) {
  const WeightRows rows =
      expert_rows(down, expert, first_row, p.dim, int(row_bytes(kFormat, p.hidden)));
  const Totals<kRowTiles, kTokenTiles> y = sum_tile<kFormat, kRowTiles>(
      rows,
      h,
      size_t(p.hidden),
      pairs,
      ceil_div(n_pairs, kFragment),
      p.hidden,
      partials,
      own);
  if (own.part == 0) {
    store_tile(y, pairs, out + first_row, size_t(p.dim), rows.n, matrix_lane(own.lane));
  }
}

template <int kFormat>
[[kernel]] void experts_down_few(
    const device float* h [[buffer(kDownHidden)]],
    const device int* ids [[buffer(kDownIds)]],
    const device uchar* down [[buffer(kDownWeight)]],
    device float* out [[buffer(kDownOut)]],
    constant ExpertsParams& p [[buffer(kDownParams)]],
    uint2 at [[threadgroup_position_in_grid]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  threadgroup Partial<kFewRowTiles, 1> partials[kFewSimdgroups];
  const int pair = int(at.y), expert = ids[pair];
  if (expert < 0 || expert >= p.n_experts) {
    return;
  }
  const TokenColumns<1> pairs = single_pair(pair, matrix_lane(lane));
  const TilePart own =
      tile_part(few_parts(p.hidden), kFewSimdgroups, at.x, simdgroup, lane);
  down_tile<kFormat>(
      h,
      down,
      out,
      p,
      expert,
      own.tile * kFewRowTiles * kFragment,
      pairs,
      1,
      partials,
      own);
}

template <int kFormat>
[[kernel]] void experts_down_many(
    const device float* h [[buffer(kDownHidden)]],
    const device int* pairs [[buffer(kDownPairs)]],
    const device PairTile* pair_tiles [[buffer(kDownTiles)]],
    const device uchar* down [[buffer(kDownWeight)]],
    device float* out [[buffer(kDownOut)]],
    constant ExpertsParams& p [[buffer(kDownParams)]],
    uint2 at [[threadgroup_position_in_grid]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  const PairTile tile = pair_tiles[at.y];
  if (tile.n == 0) {
    return;
  }
  const TokenColumns<kManyTokenTiles> columns =
      listed_pairs<kManyTokenTiles>(tile, pairs, matrix_lane(lane));
  const TilePart own = tile_part(1, kManySimdgroups, at.x, simdgroup, lane);
  down_tile<kFormat>(
      h,
      down,
      out,
      p,
      tile.expert,
      own.tile * kManyRowTiles * kFragment,
      columns,
      tile.n,
      (threadgroup Partial<kManyRowTiles, kManyTokenTiles>*)nullptr,
      own);
}

// Of the choices after choice `last` in the order of (id, place), the first; k choices.
inline int next_choice(const device int* ids, int last, int k) {
  int next = -1;
  for (int j = 0; j < k; ++j) {
    const bool after =
        last < 0 || ids[j] > ids[last] || (ids[j] == ids[last] && j > last);
    if (after && (next < 0 || ids[j] < ids[next])) {
      next = j;
    }
  }
  return next;
}

[[kernel]] void experts_combine(
    const device int* ids [[buffer(kCombineIds)]],
    const device float* weights [[buffer(kCombineWeights)]],
    const device float* products [[buffer(kCombineProducts)]],
    device float* out [[buffer(kCombineOut)]],
    constant ExpertsParams& p [[buffer(kCombineParams)]],
    uint2 at [[threadgroup_position_in_grid]],
    uint thread_at [[thread_index_in_threadgroup]]) {
  const int d = int(at.x) * kCombineThreads + int(thread_at);
  if (d >= p.dim) {
    return;
  }
  const size_t first = size_t(at.y) * p.used;
  ids += first;
  float sum = 0.0f;
  for (int n = 0, j = -1; n < p.used; ++n) {
    j = next_choice(ids, j, p.used);
    const bool exists = ids[j] >= 0 && ids[j] < p.n_experts;
    const float y = exists ? products[(first + j) * p.dim + d] : NAN;
    sum = fma(weights[first + j], y, sum);
  }
  out[size_t(at.y) * p.dim + d] = sum;
}

#ifdef DSV4_EVERY_KERNEL
instantiate_kernel(experts_hidden_few, 0_0, kFormatF32, kFormatF32);
instantiate_kernel(experts_hidden_few, 8_8, kFormatQ8_0, kFormatQ8_0);
instantiate_kernel(experts_hidden_few, 39_39, kFormatMXFP4, kFormatMXFP4);
instantiate_kernel(experts_hidden_few, 12_12, kFormatQ4_K, kFormatQ4_K);
instantiate_kernel(experts_hidden_few, 16_16, kFormatIQ2_XXS, kFormatIQ2_XXS);
instantiate_kernel(experts_hidden_many, 0_0, kFormatF32, kFormatF32);
instantiate_kernel(experts_hidden_many, 8_8, kFormatQ8_0, kFormatQ8_0);
instantiate_kernel(experts_hidden_many, 39_39, kFormatMXFP4, kFormatMXFP4);
instantiate_kernel(experts_hidden_many, 12_12, kFormatQ4_K, kFormatQ4_K);
instantiate_kernel(experts_hidden_many, 16_16, kFormatIQ2_XXS, kFormatIQ2_XXS);
instantiate_kernel(experts_down_few, 0, kFormatF32);
instantiate_kernel(experts_down_few, 8, kFormatQ8_0);
instantiate_kernel(experts_down_few, 39, kFormatMXFP4);
instantiate_kernel(experts_down_few, 10, kFormatQ2_K);
instantiate_kernel(experts_down_few, 12, kFormatQ4_K);
instantiate_kernel(experts_down_few, 14, kFormatQ6_K);
instantiate_kernel(experts_down_many, 0, kFormatF32);
instantiate_kernel(experts_down_many, 8, kFormatQ8_0);
instantiate_kernel(experts_down_many, 39, kFormatMXFP4);
instantiate_kernel(experts_down_many, 10, kFormatQ2_K);
instantiate_kernel(experts_down_many, 12, kFormatQ4_K);
instantiate_kernel(experts_down_many, 14, kFormatQ6_K);
#endif
