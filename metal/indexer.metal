// Indexer: score the index rows for each query token and select the best.
//
//   scores[t, r] = sum_h relu(q[t, h] . rows[r]) * w[t, h] * scale   if t sees row r
//                = -inf                                              otherwise
//   selected[t]  = the k seen rows of highest score, ascending, -1 where none is left;
//                  equal scores: the lower row first; NaN after every number
//
// Shapes    q [T, I, D] T_   w [T, I] f32   rows [capacity, D] T_   scores [T, N] f32
//           selected [T, k] i32   T_ is bfloat or float; D a multiple of 16; any I, N, k
// Threads   scores: a simdgroup owns 16 rows and all heads, a threadgroup of 8 tiles of 128
//           rows: one tile by up to 16 tokens, whose queries pass the rows in registers; or one
//           token, its queries in threadgroup memory, past which several tiles stream.
//           grid (ceil(N / (128 * tiles)), ceil(T / tokens), 1) of threadgroups (256, 1, 1)
//           topk: up to 1024 threads per token and slice of rows, grid (slices, T, 1);
//           merge: up to 1024 threads per token, grid (1, T, 1); all: a thread per id
//           queries (rotation and round trip of q): a simdgroup per head and token, grid
//           (ceil(I / 4), T, 1)
// Traffic   scores: rows once per 16 tokens, or once; q once per 128 rows, or once per
//           threadgroup; 4 bytes out per score. topk: a score six times, once from memory
// Numerics  f32: dots by 8x8 matrices, 16 dims in two halves (0, 1, 4, 5, 8, 9, 12, 13 first),
//           these ascending; heads h, h + 8, ... by fma, then these eight sums pairwise. Both
//           ways give the same bits; the selection is exact
// Page      docs/kernels/indexer.md

#include "indexer.h"
#include "best_rows.h"
#include "indexer_tile.h"
#include "row_math.h"

using namespace metal;

template <typename T>
[[kernel, max_total_threads_per_threadgroup(kIndexerThreads)]] void indexer_scores(
    const device T* q [[buffer(kIndexerScoresQ)]],
    const device float* w [[buffer(kIndexerScoresW)]],
    const device T* rows [[buffer(kIndexerScoresRows)]],
    device float* out [[buffer(kIndexerScoresOut)]],
    constant IndexerScoresLaunch& launch [[buffer(kIndexerScoresParams)]],
    uint3 group [[threadgroup_position_in_grid]],
    uint thread_index [[thread_index_in_threadgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  threadgroup ScoresMemory<T> memory;
  constant IndexerScoresParams& p = launch.scores;
  const int first_token = int(group.y) * launch.group_tokens;
  const int n_tokens = min(launch.group_tokens, launch.n_tokens - first_token);
  const int n_readable = visible_rows(p.start + first_token + n_tokens - 1, p.ratio);
  const int first_tile = int(group.x) * launch.group_tiles;
  const int n_tiles =
      min(launch.group_tiles, ceil_div(p.n_rows, kIndexerTileRows) - first_tile);
  Scorer<T> scorer;
  scorer.keeps_rows = launch.group_tiles == 1 && p.dim <= Held<T>::kDims;
  scorer.keeps_queries =
      launch.group_tokens == 1 && p.dim <= Held<T>::kDims && p.n_heads <= kPassHeads;
  scorer.has_rows = scorer.has_queries = false;
  scorer.thread_index = int(thread_index);
  scorer.mine = matrix_lane(lane);
  for (int i = 0; i < n_tiles * n_tokens; ++i) {
    const int token = first_token + i % n_tokens;
    const int tile_row = (first_tile + i / n_tokens) * kIndexerTileRows;
    const int first_row = tile_row + int(simdgroup) * kIndexerSimdgroupRows;
    const int n_seen = visible_rows(p.start + token, p.ratio);
    HeadSums sums = {};
    if (tile_row < n_seen) {
      sums = sum_heads(
          scorer,
          memory,
          q + size_t(token) * p.n_heads * p.dim,
          w + size_t(token) * p.n_heads,
          rows + size_t(first_row) * p.dim,
          n_readable - first_row,
          first_row < n_seen,
          p);
    }
    device float* scores = out + size_t(token) * p.n_rows;
    store_scores(scores, sums, first_row, n_seen - first_row, p.n_rows, scorer.mine);
  }
}

// One slice of all rows gives the answer; several give the candidates of indexer_merge.
[[kernel, max_total_threads_per_threadgroup(kIndexerTopkThreads)]] void indexer_topk(
    const device float* scores [[buffer(kIndexerTopkScores)]],
    device int* selected [[buffer(kIndexerTopkSelected)]],
    constant IndexerTopkParams& p [[buffer(kIndexerTopkParams)]],
    uint3 group [[threadgroup_position_in_grid]],
    uint thread_index [[thread_index_in_threadgroup]],
    uint3 threads [[threads_per_threadgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint n_simdgroups [[simdgroups_per_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  threadgroup TopkMemory memory;
  const int token = int(group.y);
  const int n_slices = indexer_slices(p.n_rows, p.k);
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

[[kernel, max_total_threads_per_threadgroup(kIndexerTopkThreads)]] void indexer_merge(
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
  const int n_slices = indexer_slices(p.n_rows, p.k);
  take_best(
      memory,
      scores + size_t(token) * p.n_rows,
      ListedRows{candidates + size_t(token) * n_slices * p.k},
      indexer_candidates(visible_rows(p.start + token, p.ratio), p.k),
      p.k,
      selected + size_t(token) * p.k,
      Place{thread_index, threads.x, simdgroup, n_simdgroups, lane});
}

// Tokens that see at most k rows take them all, without scores.
[[kernel]] void indexer_all(
    device int* selected [[buffer(kIndexerAllSelected)]],
    constant IndexerTopkParams& p [[buffer(kIndexerAllParams)]],
    uint2 at [[thread_position_in_grid]]) {
  const int i = int(at.x), token = int(at.y);
  if (i < p.k) {
    selected[size_t(token) * p.k + i] =
        i < visible_rows(p.start + token, p.ratio) ? i : -1;
  }
}

// out[t, h] = round(rope_t(q[t, h]))
template <typename T, int kSlices>
[[kernel]] void indexer_queries(
    const device float* q [[buffer(kIndexerQueriesQ)]],
    const device float* rotation [[buffer(kIndexerQueriesRotation)]],
    device T* out [[buffer(kIndexerQueriesOut)]],
    constant IndexerQueriesParams& p [[buffer(kIndexerQueriesParams)]],
    uint2 group [[threadgroup_position_in_grid]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  const int head = int(group.x) * kRowsPerGroup + int(simdgroup);
  if (head >= p.n_heads) {
    return;
  }
  const size_t token = group.y, at = (token * p.n_heads + head) * p.dim;
  LaneRow<kSlices> row = load_row<kSlices>(q + at, p.dim, lane);
  rotate_tail(row, p.dim, rotation + token * 2 * p.n_pairs, p.n_pairs, lane);
  round_trip(row, p.dim, p.n_pairs, p.round_trip, lane);
  store_row(out + at, row, p.dim, lane);
}

#ifdef DSV4_EVERY_KERNEL
// clang-format off
instantiate_kernel(indexer_queries, bfloat_1, bfloat, 1)
instantiate_kernel(indexer_queries, float_1, float, 1)
instantiate_kernel(indexer_scores, bfloat, bfloat)
instantiate_kernel(indexer_scores, float, float)
// clang-format on
#endif
