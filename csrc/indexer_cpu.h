// CPU kernels of the indexer. Rows and queries are float or bfloat16, by the kernel's name.
#pragma once

#include "../metal/indexer.h"
#include "kernel_table.h"

namespace mlx_dsv4 {

// A rectangle of the scores: tokens [first_token, end_token) by rows [first_row, end_row).
struct IndexerBlock {
  int64_t first_token, end_token;
  int64_t first_row, end_row;
};
inline constexpr int kIndexerBlockTokens = 16;
inline constexpr int kIndexerBlockRows = 256;

// Rows of one block, transposed, and the queries of one token, both as float32.
inline constexpr int64_t indexer_scratch_floats(const IndexerScoresParams& p) {
  return int64_t{kIndexerBlockRows + p.n_heads} * p.dim;
}

// One histogram of the keys' 11-bit digits.
inline constexpr int kTopkScratchInts = 1 << 11;

struct IndexerKernels {
  // Tokens [begin, end); scratch holds one head.
  using Queries = void (*)(
      const float* q,
      const float* rotation,
      void* out,
      IndexerQueriesParams p,
      float* scratch,
      int64_t begin,
      int64_t end);
  // Hidden rows of the block become -inf and are not read.
  using Scores = void (*)(
      const void* q,
      const float* w,
      const void* rows,
      float* out,
      IndexerScoresParams p,
      IndexerBlock block,
      float* scratch);

  Queries queries_f32, queries_bf16;
  Scores scores_f32, scores_bf16;
  // Tokens [begin, end).
  void (*topk)(
      const float* scores,
      int32_t* selected,
      IndexerTopkParams p,
      int32_t* scratch,
      int64_t begin,
      int64_t end);
};

DSV4_KERNEL_TABLE(IndexerKernels)

}  // namespace mlx_dsv4
