// Launch contract of the attention kernels, included by csrc/attention.cpp.
#pragma once

#include "common.h"

enum AttentionQueriesBuffer {
  kAttentionQueriesQ,         // [T, H * D] f32
  kAttentionQueriesRotation,  // [T, R/2, 2] f32
  kAttentionQueriesOut,       // [T, H, D] row dtype
  kAttentionQueriesParams,
};

enum AttentionBuffer {
  kAttentionQ,         // [T, H, D] row dtype
  kAttentionRows,      // [T, D] row dtype
  kAttentionKv,        // [window + N, D] row dtype
  kAttentionSinks,     // [H] f32
  kAttentionRotation,  // [T, R/2, 2] f32
  kAttentionSelected,  // [T, K] i32, only where n_selected > 0
  kAttentionOut,       // [T, H, D] row dtype
  kAttentionParams,
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
