// Launch contract of metal/experts.metal, included by csrc/experts_metal.cpp.
//
// A pair is a place in ids: pair p is token p / k's expert ids[p].
#pragma once

#include "matmul.h"

enum ExpertsOrderBuffer {
  kOrderIds,     // [T, k] i32
  kOrderPairs,   // [T * k] i32, pairs by expert; those of one expert ascend
  kOrderGroups,  // [E] PairGroup
  kOrderParams,
};

enum ExpertsTilesBuffer {
  kTilesGroups,  // [E] PairGroup
  kTilesOut,     // [n_tiles] PairTile
  kTilesParams,
};

enum ExpertsHiddenBuffer {
  kHiddenX,      // [T, K] f32
  kHiddenIds,    // [T, k] i32
  kHiddenPairs,  // [T * k] i32, of experts_order
  kHiddenTiles,  // [n_tiles] PairTile
  kHiddenGate,   // [E, F, row_bytes] u8
  kHiddenUp,     // [E, F, row_bytes] u8
  kHiddenOut,    // [T * k, F] f32
  kHiddenParams,
};

enum ExpertsDownBuffer {
  kDownHidden,  // [T * k, F] f32
  kDownIds,     // [T, k] i32
  kDownPairs,   // [T * k] i32, of experts_order
  kDownTiles,   // [n_tiles] PairTile
  kDownWeight,  // [E, K, row_bytes] u8
  kDownOut,     // [T * k, K] f32
  kDownParams,
};

enum ExpertsCombineBuffer {
  kCombineIds,       // [T, k] i32
  kCombineWeights,   // [T, k] f32
  kCombineProducts,  // [T * k, K] f32
  kCombineOut,       // [T, K] f32
  kCombineParams,
};

struct ExpertsParams {
  int32_t n_experts;    // E
  int32_t used;         // k, experts per token
  int32_t dim;          // K
  int32_t hidden;       // F
  int32_t gate_format;  // enum BlockFormat
  int32_t up_format;
  int32_t down_format;
  float clamp;
  int32_t n_tokens;  // T of a launch
};
static_assert(sizeof(ExpertsParams) == 36, "layout is shared with the GPU");

// Pairs [first, first + n) of the order belong to one expert.
struct PairGroup {
  int32_t first;
  int32_t n;
};

// Up to kManyTokens pairs of one expert.
struct PairTile {
  int32_t expert;
  int32_t first;
  int32_t n;
};

// Row tiles of a simdgroup; the hidden kernels have as many of gate as of up.
DSV4_CONST int kFewHiddenTiles = 1;
DSV4_CONST int kManyHiddenTiles = 2;
DSV4_CONST int kOrderSimdgroups = 8;
DSV4_CONST int kCombineThreads = 256;

// Enough for every distribution: each expert has at most one tile that is not full.
constexpr int max_pair_tiles(int pairs, int n_experts) {
  return pairs / kManyTokens + (pairs < n_experts ? pairs : n_experts);
}
