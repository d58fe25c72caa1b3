// CPU kernels of attention. Rows and queries are float or bfloat16, by the kernel's name.
#pragma once

#include "../metal/attention.h"
#include "kernel_table.h"

namespace mlx_dsv4 {

// Heads lie in the sixteen lanes of a vector while softmax is computed.
inline constexpr int kAttentionLanes = 16;
// Rows converted to float32 at a time.
inline constexpr int kAttentionBlockRows = 32;

struct AttentionInputs {
  const void* q;
  const void* rows;
  const void* attention_kv;
  const float* sinks;
  const float* rotation;
  const int32_t* selected;
};

// Heads [first, end) of one token; `first` is a multiple of kAttentionLanes.
struct AttentionUnit {
  int64_t token;
  int first_head, end_head;
};

inline constexpr int64_t attention_lanes(int64_t n_heads) {
  return (n_heads + kAttentionLanes - 1) / kAttentionLanes * kAttentionLanes;
}

// Row numbers, queries, weights, a block of rows, sums, denominators.
inline constexpr int64_t attention_scratch_floats(
    const AttentionParams& p, int64_t n_heads, int64_t most_rows) {
  const int64_t lanes = attention_lanes(n_heads);
  return most_rows + lanes * p.dim + most_rows * lanes +
         int64_t{kAttentionBlockRows} * p.dim + n_heads * p.dim + lanes;
}

struct AttentionKernels {
  // Tokens [begin, end); scratch holds one head.
  using Queries = void (*)(
      const float* q,
      const float* rotation,
      void* out,
      AttentionQueriesParams p,
      float* scratch,
      int64_t begin,
      int64_t end);
  // At most `most_rows` rows are visible.
  using Attend = void (*)(
      const AttentionInputs& inputs,
      void* out,
      AttentionParams p,
      AttentionUnit unit,
      int64_t most_rows,
      float* scratch);

  Queries queries_f32, queries_bf16;
  Attend attend_f32, attend_bf16;
};

DSV4_KERNEL_TABLE(AttentionKernels)

}  // namespace mlx_dsv4
