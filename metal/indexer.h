// Launch contract of the indexer kernels, included by csrc/indexer*.cpp.
#pragma once

#include "common.h"

enum IndexerQueriesBuffer {
  kIndexerQueriesQ,         // [T, I * D] f32
  kIndexerQueriesRotation,  // [T, R/2, 2] f32
  kIndexerQueriesOut,       // [T, I, D] row dtype
  kIndexerQueriesParams,
};

enum IndexerScoresBuffer {
  kIndexerScoresQ,       // [T, I, D] row dtype
  kIndexerScoresW,       // [T, I] f32
  kIndexerScoresRows,    // [capacity, D] row dtype
  kIndexerScoresOut,     // [T, N] f32
  kIndexerScoresParams,  // IndexerScoresLaunch
};

enum IndexerTopkBuffer {
  kIndexerTopkScores,    // [T, N] f32
  kIndexerTopkSelected,  // [T, slices, k] i32
  kIndexerTopkParams,
};

enum IndexerAllBuffer {
  kIndexerAllSelected,  // [T, k] i32
  kIndexerAllParams,    // IndexerTopkParams
};

enum IndexerMergeBuffer {
  kIndexerMergeScores,      // [T, N] f32
  kIndexerMergeCandidates,  // [T, slices, k] i32: the best of every slice of rows
  kIndexerMergeSelected,    // [T, k] i32
  kIndexerMergeParams,      // IndexerTopkParams
};

// Scores, and candidates of their selection, that exist at one time, unless one token needs more.
DSV4_CONST int kIndexerScratchBytes = 16 << 20;

// Rows of a tile, whose simdgroups hold so many each while they are scored.
DSV4_CONST int kIndexerSimdgroupRows = 16;
DSV4_CONST int kIndexerTileRows = 128;
DSV4_CONST int kIndexerThreads = kSimdWidth * kIndexerTileRows / kIndexerSimdgroupRows;

// Tokens of a threadgroup, at most, and threadgroups that occupy a GPU.
DSV4_CONST int kIndexerGroupTokens = 16;
DSV4_CONST int kIndexerGroups = 256;

// More rows than this are selected from slice by slice, then from the best of the slices.
DSV4_CONST int kIndexerSliceRows = 8192;
DSV4_CONST int kIndexerSliceMaxK = kIndexerSliceRows / 4;

// A threadgroup that selects has a thread for so many rows, within the limit of threads.
DSV4_CONST int kIndexerThreadRows = 4;
DSV4_CONST int kIndexerTopkThreads = 1024;
DSV4_CONST int kIndexerAllThreads = 256;

// Slices of n rows; 1 where the selection reads all of them at once.
constexpr int indexer_slices(int n_rows, int k) {
  return n_rows <= kIndexerSliceRows || k > kIndexerSliceMaxK
             ? 1
             : ceil_div(n_rows, kIndexerSliceRows);
}

// Candidates of a token that sees `n` rows: k of every whole slice, and what the rest gives.
constexpr int indexer_candidates(int n, int k) {
  return n / kIndexerSliceRows * k +
         (n % kIndexerSliceRows < k ? n % kIndexerSliceRows : k);
}

// Memory of the best of a token's slices.
constexpr int64_t indexer_candidate_bytes(int n_rows, int k) {
  return indexer_slices(n_rows, k) == 1 ? 0 : int64_t{4} * indexer_slices(n_rows, k) * k;
}

// Tokens that are selected for at one time, of n_tokens that need so many bytes each.
constexpr int indexer_tile_tokens(int64_t token_bytes, int n_tokens) {
  const int64_t fit = token_bytes == 0 ? n_tokens : kIndexerScratchBytes / token_bytes;
  return fit < 1 ? 1 : int(fit < n_tokens ? fit : n_tokens);
}

struct IndexerQueriesParams {
  int32_t n_heads;     // I
  int32_t dim;         // D
  int32_t n_pairs;     // R / 2
  int32_t round_trip;  // enum RoundTrip
};
static_assert(sizeof(IndexerQueriesParams) == 16, "layout is shared with the GPU");

struct IndexerScoresParams {
  int32_t n_heads;  // I
  int32_t dim;      // D
  int32_t n_rows;   // N, the width of a row of scores
  int32_t start;    // pos of the first token
  int32_t ratio;    // tokens per span
  float scale;      // times w
};
static_assert(sizeof(IndexerScoresParams) == 24, "layout is shared with the GPU");

// One launch of scores. A threadgroup has several tokens or several tiles of rows, not both.
struct IndexerScoresLaunch {
  IndexerScoresParams scores;
  int32_t n_tokens;      // T
  int32_t group_tokens;  // tokens of a threadgroup, to which it keeps its rows
  int32_t group_tiles;   // tiles of a threadgroup, to which it keeps its token
};
static_assert(sizeof(IndexerScoresLaunch) == 36, "layout is shared with the GPU");

// One token streams past its rows; several share them, as many as leave every core some work.
constexpr IndexerScoresLaunch indexer_scores_launch(
    IndexerScoresParams scores, int n_tokens) {
  const int tiles = ceil_div(scores.n_rows, kIndexerTileRows);
  const int token_groups = ceil_div(kIndexerGroups, tiles);
  const int tokens = ceil_div(n_tokens, token_groups);
  return IndexerScoresLaunch{
      scores,
      n_tokens,
      tokens < kIndexerGroupTokens ? tokens : kIndexerGroupTokens,
      n_tokens == 1 ? ceil_div(tiles, kIndexerGroups) : 1};
}

struct IndexerTopkParams {
  int32_t n_rows;  // N, the width of a row of scores
  int32_t start;   // pos of the first token
  int32_t ratio;   // tokens per span
  int32_t k;       // rows to select per token
};
static_assert(sizeof(IndexerTopkParams) == 16, "layout is shared with the GPU");

struct IndexerSelectParams {
  IndexerScoresParams scores;
  int32_t k;  // rows to select per token
};
static_assert(sizeof(IndexerSelectParams) == 28, "layout is shared with the GPU");
