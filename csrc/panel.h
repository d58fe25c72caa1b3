// Sizes and memory of a panel product: a few rows of a packed matrix times a few tokens.
#pragma once

#include <stdint.h>

namespace mlx_dsv4 {

inline constexpr int kPanelRows = 32;
inline constexpr int kPanelTokens = 192;
inline constexpr int kPanelDepth = 512;  // values of a row that are decoded at a time

// What one thread needs while it multiplies a panel: half a MiB, to stay in the L2 cache.
struct alignas(64) PanelScratch {
  // The odd number of cache lines keeps rows from falling into the same cache sets.
  float weights[kPanelRows][kPanelDepth + 16];
  float sums[kPanelRows * kPanelTokens * 16];  // 16 lanes per product
  float products[2][kPanelTokens][kPanelRows];
  const float* x[kPanelTokens];
};

// Floats from one packed row of x to the next: K padded with zeros to whole lanes, and a line.
constexpr int64_t packed_stride(int k) { return (int64_t{k} + 15) / 16 * 16 + 16; }

}  // namespace mlx_dsv4
