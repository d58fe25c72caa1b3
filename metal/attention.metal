// Attention of many queries over window rows and compressed rows, with sinks.
//
//   l[h, r]   = q[t, h] . k[r] / sqrt(D)     r in the list of rows that query t sees
//   out[t, h] = sum_r exp(l[h, r] - m) k[r] / (sum_r exp(l[h, r] - m) + exp(sink[h] - m)),
//               its last R dims rotated back; NaN where `selected` names a row that t cannot see
//
// Shapes    q, out [T, H, D] T_   rows [T, D] T_   attention_kv [window + N, D] T_
//           sinks [H] f32   rotation [T, R/2, 2] f32   selected [T, K] i32, -1 = none
//           T_ is bfloat or float, D a multiple of 16 up to 512
// Threads   attention (16 tokens or more): a threadgroup per token and 64 heads, grid
//           (1, ceil(H / 64), T) of up to 16 simdgroups; per tile of 16 rows (8 of float)
//           simdgroup 2i + j makes scores of heads 8i .. 8i + 7 over half j of the dims,
//           simdgroup i their weights, and each sums 32 of 512 dims for all heads
//           attention_scores: a threadgroup per tile, 64 heads and token, grid
//           (tiles, ceil(H / 64), T)
//           attention_values: a threadgroup per 16 dims, 64 heads and token, grid
//           (D / 16, ceil(H / 64), T); a simdgroup per eight heads
//           attention_queries (norm and rotation of q): a simdgroup per head and token, grid
//           (ceil(H / 4), T, 1)
// Traffic   2 * D bytes per row and token for all 64 heads, from memory once; q once per tile
//           from cache; attention_values reads rows again (from cache), and 4 * H bytes per
//           row go through the scores
// Numerics  f32 sums by simdgroup_matrix, tile by tile; tiles are cut by list index, so a
//           token's bits depend neither on T nor on the kernel
// Page      docs/kernels/attention.md

#include "attention.h"
#include "attention_softmax.h"
#include "attention_tile.h"
#include "row_math.h"

using namespace metal;

// Sums of a simdgroup of `attention`: all heads by 8 * kDims dims.
template <int kDims>
using HeadSums = MatrixSums<kAttentionHeads / kMatrixDim, kDims>;

// Scales the sums so far and adds weights * rows of the tile, for a lane's dims from `dim` on.
template <typename T, int D, int kDims>
void add_tile(
    thread HeadSums<kDims>& sums,
    const threadgroup AttentionTile<T, D>& tile,
    int n_head_tiles,
    int dim,
    MatrixLane mine) {
  using Tile = AttentionTile<T, D>;
#pragma unroll
  for (int g = 0; g < kAttentionHeads / kMatrixDim; ++g) {
    if (g < n_head_tiles) {
      scale_sums(sums, g, tile.factors[g * kMatrixDim + mine.row]);
    }
  }
  for (int r = 0; r < Tile::kRows; r += kMatrixDim) {
    LaneDims<kDims> values;
#pragma unroll
    for (int i = 0; i < kDims / 2; ++i) {
      values.of[i] = tile_four(tile, r + mine.row, dim + 4 * i);
    }
#pragma unroll
    for (int g = 0; g < kAttentionHeads / kMatrixDim; ++g) {
      if (g < n_head_tiles) {
        simdgroup_float8x8 weights;
        const threadgroup float* from =
            tile.scores[0] + g * kMatrixDim * Tile::kScorePitch + r;
        simdgroup_load(weights, from, Tile::kScorePitch);
        add_rows(sums, g, weights, values);
      }
    }
  }
}

template <typename T, int D>
[[kernel, max_total_threads_per_threadgroup(kAttentionThreads)]] void attention(
    const device T* q [[buffer(kAttentionQ)]],
    const device T* rows [[buffer(kAttentionRows)]],
    const device T* attention_kv [[buffer(kAttentionKv)]],
    const device float* sinks [[buffer(kAttentionSinks)]],
    const device float* rotation [[buffer(kAttentionRotation)]],
    const device int* selected [[buffer(kAttentionSelected)]],
    device T* out [[buffer(kAttentionOut)]],
    constant AttentionParams& p [[buffer(kAttentionParams)]],
    uint3 group [[threadgroup_position_in_grid]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint n_simdgroups [[simdgroups_per_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  using Tile = AttentionTile<T, D>;
  constexpr int kDims = attention_dim_matrices(D);
  threadgroup Tile tile;
  const HeadBlock heads = head_block(p, group);
  const int n_head_tiles = ceil_div(heads.n, kMatrixDim);
  const RowList<T, D> list =
      list_rows<T, D>(rows, attention_kv, selected, p, heads.token);
  const MatrixLane mine = matrix_lane(lane);

  const bool softens = int(simdgroup) < n_head_tiles;
  const int head = int(simdgroup) * kMatrixDim + mine.row;
  Softmax softmax = start_softmax(head < heads.n ? sinks[heads.first + head] : 0.0f);

  const int first_dim = int(simdgroup) * kDims * kMatrixDim;
  const bool adds = first_dim < D;
  const int dim = first_dim + kDims * mine.column;
  HeadSums<kDims> sums;
  clear(sums);

  int next_entry = list.tile_entry(0, lane);
  for (int first = 0; first < list.size; first += Tile::kRows) {
    const int entry = next_entry;
    next_entry = list.tile_entry(first + Tile::kRows, lane);
    if (!names_rows(entry)) {
      continue;
    }
    stage_rows(list, entry, tile, simdgroup, n_simdgroups, lane);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (int(simdgroup) < 2 * n_head_tiles) {
      multiply_queries(q + heads.first_row * D, heads.n, tile, simdgroup, mine);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (softens) {
      soften_tile(softmax, tile, head, mine.column);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (adds) {
      add_tile(sums, tile, n_head_tiles, dim, mine);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }

  if (softens && mine.column == 0) {
    tile.factors[head] = softmax.total;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  rotation += size_t(heads.token) * 2 * p.n_pairs;
#pragma unroll
  for (int g = 0; g < kAttentionHeads / kMatrixDim; ++g) {
    const int summed = g * kMatrixDim + mine.row;
    if (summed < heads.n) {
      device T* to = out + (heads.first_row + summed) * D;
      store_head<T, D>(sums, g, tile.factors[summed], dim, rotation, p.n_pairs, to);
    }
  }
}

// Scores of one tile of rows.
template <typename T, int D>
[[kernel, max_total_threads_per_threadgroup(kAttentionThreads)]] void attention_scores(
    const device T* q [[buffer(kAttentionScoresQ)]],
    const device T* rows [[buffer(kAttentionScoresRows)]],
    const device T* attention_kv [[buffer(kAttentionScoresKv)]],
    const device int* selected [[buffer(kAttentionScoresSelected)]],
    device float* out [[buffer(kAttentionScoresOut)]],
    constant AttentionParams& p [[buffer(kAttentionScoresParams)]],
    uint3 group [[threadgroup_position_in_grid]],
    uint3 n_groups [[threadgroups_per_grid]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint n_simdgroups [[simdgroups_per_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  using Tile = AttentionTile<T, D>;
  threadgroup Tile tile;
  const HeadBlock heads = head_block(p, group);
  const RowList<T, D> list =
      list_rows<T, D>(rows, attention_kv, selected, p, heads.token);
  const int first = int(group.x) * Tile::kRows;
  const int entry = list.tile_entry(first, lane);
  if (!names_rows(entry)) {
    return;
  }
  const MatrixLane mine = matrix_lane(lane);
  const int n_head_tiles = ceil_div(heads.n, kMatrixDim);
  stage_rows(list, entry, tile, simdgroup, n_simdgroups, lane);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (int(simdgroup) < 2 * n_head_tiles) {
    multiply_queries(q + heads.first_row * D, heads.n, tile, simdgroup, mine);
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  // Two simdgroups per eight heads: each stores every other matrix of rows.
  const int head = int(simdgroup) / 2 * kMatrixDim + mine.row;
  if (head < heads.n) {
    const int pitch = score_pitch(p, n_groups.z, Tile::kRows);
    device float* scores = out + (heads.first_row + head) * pitch + first;
    for (int r = int(simdgroup) % 2 * kMatrixDim; r < Tile::kRows; r += 2 * kMatrixDim) {
      const float2 pair = pair_of_scores(tile, head, r + mine.column);
      scores[r + mine.column] = pair.x;
      scores[r + mine.column + 1] = pair.y;
    }
  }
}

DSV4_CONST int kSliceMatrices = kAttentionSliceDims / kMatrixDim;

// What a lane needs of a tile to add its part of a slice: zeros where no row is named.
template <typename T>
struct SliceTile {
  static constant constexpr int kMatrices = attention_tile_rows(sizeof(T)) / kMatrixDim;
  TileScores<kMatrices> scores;
  LaneDims<kSliceMatrices> values[kMatrices];
};

// Loads a tile from its scores on; a head that does not exist has none.
template <typename T, int D>
SliceTile<T> load_slice(
    thread const RowList<T, D>& list,
    int entry,
    const device float* scores,
    bool is_head,
    int dim,
    MatrixLane mine) {
  SliceTile<T> tile;
  const bool loads = names_rows(entry);
#pragma unroll
  for (int j = 0; j < SliceTile<T>::kMatrices; ++j) {
    const int column = j * kMatrixDim + mine.column;
    const device T* row =
        list.row(simd_shuffle(entry, ushort(j * kMatrixDim + mine.row)));
    tile.scores.of[j] = float2(0.0f, 0.0f);
    if (loads && is_head) {
      tile.scores.of[j] = float2(scores[column], scores[column + 1]);
    }
    tile.values[j].of[0] = float4(0.0f);
    if (row != nullptr) {
      tile.values[j].of[0] = FourValues<T>::widen(stored_four(row + dim));
    }
  }
  return tile;
}

// Softmax over the scores of every tile, and the sums of the rows by their weights.
template <typename T, int D>
[[kernel]] void attention_values(
    const device float* scores [[buffer(kAttentionValuesScores)]],
    const device T* rows [[buffer(kAttentionValuesRows)]],
    const device T* attention_kv [[buffer(kAttentionValuesKv)]],
    const device float* sinks [[buffer(kAttentionValuesSinks)]],
    const device float* rotation [[buffer(kAttentionValuesRotation)]],
    const device int* selected [[buffer(kAttentionValuesSelected)]],
    device T* out [[buffer(kAttentionValuesOut)]],
    constant AttentionParams& p [[buffer(kAttentionValuesParams)]],
    uint3 group [[threadgroup_position_in_grid]],
    uint3 n_groups [[threadgroups_per_grid]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  constexpr int kRows = attention_tile_rows(sizeof(T));
  const HeadBlock heads = head_block(p, group);
  const RowList<T, D> list =
      list_rows<T, D>(rows, attention_kv, selected, p, heads.token);
  const MatrixLane mine = matrix_lane(lane);
  const int head = int(simdgroup) * kMatrixDim + mine.row;
  const bool is_head = head < heads.n;
  const int dim = int(group.x) * kAttentionSliceDims + kSliceMatrices * mine.column;
  scores += (heads.first_row + head) * score_pitch(p, n_groups.z, kRows);
  Softmax softmax = start_softmax(is_head ? sinks[heads.first + head] : 0.0f);
  MatrixSums<1, kSliceMatrices> sums;
  clear(sums);

  // Row numbers are read two tiles ahead, rows and scores one: no wait follows another.
  int entry = list.tile_entry(0, lane);
  int next_entry = list.tile_entry(kRows, lane);
  SliceTile<T> tile = load_slice(list, entry, scores, is_head, dim, mine);
  for (int first = 0; first < list.size; first += kRows) {
    const int entry_after = list.tile_entry(first + 2 * kRows, lane);
    scores += kRows;
    const SliceTile<T> next = load_slice(list, next_entry, scores, is_head, dim, mine);
    if (names_rows(entry)) {
      scale_sums(sums, 0, fold_scores(softmax, tile.scores));
#pragma unroll
      for (int j = 0; j < SliceTile<T>::kMatrices; ++j) {
        add_rows(sums, 0, matrix_of(tile.scores.of[j]), tile.values[j]);
      }
    }
    entry = next_entry;
    next_entry = entry_after;
    tile = next;
  }
  if (is_head) {
    rotation += size_t(heads.token) * 2 * p.n_pairs;
    out += (heads.first_row + head) * D;
    store_head<T, D>(sums, 0, softmax.total, dim, rotation, p.n_pairs, out);
  }
}

// out[t, h] = rope_t(q[t, h] / sqrt(mean(q[t, h]^2) + eps))
template <typename T, int kSlices>
[[kernel]] void attention_queries(
    const device float* q [[buffer(kAttentionQueriesQ)]],
    const device float* rotation [[buffer(kAttentionQueriesRotation)]],
    device T* out [[buffer(kAttentionQueriesOut)]],
    constant AttentionQueriesParams& p [[buffer(kAttentionQueriesParams)]],
    uint2 group [[threadgroup_position_in_grid]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  const int head = int(group.x) * kRowsPerGroup + int(simdgroup);
  if (head >= p.n_heads) {
    return;
  }
  const size_t token = group.y, at = (token * p.n_heads + head) * p.dim;
  LaneRow<kSlices> row = load_row<kSlices>(q + at, p.dim, lane);
  rms_norm(row, p.dim, p.eps);
  rotate_tail(row, p.dim, rotation + token * 2 * p.n_pairs, p.n_pairs, lane);
  store_row(out + at, row, p.dim, lane);
}

#ifdef DSV4_EVERY_KERNEL
// clang-format off
instantiate_kernel(attention_queries, bfloat_4, bfloat, 4)
instantiate_kernel(attention_queries, bfloat_2, bfloat, 2)
instantiate_kernel(attention_queries, float_4, float, 4)
instantiate_kernel(attention_queries, float_2, float, 2)
instantiate_kernel(attention, bfloat_512, bfloat, 512)
instantiate_kernel(attention_scores, bfloat_512, bfloat, 512)
instantiate_kernel(attention_values, bfloat_512, bfloat, 512)
instantiate_kernel(attention, float_512, float, 512)
instantiate_kernel(attention_scores, float_512, float, 512)
instantiate_kernel(attention_values, float_512, float, 512)
instantiate_kernel(attention, bfloat_192, bfloat, 192)
instantiate_kernel(attention_scores, bfloat_192, bfloat, 192)
instantiate_kernel(attention_values, bfloat_192, bfloat, 192)
instantiate_kernel(attention, float_192, float, 192)
instantiate_kernel(attention_scores, float_192, float, 192)
instantiate_kernel(attention_values, float_192, float, 192)
// clang-format on
#endif
