// CPU kernels of the routed experts.
#pragma once

#include "../metal/experts.h"
#include "kernel_table.h"
#include "panel.h"

namespace mlx_dsv4 {

// The slots [first, first + n) of a call that one expert serves.
struct ExpertGroup {
  int32_t expert, first, n;
};

// One call: slots are sorted by expert, then token, then place in the token's ids.
struct ExpertsCall {
  const float* x;       // packed rows of K values, by token
  float* h;             // packed rows of F values, by slot
  float* out;           // [T, K]
  const uint8_t* gate;  // [E, F, row_bytes]
  const uint8_t* up;    // [E, F, row_bytes]
  const uint8_t* down;  // [E, K, row_bytes]
  const ExpertGroup* groups;
  const int32_t* tokens;  // by slot
  const float* weights;   // by slot
  int64_t n_groups, n_tokens;
  ExpertsParams p;
};

struct ExpertsKernels {
  // Tokens [begin, end) of x [T, K] into packed rows.
  void (*pack)(const float* x, float* packed, int k, int64_t begin, int64_t end);
  // h, units [begin, end): unit = group * ceil(F / kPanelRows) + panel of rows.
  void (*hidden)(
      const ExpertsCall& call, PanelScratch& scratch, int64_t begin, int64_t end);
  // out, panels [begin, end) of its columns.
  void (*combine)(
      const ExpertsCall& call, PanelScratch& scratch, int64_t begin, int64_t end);
};

DSV4_KERNEL_TABLE(ExpertsKernels)

}  // namespace mlx_dsv4
