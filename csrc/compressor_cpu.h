// CPU kernels of the compressor: pool every closed span, finish its row, advance the state.
#pragma once

#include "../metal/compressor.h"
#include "kernel_table.h"

namespace mlx_dsv4 {

// Pointers of one append; shapes as in metal/compressor.h.
struct CompressorArrays {
  const float* value;
  const float* gate;
  const float* ape;
  const float* norm;
  const float* rotation;
  float* state_value;
  float* state_score;
  void* rows;
};

// Features that one unit of pooling handles.
inline constexpr int kPoolFeatures = 64;

constexpr int pool_blocks(int dim) { return (dim + kPoolFeatures - 1) / kPoolFeatures; }

struct CompressorKernels {
  // Softmax-weighted sums, rounded to the row dtype, into the row of each span. Unit i is
  // feature block i % pool_blocks(dim) of closed span i / pool_blocks(dim).
  using Pool = void (*)(
      const CompressorArrays& a, const CompressorParams& p, int64_t begin, int64_t end);
  // Norm, rotation and round trip of the rows of closed spans [begin, end), in place.
  using Finish = void (*)(
      const CompressorArrays& a,
      const CompressorParams& p,
      float* scratch,
      int64_t begin,
      int64_t end);
  Pool pool_float32, pool_bfloat16;
  Finish finish_float32, finish_bfloat16;
  // What the state must be after the last token. Runs when no span reads the state any more.
  void (*advance)(const CompressorArrays& a, const CompressorParams& p);
};

DSV4_KERNEL_TABLE(CompressorKernels)

}  // namespace mlx_dsv4
