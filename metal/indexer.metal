// Indexer: score the index rows for each query token and select the best.
//
//   scores[t, r] = sum_h relu(q[t, h] . rows[r]) * w[t, h] * scale   if t sees row r
//                = -inf                                              otherwise
//   selected[t]  = the k seen rows of highest score, ascending, -1 where none is left;
//                  equal scores: the lower row first; NaN after every number
//
// Shapes    q [T, I, D] T_   w [T, I] f32   rows [capacity, D] T_   scores [T, N] f32
//           selected [T, k] i32   T_ is bfloat or float; D a multiple of 16; any I, N, k
// Threads   scores: a simdgroup owns 16 rows of one token, all heads; a threadgroup owns
//           64 rows of kTokens tokens; grid (ceil(N / 64), T / kTokens, 1)
//           of threadgroups (32, 4 * kTokens, 1)
//           topk: up to 1024 threads per token and slice of rows, grid (slices, T, 1);
//           merge: up to 1024 threads per token, grid (1, T, 1)
// Traffic   scores: rows once per kTokens tokens, q once per 64 rows, 4 bytes out per score
//           topk: a score is read six times, once from memory, then from cache
// Numerics  f32: dots by 8x8 matrices over ascending dims; heads h, h + 8, ... by fma, then
//           these eight sums pairwise. kTokens changes no bit; the selection is exact
// Page      docs/kernels/indexer.md

#include "best_rows.h"
#include "indexer.h"

using namespace metal;

// ---- scores

DSV4_CONST int kSliceDims = 16;              // dims of a tile held at one time
DSV4_CONST int kPassHeads = 64;              // heads that a simdgroup sums at one time
DSV4_CONST int kHeadTiles = kPassHeads / 8;  // 8x8 matrices
DSV4_CONST int kRowTiles = kIndexerSimdgroupRows / 8;
// One matrix of padding puts the rows of a matrix into different banks.
DSV4_CONST int kRowStride = kSliceDims + 8;
DSV4_CONST int kHeadStride = kPassHeads + 8;

// A slice of the operands: rows as [row][dim], queries as [dim][head], whose product is
// [row][head]. Heads and rows that do not exist are zero.
template <int kTokens>
struct ScoresMemory {
  float4 rows[kIndexerTileRows * kRowStride / 4];
  float queries[kTokens * kSliceDims * kHeadStride];
};
static_assert(sizeof(ScoresMemory<kIndexerTileTokens>) <= 32768, "threadgroup memory");

inline float4 load4(const device float* from) {
  return float4(*(const device packed_float4*)from);
}

inline float4 load4(const device bfloat* from) {
  return as_type<float4>(uint4(ushort4(*(const device packed_ushort4*)from)) << 16);
}

// NaN stays NaN.
inline float relu(float x) { return x < 0.0f ? 0.0f : x; }

// Dims [0, kSliceDims) of the first `count` rows.
template <typename T>
inline void stage_rows(
    threadgroup float4* tile,
    const device T* rows,
    int count,
    int dim,
    int thread_index,
    int n_threads) {
  constexpr int kPieces = kSliceDims / 4;
  for (int i = thread_index; i < kIndexerTileRows * kPieces; i += n_threads) {
    const int row = i / kPieces, piece = i % kPieces;
    tile[row * (kRowStride / 4) + piece] =
        row < count ? load4(rows + size_t(row) * dim + 4 * piece) : float4(0.0f);
  }
}

// Dims [0, kSliceDims) of the first `count` heads at q of every token.
template <int kTokens, typename T>
inline void stage_queries(
    threadgroup float* tile,
    const device T* q,
    int count,
    constant IndexerScoresParams& p,
    int thread_index,
    int n_threads) {
  constexpr int kPieces = kSliceDims / 4;
  for (int i = thread_index; i < kTokens * kPassHeads * kPieces; i += n_threads) {
    const int token = i / (kPassHeads * kPieces);
    const int head = i / kPieces % kPassHeads, d = i % kPieces * 4;
    const device T* from = q + (size_t(token) * p.n_heads + head) * p.dim + d;
    const float4 values = head < count ? load4(from) : float4(0.0f);
    threadgroup float* to = tile + (token * kSliceDims + d) * kHeadStride + head;
    for (int j = 0; j < 4; ++j) {
      to[j * kHeadStride] = values[j];
    }
  }
}

inline void clear(thread simdgroup_float8x8 (&dots)[kHeadTiles][kRowTiles]) {
#pragma unroll
  for (int i = 0; i < kHeadTiles * kRowTiles; ++i) {
    dots[i / kRowTiles][i % kRowTiles] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
  }
}

// Adds the slice's products of a simdgroup's rows and one token's heads.
inline void add_products(
    thread simdgroup_float8x8 (&dots)[kHeadTiles][kRowTiles],
    const threadgroup float* rows,
    const threadgroup float* queries,
    int n_heads) {
#pragma unroll
  for (int d = 0; d < kSliceDims; d += 8) {
    simdgroup_float8x8 row_tiles[kRowTiles];
#pragma unroll
    for (int j = 0; j < kRowTiles; ++j) {
      simdgroup_load(row_tiles[j], rows + 8 * j * kRowStride + d, kRowStride);
    }
#pragma unroll
    for (int i = 0; i < kHeadTiles; ++i) {
      if (8 * i < n_heads) {
        simdgroup_float8x8 heads;
        simdgroup_load(heads, queries + d * kHeadStride + 8 * i, kHeadStride);
#pragma unroll
        for (int j = 0; j < kRowTiles; ++j) {
          simdgroup_multiply_accumulate(dots[i][j], row_tiles[j], heads, dots[i][j]);
        }
      }
    }
  }
}

// Adds what the heads at w give to the lane's rows; the lane has heads `column` and the next
// of every tile. Heads that do not exist are left out: zero times infinity is NaN.
inline void add_heads(
    thread float2 (&sums)[kRowTiles],
    thread simdgroup_float8x8 (&dots)[kHeadTiles][kRowTiles],
    const device float* w,
    float scale,
    int n_heads,
    int column) {
#pragma unroll
  for (int i = 0; i < kHeadTiles; ++i) {
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      const int head = 8 * i + column + c;
      if (head < n_heads) {
        const float weight = w[head] * scale;
#pragma unroll
        for (int j = 0; j < kRowTiles; ++j) {
          const float dot = dots[i][j].thread_elements()[c];
          sums[j][c] = fma(relu(dot), weight, sums[j][c]);
        }
      }
    }
  }
}

// Sum over the heads: eight sums of two lanes' columns each, in the lanes that share a row,
// which differ in bits 0 and 3.
inline float add_columns(float2 sums) {
  float sum = sums.x + sums.y;
  sum += simd_shuffle_xor(sum, ushort(1));
  return sum + simd_shuffle_xor(sum, ushort(8));
}

template <typename T, int kTokens>
[[kernel]] void indexer_scores(
    const device T* q [[buffer(kIndexerScoresQ)]],
    const device float* w [[buffer(kIndexerScoresW)]],
    const device T* rows [[buffer(kIndexerScoresRows)]],
    device float* out [[buffer(kIndexerScoresOut)]],
    constant IndexerScoresParams& p [[buffer(kIndexerScoresParams)]],
    uint3 group [[threadgroup_position_in_grid]],
    uint thread_index [[thread_index_in_threadgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  threadgroup ScoresMemory<kTokens> memory;
  constexpr int kThreads = kSimdWidth * kIndexerSimdgroups * kTokens;
  const int index = int(thread_index);
  const int first_row = int(group.x) * kIndexerTileRows;
  const int first_token = int(group.y) * kTokens;
  const int token_in_tile = int(simdgroup) / kIndexerSimdgroups;
  const int row_in_tile = int(simdgroup) % kIndexerSimdgroups * kIndexerSimdgroupRows;
  const int token = first_token + token_in_tile;
  // Rows of the tile that this token sees, and that the tile's last token sees.
  const int n_seen = visible_rows(p.start + token, p.ratio) - first_row;
  const int last_token = first_token + kTokens - 1;
  const int n_loaded = visible_rows(p.start + last_token, p.ratio) - first_row;
  // A lane holds this element of every matrix, and the one after it.
  const int row = (int(lane) / 4 & 4) + int(lane) / 2 % 4;
  const int column = (int(lane) / 4 & 2) * 2 + int(lane) % 2 * 2;

  float2 sums[kRowTiles] = {float2(0.0f), float2(0.0f)};
  for (int h = 0; n_loaded > 0 && h < p.n_heads; h += kPassHeads) {
    const int n_heads = p.n_heads - h;
    const device T* heads = q + (size_t(first_token) * p.n_heads + h) * p.dim;
    simdgroup_float8x8 dots[kHeadTiles][kRowTiles];
    clear(dots);
    for (int d = 0; d < p.dim; d += kSliceDims) {
      const device T* tile = rows + size_t(first_row) * p.dim + d;
      threadgroup_barrier(mem_flags::mem_threadgroup);
      stage_rows(memory.rows, tile, n_loaded, p.dim, index, kThreads);
      stage_queries<kTokens>(memory.queries, heads + d, n_heads, p, index, kThreads);
      threadgroup_barrier(mem_flags::mem_threadgroup);
      if (row_in_tile < n_seen) {
        add_products(
            dots,
            (const threadgroup float*)memory.rows + row_in_tile * kRowStride,
            memory.queries + token_in_tile * kSliceDims * kHeadStride,
            n_heads);
      }
    }
    const device float* weights = w + size_t(token) * p.n_heads + h;
    add_heads(sums, dots, weights, p.scale, n_heads, column);
  }
#pragma unroll
  for (int j = 0; j < kRowTiles; ++j) {
    const float sum = add_columns(sums[j]);
    const int r = row_in_tile + 8 * j + row;
    if (column == 0 && first_row + r < p.n_rows) {
      out[size_t(token) * p.n_rows + first_row + r] = r < n_seen ? sum : -INFINITY;
    }
  }
}

// ---- selection

// One slice of all rows gives the answer; several give the candidates of indexer_merge.
[[kernel]] void indexer_topk(
    const device float* scores [[buffer(kIndexerTopkScores)]],
    device int* selected [[buffer(kIndexerTopkSelected)]],
    constant IndexerTopkParams& p [[buffer(kIndexerTopkParams)]],
    uint3 group [[threadgroup_position_in_grid]],
    uint3 groups [[threadgroups_per_grid]],
    uint thread_index [[thread_index_in_threadgroup]],
    uint3 threads [[threads_per_threadgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint n_simdgroups [[simdgroups_per_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  threadgroup TopkMemory memory;
  const int token = int(group.y), n_slices = int(groups.x);
  const int n_seen = visible_rows(p.start + token, p.ratio);
  const int first = int(group.x) * kIndexerSliceRows;
  const int n = n_slices == 1 ? n_seen : clamp(n_seen - first, 0, kIndexerSliceRows);
  take_best(
      memory,
      scores + size_t(token) * p.n_rows,
      SliceRows{first},
      n,
      p.k,
      selected + (size_t(token) * n_slices + group.x) * p.k,
      Place{thread_index, threads.x, simdgroup, n_simdgroups, lane});
}

[[kernel]] void indexer_merge(
    const device float* scores [[buffer(kIndexerMergeScores)]],
    const device int* candidates [[buffer(kIndexerMergeCandidates)]],
    device int* selected [[buffer(kIndexerMergeSelected)]],
    constant IndexerTopkParams& p [[buffer(kIndexerMergeParams)]],
    uint3 group [[threadgroup_position_in_grid]],
    uint thread_index [[thread_index_in_threadgroup]],
    uint3 threads [[threads_per_threadgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint n_simdgroups [[simdgroups_per_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  threadgroup TopkMemory memory;
  const int token = int(group.y);
  const int n_slices = (p.n_rows + kIndexerSliceRows - 1) / kIndexerSliceRows;
  take_best(
      memory,
      scores + size_t(token) * p.n_rows,
      ListedRows{candidates + size_t(token) * n_slices * p.k},
      indexer_candidates(visible_rows(p.start + token, p.ratio), p.k),
      p.k,
      selected + size_t(token) * p.k,
      Place{thread_index, threads.x, simdgroup, n_simdgroups, lane});
}

#ifdef DSV4_EVERY_KERNEL
// clang-format off
instantiate_kernel(indexer_scores, bfloat_1, bfloat, 1)
instantiate_kernel(indexer_scores, bfloat_4, bfloat, 4)
instantiate_kernel(indexer_scores, float_1, float, 1)
instantiate_kernel(indexer_scores, float_4, float, 4)
// clang-format on
#endif
