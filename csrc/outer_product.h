// Sums of outer products kept in registers: the inner loop of scores, logits and weighted rows.
#pragma once

#include "simd.h"

namespace mlx_dsv4::DSV4_ISA {

// Two vectors of one operand meet this many single values of the other.
inline constexpr int kPanelVectors = 2;
inline constexpr int kPanel = 16 * kPanelVectors;

template <int kVectors>
inline constexpr int kValues =
    simd::kAccumulators > kVectors ? simd::kAccumulators / kVectors : 1;

// sums[i][j] += value(i, s) * vector(j, s), for s ascending from 0 to n - 1: one fma after the
// other, so a sum does not depend on what is computed beside it.
// value(i, s) = values[i * value_stride + s * value_step]; vector(j, s) = vectors[s * vector_step
// + 16 * j ...].
template <int kCount, int kVectors>
inline void add_outer_products(
    F32x16 (&sums)[kCount][kVectors],
    const float* values,
    int64_t value_stride,
    int64_t value_step,
    const float* vectors,
    int64_t vector_step,
    int n) {
  F32x16 local[kCount][kVectors];
#pragma GCC unroll 16
  for (int i = 0; i < kCount; ++i) {
#pragma GCC unroll 16
    for (int j = 0; j < kVectors; ++j) {
      local[i][j] = sums[i][j];
    }
  }
  for (int s = 0; s < n; ++s) {
    F32x16 vector[kVectors];
#pragma GCC unroll 16
    for (int j = 0; j < kVectors; ++j) {
      vector[j] = simd::load(vectors + s * vector_step + 16 * j);
    }
#pragma GCC unroll 16
    for (int i = 0; i < kCount; ++i) {
      const F32x16 value = simd::set1(values[i * value_stride + s * value_step]);
#pragma GCC unroll 16
      for (int j = 0; j < kVectors; ++j) {
        local[i][j] = simd::fma(value, vector[j], local[i][j]);
      }
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < kCount; ++i) {
#pragma GCC unroll 16
    for (int j = 0; j < kVectors; ++j) {
      sums[i][j] = local[i][j];
    }
  }
}

}  // namespace mlx_dsv4::DSV4_ISA
