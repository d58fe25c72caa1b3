// CPU kernels of the router. Each call handles tokens [begin, end).
#pragma once

#include "../metal/route.h"
#include "kernel_table.h"

namespace mlx_dsv4 {

struct RouteKernels {
  void (*scored)(
      const float* logits,
      const float* bias,
      int32_t* ids,
      float* weights,
      RouteParams p,
      int64_t begin,
      int64_t end);
  void (*hashed)(
      const float* logits,
      const int32_t* tokens,
      const int32_t* table,
      int32_t* ids,
      float* weights,
      RouteParams p,
      int64_t begin,
      int64_t end);
};

DSV4_KERNEL_TABLE(RouteKernels)

}  // namespace mlx_dsv4
