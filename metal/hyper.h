// Launch contract of the hyper-connection kernels, included by csrc/hyper*.cpp.
#pragma once

#include "common.h"

enum HyperDotsBuffer {
  kHyperDotsStreams,   // [T, S, D] f32
  kHyperDotsFn,        // [J, S * D] f32
  kHyperDotsPartials,  // [T, segments, J + 1] f32; the last column is the sum of squares
  kHyperDotsParams,    // HyperDotsParams
};

enum HyperPreBuffer {
  kHyperPreStreams,   // [T, S, D] f32
  kHyperPrePartials,  // as above, J = (2 + S) S
  kHyperPreBase,      // [(2 + S) S] f32
  kHyperPreScale,     // [3] f32
  kHyperPreNorm,      // [D] f32
  kHyperPreX,         // [T, D] f32
  kHyperPrePost,      // [T, S] f32
  kHyperPreComb,      // [T, S (source), S (destination)] f32
  kHyperPreParams,    // HyperParams
};

enum HyperHeadBuffer {
  kHyperHeadStreams,   // [T, S, D] f32
  kHyperHeadPartials,  // as above, J = S
  kHyperHeadBase,      // [S] f32
  kHyperHeadScale,     // [1] f32
  kHyperHeadNorm,      // [D] f32
  kHyperHeadX,         // [T, D] f32
  kHyperHeadParams,    // HyperParams
};

enum HyperPostBuffer {
  kHyperPostStreams,  // [T, S, D] f32
  kHyperPostY,        // [T, D] f32
  kHyperPostPost,     // [T, S] f32
  kHyperPostComb,     // [T, S, S] f32
  kHyperPostOut,      // [T, S, D] f32
  kHyperPostParams,   // HyperPostParams
};

// The mixing weights of a token live in registers.
DSV4_CONST int kHyperMaxStreams = 8;

// Rows of fn: S for the weights before a sublayer, S after it, S * S between the streams.
constexpr int hyper_outputs(int n_streams) { return (2 + n_streams) * n_streams; }

// Far beyond the 20 of published models: a call must end.
DSV4_CONST int kHyperMaxIterations = 10000;

// Every sum over S * D is cut here, whatever T is: one segment is one threadgroup's.
DSV4_CONST int kHyperSegment = 512;
constexpr int hyper_segments(int n) { return ceil_div(n, kHyperSegment); }

// A simdgroup multiplies a tile of tokens by a block of rows of fn. A single token has a
// kernel of its own; the bits are those of the tile.
DSV4_CONST int kHyperTileTokens = 8;
DSV4_CONST int kHyperBlockRows = 4;
DSV4_CONST int kHyperDotsSimdgroups = 8;  // at most, in a threadgroup
constexpr int hyper_tile_tokens(int n_tokens) {
  return n_tokens == 1 ? 1 : kHyperTileTokens;
}
// Blocks of rows, and one of the tokens' own squares.
constexpr int hyper_blocks(int n_outputs) {
  return ceil_div(n_outputs, kHyperBlockRows) + 1;
}

// Simdgroups that collapse the streams of a token. One more mixes them meanwhile.
DSV4_CONST int kHyperCollapseSimdgroups = 8;

// Threads of hyper_post, each with 4 dims of every stream.
DSV4_CONST int kHyperPostThreads = 256;

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

struct HyperDotsParams {
  int32_t n_tokens;   // T
  int32_t n;          // S * D
  int32_t n_outputs;  // J, rows of fn
};
static_assert(sizeof(HyperDotsParams) == 12, "layout is shared with the GPU");
