// Launch contract of the routed experts, included by csrc/experts.cpp.
#pragma once

#include "blocks.h"

enum ExpertsBuffer {
  kExpertsX,        // [T, K] f32
  kExpertsIds,      // [T, k] i32
  kExpertsWeights,  // [T, k] f32
  kExpertsGate,     // [E, F, row_bytes] u8
  kExpertsUp,       // [E, F, row_bytes] u8
  kExpertsDown,     // [E, K, row_bytes] u8
  kExpertsOut,      // [T, K] f32
  kExpertsParams,
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
};
static_assert(sizeof(ExpertsParams) == 32, "layout is shared with the GPU");
