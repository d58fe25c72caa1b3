// CPU kernels of the window. Each call handles tokens [begin, end).
#pragma once

#include "../metal/window.h"
#include "kernel_table.h"

namespace mlx_dsv4 {

// `scratch` holds one row of D floats.
struct WindowKernels {
  void (*rows_float32)(
      const float* kv,
      const float* norm,
      const float* rotation,
      float* out,
      float* scratch,
      WindowRowsParams p,
      int64_t begin,
      int64_t end);
  void (*rows_bfloat16)(
      const float* kv,
      const float* norm,
      const float* rotation,
      uint16_t* out,
      float* scratch,
      WindowRowsParams p,
      int64_t begin,
      int64_t end);
};

DSV4_KERNEL_TABLE(WindowKernels)

}  // namespace mlx_dsv4
