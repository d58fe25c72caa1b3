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
  kIndexerScoresQ,     // [T, I, D] row dtype
  kIndexerScoresW,     // [T, I] f32
  kIndexerScoresRows,  // [capacity, D] row dtype
  kIndexerScoresOut,   // [T, N] f32
  kIndexerScoresParams,
};

enum IndexerTopkBuffer {
  kIndexerTopkScores,    // [T, N] f32
  kIndexerTopkSelected,  // [T, k] i32
  kIndexerTopkParams,
};

enum IndexerMergeBuffer {
  kIndexerMergeScores,      // [T, N] f32
  kIndexerMergeCandidates,  // [T, slices, k] i32: the best of every slice of rows
  kIndexerMergeSelected,    // [T, k] i32
  kIndexerMergeParams,      // IndexerTopkParams
};

// Scores that exist at one time while rows are selected, unless one token needs more.
DSV4_CONST int kIndexerScratchBytes = 16 << 20;

// Scores of a threadgroup: these rows by one token, or by so many tokens that share the rows.
DSV4_CONST int kIndexerTileRows = 64;
DSV4_CONST int kIndexerTileTokens = 4;

// Rows of one token that a simdgroup scores.
DSV4_CONST int kIndexerSimdgroupRows = 16;
DSV4_CONST int kIndexerSimdgroups = kIndexerTileRows / kIndexerSimdgroupRows;

// More rows than this are selected from slice by slice, then from the best of the slices.
DSV4_CONST int kIndexerSliceRows = 8192;
DSV4_CONST int kIndexerSliceMaxK = kIndexerSliceRows / 4;

// A threadgroup that selects has a thread for so many rows, within the limit of threads.
DSV4_CONST int kIndexerThreadRows = 4;
DSV4_CONST int kIndexerTopkMaxThreads = 1024;

// Candidates of a token that sees `n` rows: k of every whole slice, and what the rest gives.
constexpr int indexer_candidates(int n, int k) {
  return n / kIndexerSliceRows * k +
         (n % kIndexerSliceRows < k ? n % kIndexerSliceRows : k);
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
