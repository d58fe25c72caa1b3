// Launch contract of the indexer kernels, included by csrc/indexer.cpp.
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

enum IndexerSelectBuffer {
  kIndexerSelectQ,         // [T, I, D] row dtype
  kIndexerSelectW,         // [T, I] f32
  kIndexerSelectRows,      // [capacity, D] row dtype
  kIndexerSelectSelected,  // [T, k] i32
  kIndexerSelectScores,    // scratch, [tokens of a tile, N] f32
  kIndexerSelectParams,
};

// Scores that exist at one time while rows are selected, unless one token needs more.
DSV4_CONST int kIndexerScratchBytes = 16 << 20;

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
