// CPU kernels of the hyper-connections.
//
// Collapsing the streams has two phases, because one token's product is worth splitting between
// threads: `product` handles tiles of (tokens, rows of fn), then `pre` or `head` handles tokens.
#pragma once

#include "../metal/hyper.h"
#include "kernel_table.h"

namespace mlx_dsv4 {

struct HyperKernels {
  // Tiles of `product`: tile i covers tokens (i / n) * tile_tokens .. and rows of fn
  // (i % n) * tile_rows .., with n = ceil(n_outputs / tile_rows).
  int tile_tokens;
  int tile_rows;
  // m [T, n_outputs] = fn . streams, without the norm; tiles [begin, end).
  void (*product)(
      const float* streams,
      const float* fn,
      float* m,
      int64_t n_tokens,
      HyperParams p,
      int64_t begin,
      int64_t end);
  // Tokens [begin, end).
  void (*pre)(
      const float* streams,
      const float* m,
      const float* base,
      const float* scale,
      const float* norm,
      float* x,
      float* post,
      float* comb,
      HyperParams p,
      int64_t begin,
      int64_t end);
  // Tokens [begin, end).
  void (*head)(
      const float* streams,
      const float* m,
      const float* base,
      const float* scale,
      const float* norm,
      float* x,
      HyperParams p,
      int64_t begin,
      int64_t end);
  // Tokens [begin, end).
  void (*post)(
      const float* streams,
      const float* y,
      const float* post,
      const float* comb,
      float* out,
      HyperPostParams p,
      int64_t begin,
      int64_t end);
};

DSV4_KERNEL_TABLE(HyperKernels)

}  // namespace mlx_dsv4
