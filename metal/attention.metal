// Attention of many queries over window rows and compressed rows, with sinks.
//
//   l[h, r]   = q[t, h] . k[r] / sqrt(D)     r in the list of rows that query t sees
//   out[t, h] = sum_r exp(l[h, r] - m) k[r] / (sum_r exp(l[h, r] - m) + exp(sink[h] - m)),
//               its last R dims rotated back
//
// Shapes    q, out [T, H, D] T_   rows [T, D] T_   attention_kv [window + N, D] T_
//           sinks [H] f32   rotation [T, R/2, 2] f32   selected [T, K] i32, -1 = none
//           T_ is bfloat or float, D a multiple of 16 up to 512
// Threads   attention (16 tokens or more): a threadgroup per token and 64 heads, up to 16
//           simdgroups; per tile of 16 rows (8 of float) simdgroup 2i + j makes scores of heads
//           8i .. 8i + 7 over half j of the dims, simdgroup i their weights, and each sums 32
//           of 512 dims for all heads
//           attention_scores: a threadgroup per tile, 64 heads and token
//           attention_values: a threadgroup per 16 dims, 64 heads and token; a simdgroup per
//           eight heads
// Traffic   2 * D bytes per row and token for all 64 heads, from memory once; attention_values
//           reads them again (from cache), and 8 * H bytes per row go through the scores
// Numerics  f32 sums by simdgroup_matrix over ascending dims and rows; tiles are cut by list
//           index, so a token's bits depend neither on T nor on the kernel
// Page      docs/kernels/attention.md

#include "attention.h"
#include "attention_tile.h"

using namespace metal;

// Sums of a simdgroup of `attention`: all heads by 8 * kDims dims.
template <int kDims>
using HeadSums = MatrixSums<kAttentionHeads / kMatrixDim, kDims>;

// Multiplies the sums so far by each head's factor.
template <int kDims>
void scale_sums(
    thread HeadSums<kDims>& sums,
    const threadgroup float* factors,
    int n_head_tiles,
    MatrixLane mine) {
#pragma unroll
  for (int g = 0; g < kAttentionHeads / kMatrixDim; ++g) {
    if (g < n_head_tiles) {
      const float factor = factors[g * kMatrixDim + mine.row];
#pragma unroll
      for (int f = 0; f < kDims; ++f) {
        scale_elements(sums.of[g][f], factor);
      }
    }
  }
}

// Adds weights * rows for dims [dim, dim + 8 * n_dims).
template <typename T, int D, int kDims>
void add_values(
    thread HeadSums<kDims>& sums,
    const threadgroup AttentionTile<T, D>& tile,
    int n_head_tiles,
    int dim,
    int n_dims,
    MatrixLane mine) {
  using Tile = AttentionTile<T, D>;
  for (int r = 0; r < Tile::kRows; r += kMatrixDim) {
    const threadgroup T* row = tile.rows + (r + mine.row) * Tile::kRowPitch;
    simdgroup_float8x8 values[kDims];
#pragma unroll
    for (int f = 0; f < kDims; ++f) {
      const int at = dim + f * kMatrixDim + mine.column;
      float2 pair = float2(0.0f, 0.0f);
      if (f < n_dims) {
        pair = float2(float(row[at]), float(row[at + 1]));
      }
      set_elements(values[f], pair);
    }
#pragma unroll
    for (int g = 0; g < kAttentionHeads / kMatrixDim; ++g) {
      if (g < n_head_tiles) {
        simdgroup_float8x8 weights;
        const threadgroup float* from =
            tile.scores[0] + g * kMatrixDim * Tile::kScorePitch + r;
        simdgroup_load(weights, from, Tile::kScorePitch);
#pragma unroll
        for (int f = 0; f < kDims; ++f) {
          simdgroup_multiply_accumulate(sums.of[g][f], weights, values[f], sums.of[g][f]);
        }
      }
    }
  }
}

template <typename T, int D, int kDims>
void store_sums(
    thread HeadSums<kDims>& sums,
    const threadgroup float* totals,
    HeadBlock heads,
    int dim,
    int n_dims,
    const device float* rotation,
    int n_pairs,
    device T* out,
    MatrixLane mine) {
#pragma unroll
  for (int g = 0; g < kAttentionHeads / kMatrixDim; ++g) {
    const int head = g * kMatrixDim + mine.row;
#pragma unroll
    for (int f = 0; f < kDims; ++f) {
      const float2 pair = elements(sums.of[g][f]);
      if (f < n_dims && head < heads.n) {
        const int at = dim + f * kMatrixDim + mine.column;
        store_pair(
            out + size_t(head) * D + at,
            finish<T, D>(pair, totals[head], at, rotation, n_pairs));
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
  constexpr int kDims = attention_dim_tiles(D);
  threadgroup Tile tile;
  const HeadBlock heads = head_block(p, group);
  const int n_head_tiles = attention_tiles(heads.n);
  const RowList<T, D> list =
      list_rows<T, D>(rows, attention_kv, selected, p, heads.token);
  const MatrixLane mine = matrix_lane(lane);

  const bool softens = int(simdgroup) < n_head_tiles;
  const int head = int(simdgroup) * kMatrixDim + mine.row;
  Softmax softmax = start_softmax(head < heads.n ? sinks[heads.first + head] : 0.0f);

  const int dim = int(simdgroup) * kDims * kMatrixDim;
  const int n_dims = (D - dim) / kMatrixDim;
  HeadSums<kDims> sums;
  clear(sums);

  for (int first = 0; first < list.size; first += Tile::kRows) {
    if (!list.has_rows(first, lane)) {
      continue;
    }
    stage_rows(
        list, first, tile, simdgroup * kSimdWidth + lane, n_simdgroups * kSimdWidth);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (int(simdgroup) < 2 * n_head_tiles) {
      multiply_queries(q + heads.first_row * D, heads.n, tile, simdgroup, mine);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (softens) {
      soften_tile(softmax, tile, list, first, head, mine.column);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (n_dims > 0) {
      scale_sums(sums, tile.factors, n_head_tiles, mine);
      add_values(sums, tile, n_head_tiles, dim, n_dims, mine);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }

  if (softens && mine.column == 0) {
    tile.factors[head] = softmax.total;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  store_sums<T, D>(
      sums,
      tile.factors,
      heads,
      dim,
      n_dims,
      rotation + size_t(heads.token) * 2 * p.n_pairs,
      p.n_pairs,
      out + heads.first_row * D,
      mine);
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
  if (!list.has_rows(first, lane)) {
    return;
  }
  const MatrixLane mine = matrix_lane(lane);
  stage_rows(list, first, tile, simdgroup * kSimdWidth + lane, n_simdgroups * kSimdWidth);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  multiply_queries(q + heads.first_row * D, heads.n, tile, simdgroup, mine);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  // Two simdgroups per eight heads: each stores every other matrix of rows.
  const int head = int(simdgroup) / 2 * kMatrixDim + mine.row;
  const size_t pitch = size_t(n_groups.x) * Tile::kRows;
  device float* scores = out + (heads.first_row + head) * pitch + first;
  for (int r = int(simdgroup) % 2 * kMatrixDim; r < Tile::kRows; r += 2 * kMatrixDim) {
    const int row = r + mine.column;
    const float2 pair = pair_of_scores(tile, list, first, head, row);
    if (head < heads.n) {
      scores[row] = pair.x;
      scores[row + 1] = pair.y;
    }
  }
}

// Adds weights * rows for the dims from `dim` on: what add_values does, without the tile.
template <typename T, int D, int kMatrices, int kDims>
void add_slice(
    thread MatrixSums<1, kDims>& sums,
    thread const TileScores<kMatrices>& weights,
    thread const RowList<T, D>& list,
    int first,
    int dim,
    MatrixLane mine) {
#pragma unroll
  for (int j = 0; j < kMatrices; ++j) {
    const device T* row = list.row(first + j * kMatrixDim + mine.row);
    simdgroup_float8x8 left;
    set_elements(left, weights.of[j]);
#pragma unroll
    for (int f = 0; f < kDims; ++f) {
      const int at = dim + f * kMatrixDim + mine.column;
      float2 pair = float2(0.0f, 0.0f);
      if (row != nullptr) {
        pair = float2(float(row[at]), float(row[at + 1]));
      }
      simdgroup_float8x8 values;
      set_elements(values, pair);
      simdgroup_multiply_accumulate(sums.of[0][f], left, values, sums.of[0][f]);
    }
  }
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
  constexpr int kRows = AttentionTile<T, D>::kRows;
  constexpr int kDims = kAttentionSliceDims / kMatrixDim;
  const HeadBlock heads = head_block(p, group);
  const RowList<T, D> list =
      list_rows<T, D>(rows, attention_kv, selected, p, heads.token);
  const MatrixLane mine = matrix_lane(lane);
  const int head = int(simdgroup) * kMatrixDim + mine.row;
  const bool is_head = head < heads.n;
  const int dim = int(group.x) * kAttentionSliceDims;
  const int last = p.start + int(n_groups.z) - 1;
  const int most_rows = attention_list_rows(last, p.window, p.ratio, p.n_selected);
  scores += (heads.first_row + head) * attention_score_pitch(most_rows, kRows);
  Softmax softmax = start_softmax(is_head ? sinks[heads.first + head] : 0.0f);
  MatrixSums<1, kDims> sums;
  clear(sums);

  for (int first = 0; first < list.size; first += kRows) {
    if (!list.has_rows(first, lane)) {
      continue;
    }
    TileScores<kRows / kMatrixDim> weights;
    for (int j = 0; j < kRows / kMatrixDim; ++j) {
      const int row = first + j * kMatrixDim + mine.column;
      weights.of[j] = is_head ? float2(scores[row], scores[row + 1]) : float2(0.0f, 0.0f);
    }
    const float factor = fold_scores(softmax, weights);
#pragma unroll
    for (int f = 0; f < kDims; ++f) {
      scale_elements(sums.of[0][f], factor);
    }
    add_slice(sums, weights, list, first, dim, mine);
  }

  rotation += size_t(heads.token) * 2 * p.n_pairs;
  out += (heads.first_row + head) * D;
#pragma unroll
  for (int f = 0; f < kDims; ++f) {
    const float2 pair = elements(sums.of[0][f]);
    if (is_head) {
      const int at = dim + f * kMatrixDim + mine.column;
      store_pair(out + at, finish<T, D>(pair, softmax.total, at, rotation, p.n_pairs));
    }
  }
}

#ifdef DSV4_EVERY_KERNEL
// clang-format off
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
