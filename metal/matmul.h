// Launch contract of metal/matmul.metal, included by csrc/matmul_metal.cpp.
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
  int32_t n_rows;    // N, rows of the matrix
  int32_t k;         // K, values per row
  int32_t groups;    // row n multiplies group n / (N / groups) of x
  int32_t format;    // enum BlockFormat
  int32_t n_tokens;  // T
};
static_assert(sizeof(MatmulParams) == 20, "layout is shared with the GPU");

struct EmbedParams {
  int32_t n_rows;  // V
  int32_t k;       // K
  int32_t format;  // enum BlockFormat
};
static_assert(sizeof(EmbedParams) == 12, "layout is shared with the GPU");

// Values of a row whose products are one chain; the chains of a row are added in order.
DSV4_CONST int kSegmentValues = 512;

constexpr int n_segments(int k) { return ceil_div(k, kSegmentValues); }

// A fragment is 8 weight rows x 8 tokens; a tile is row tiles x token tiles of fragments.
// `parts` simdgroups share one tile, each with segments of its own.
DSV4_CONST int kFragment = 8;
DSV4_CONST int kFewRowTiles = 2;
DSV4_CONST int kFewSimdgroups = 8;
DSV4_CONST int kManyRowTiles = 4;
DSV4_CONST int kManyTokenTiles = 4;
DSV4_CONST int kManySimdgroups = 4;
DSV4_CONST int kManyTokens = kManyTokenTiles * kFragment;

// Up to this many tokens the tile is one token fragment wide.
DSV4_CONST int kFewTokens = kFragment;
// A launch of fewer threadgroups lets simdgroups share tiles to fill the GPU.
DSV4_CONST int kManyThreadgroups = 320;

// Simdgroups per tile: a power of two, halved while segments are fewer than that.
constexpr int segment_parts(int k, int most) {
  int parts = most;
  while (parts > 1 && n_segments(k) <= parts / 2) {
    parts /= 2;
  }
  return parts;
}

constexpr int few_parts(int k) { return segment_parts(k, kFewSimdgroups); }

// n_rows: of one group.
constexpr int many_parts(int k, int n_rows, int groups, int n_tokens) {
  return groups * ceil_div(n_tokens, kManyTokens) *
                     ceil_div(n_rows, kManySimdgroups * kManyRowTiles * kFragment) >=
                 kManyThreadgroups
             ? 1
             : segment_parts(k, kManySimdgroups);
}

// Rows that a threadgroup computes.
constexpr int few_rows(int parts) {
  return kFewSimdgroups / parts * kFewRowTiles * kFragment;
}

constexpr int many_rows(int parts) {
  return kManySimdgroups / parts * kManyRowTiles * kFragment;
}

// Threads of a threadgroup that decodes rows, kLanesPerBlock per block.
DSV4_CONST int kEmbedThreads = 256;
