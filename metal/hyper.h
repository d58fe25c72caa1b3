// Launch contract of the hyper-connection kernels, included by csrc/hyper.cpp.
#pragma once

#include "common.h"

enum HyperPreBuffer {
  kHyperPreStreams,  // [T, S, D] f32
  kHyperPreFn,       // [(2 + S) S, S * D] f32
  kHyperPreBase,     // [(2 + S) S] f32
  kHyperPreScale,    // [3] f32
  kHyperPreNorm,     // [D] f32
  kHyperPreX,        // [T, D] f32
  kHyperPrePost,     // [T, S] f32
  kHyperPreComb,     // [T, S (source), S (destination)] f32
  kHyperPreParams,   // HyperParams
};

enum HyperPostBuffer {
  kHyperPostStreams,  // [T, S, D] f32
  kHyperPostY,        // [T, D] f32
  kHyperPostPost,     // [T, S] f32
  kHyperPostComb,     // [T, S, S] f32
  kHyperPostOut,      // [T, S, D] f32
  kHyperPostParams,   // HyperPostParams
};

enum HyperHeadBuffer {
  kHyperHeadStreams,  // [T, S, D] f32
  kHyperHeadFn,       // [S, S * D] f32
  kHyperHeadBase,     // [S] f32
  kHyperHeadScale,    // [1] f32
  kHyperHeadNorm,     // [D] f32
  kHyperHeadX,        // [T, D] f32
  kHyperHeadParams,   // HyperParams
};

// The mixing weights of a token live in registers.
DSV4_CONST int kHyperMaxStreams = 8;

// Rows of fn: S for the weights before a sublayer, S after it, S * S between the streams.
constexpr int hyper_outputs(int n_streams) { return (2 + n_streams) * n_streams; }

// Far beyond the 20 of published models: a call must end.
DSV4_CONST int kHyperMaxIterations = 10000;

struct HyperParams {
  int32_t n_streams;   // S
  int32_t dim;         // D
  int32_t n_outputs;   // rows of fn
  int32_t iterations;  // Sinkhorn steps; 0 for the head
  float norm_eps;      // under the root of both norms
  float hyper_eps;     // added to the weights and to Sinkhorn's sums
};
static_assert(sizeof(HyperParams) == 24, "layout is shared with the GPU");

struct HyperPostParams {
  int32_t n_streams;  // S
  int32_t dim;        // D
};
static_assert(sizeof(HyperPostParams) == 8, "layout is shared with the GPU");
