// Launch contract of the router kernels, included by csrc/route*.cpp.
#pragma once

#include "common.h"

enum RouteScoredBuffer {
  kRouteScoredLogits,   // [T, E] f32
  kRouteScoredBias,     // [E] f32
  kRouteScoredIds,      // [T, k] i32
  kRouteScoredWeights,  // [T, k] f32
  kRouteScoredParams,
};

enum RouteHashedBuffer {
  kRouteHashedLogits,   // [T, E] f32
  kRouteHashedTokens,   // [T] i32
  kRouteHashedTable,    // [V, k] i32
  kRouteHashedIds,      // [T, k] i32
  kRouteHashedWeights,  // [T, k] f32
  kRouteHashedParams,
};

// The chosen ids live in registers while a token is routed.
DSV4_CONST int kRouteMaxExpertsUsed = 16;

// Tokens of a threadgroup, one simdgroup each.
DSV4_CONST int kRouteTokensPerGroup = 4;

struct RouteParams {
  int32_t n_tokens;   // T
  int32_t n_experts;  // E
  int32_t k;          // experts per token
  int32_t n_rows;     // V of the table; 0 where there is none
  float scale;        // the weights of a token add up to this
};
static_assert(sizeof(RouteParams) == 20, "layout is shared with the GPU");
