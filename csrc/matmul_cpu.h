// CPU kernels of the matrix products.
#pragma once

#include "../metal/matmul.h"
#include "kernel_table.h"
#include "panel.h"

namespace mlx_dsv4 {

struct MatmulKernels {
  // Rows [begin, end) of x, K values each, into packed rows (packed_stride).
  void (*pack_f32)(const float* x, float* packed, int k, int64_t begin, int64_t end);
  void (*pack_bf16)(const uint16_t* x, float* packed, int k, int64_t begin, int64_t end);
  // Columns [begin, end) of out; packed holds n_tokens * groups rows.
  void (*multiply)(
      const float* packed,
      const uint8_t* weight,
      float* out,
      PanelScratch& scratch,
      MatmulParams p,
      int64_t n_tokens,
      int64_t begin,
      int64_t end);
  // Tokens [begin, end).
  void (*embed)(
      const int32_t* tokens,
      const uint8_t* weight,
      float* out,
      EmbedParams p,
      int64_t begin,
      int64_t end);
};

DSV4_KERNEL_TABLE(MatmulKernels)

}  // namespace mlx_dsv4
