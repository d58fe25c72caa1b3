// Launch contract of the attention kernels, included by csrc/attention*.cpp.
#pragma once

#include "common.h"

enum AttentionQueriesBuffer {
  kAttentionQueriesQ,         // [T, H * D] f32
  kAttentionQueriesRotation,  // [T, R/2, 2] f32
  kAttentionQueriesOut,       // [T, H, D] row dtype
  kAttentionQueriesParams,
};

// Where n_selected is 0, kAttention*Selected is bound to any array and not read.
enum AttentionBuffer {
  kAttentionQ,         // [T, H, D] row dtype
  kAttentionRows,      // [T, D] row dtype
  kAttentionKv,        // [window + N, D] row dtype
  kAttentionSinks,     // [H] f32
  kAttentionRotation,  // [T, R/2, 2] f32
  kAttentionSelected,  // [T, K] i32
  kAttentionOut,       // [T, H, D] row dtype
  kAttentionParams,
};

enum AttentionScoresBuffer {
  kAttentionScoresQ,         // [T, H, D] row dtype
  kAttentionScoresRows,      // [T, D] row dtype
  kAttentionScoresKv,        // [window + N, D] row dtype
  kAttentionScoresSelected,  // [T, K] i32
  kAttentionScoresOut,       // [T, H, attention_score_pitch] f32
  kAttentionScoresParams,
};

enum AttentionValuesBuffer {
  kAttentionValuesScores,    // [T, H, attention_score_pitch] f32
  kAttentionValuesRows,      // [T, D] row dtype
  kAttentionValuesKv,        // [window + N, D] row dtype
  kAttentionValuesSinks,     // [H] f32
  kAttentionValuesRotation,  // [T, R/2, 2] f32
  kAttentionValuesSelected,  // [T, K] i32
  kAttentionValuesOut,       // [T, H, D] row dtype
  kAttentionValuesParams,
};

struct AttentionQueriesParams {
  int32_t n_heads;  // H
  int32_t dim;      // D
  int32_t n_pairs;  // R / 2
  float eps;        // added to the mean square
};
static_assert(sizeof(AttentionQueriesParams) == 16, "layout is shared with the GPU");

struct AttentionParams {
  int32_t n_heads;     // H
  int32_t dim;         // D
  int32_t n_pairs;     // R / 2
  int32_t start;       // pos of the first query
  int32_t window;      // rows of the ring
  int32_t ratio;       // tokens per span, 0 = no compressed rows
  int32_t n_selected;  // K; 0 = every visible compressed row
};
static_assert(sizeof(AttentionParams) == 28, "layout is shared with the GPU");

// A step of fewer tokens is split into more threadgroups than it has tokens.
DSV4_CONST int kAttentionWholeTokens = 16;
// The sums of a threadgroup's heads, 64 x 512 floats, just fit its registers.
DSV4_CONST int kAttentionHeads = 64;
DSV4_CONST int kAttentionMaxDim = 512;
// Dims of the output that a threadgroup of attention_values makes.
DSV4_CONST int kAttentionSliceDims = 16;
// Dims of a score's product are taken in blocks of this many.
DSV4_CONST int kAttentionDotBlock = 32;

// The rows that a query sees are one list, cut into tiles: window rows by position, then
// compressed rows in the order of `selected` or ascending.
constexpr int attention_window_rows(int pos, int window) {
  return pos < window ? pos + 1 : window;
}

constexpr int attention_list_rows(int pos, int window, int ratio, int n_selected) {
  return attention_window_rows(pos, window) +
         (n_selected > 0 ? n_selected : visible_rows(pos, ratio));
}

// Rows of a tile: as many as lie in threadgroup memory beside the scores.
constexpr int attention_tile_rows(int value_bytes) { return value_bytes == 2 ? 16 : 8; }

// Scores of a head lie this far apart: whole tiles of the longest list of the step, its last.
constexpr int attention_score_pitch(int most_rows, int tile_rows) {
  return ceil_div(most_rows, tile_rows) * tile_rows;
}

// Threads of a threadgroup of `attention`, at most: more would not leave 100 registers each.
DSV4_CONST int kAttentionThreads = 512;

// Matrices of dims that a simdgroup of `attention` sums: with 64 heads, 32 dims fill its
// registers.
constexpr int attention_dim_matrices(int dim) { return dim <= 256 ? 2 : 4; }

// Its simdgroups for n_heads <= kAttentionHeads: two per eight heads make scores, as many as
// the dims need make sums.
constexpr int attention_simdgroups(int n_heads, int dim) {
  const int for_sums = ceil_div(dim, attention_dim_matrices(dim) * kMatrixDim);
  const int for_scores = 2 * ceil_div(n_heads, kMatrixDim);
  return for_scores > for_sums ? for_scores : for_sums;
}
static_assert(
    attention_simdgroups(kAttentionHeads, kAttentionMaxDim) * kSimdWidth <=
        kAttentionThreads,
    "a threadgroup of `attention` covers all heads and dims");
