// Launch contract of the matrix products, included by csrc/matmul.cpp.
#pragma once

#include "blocks.h"

enum MatmulBuffer {
  kMatmulX,       // [T, groups * K] f32 or bf16
  kMatmulWeight,  // [N, row_bytes] u8
  kMatmulOut,     // [T, N] f32
  kMatmulParams,
};

enum EmbedBuffer {
  kEmbedTokens,  // [T] i32
  kEmbedWeight,  // [V, row_bytes] u8
  kEmbedOut,     // [T, K] f32
  kEmbedParams,
};

struct MatmulParams {
  int32_t n_rows;  // N, rows of the matrix
  int32_t k;       // K, values per row
  int32_t groups;  // row n multiplies group n / (N / groups) of x
  int32_t format;  // enum BlockFormat
};
static_assert(sizeof(MatmulParams) == 16, "layout is shared with the GPU");

struct EmbedParams {
  int32_t n_rows;  // V
  int32_t k;       // K
  int32_t format;  // enum BlockFormat
};
static_assert(sizeof(EmbedParams) == 12, "layout is shared with the GPU");
