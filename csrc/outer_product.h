// Sums of outer products kept in registers: the inner loop of scores, logits and weighted rows.
#pragma once

#include "simd.h"

namespace mlx_dsv4::DSV4_ISA {

// Two vectors of one operand meet this many single values of the other.
inline constexpr int kPanelVectors = 2;
inline constexpr int kPanel = 16 * kPanelVectors;

// Half of the registers hold sums; the operands use the others.
template <int kVectors>
inline constexpr int kValues =
    simd::kRegisters / 2 > kVectors ? simd::kRegisters / 2 / kVectors : 1;

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

// One operand of a sum of outer products: element i of step s is data[i * stride + s * step].
struct Values {
  const float* data;
  int64_t stride, step;
};
// The other one: consecutive columns, step s at data + s * step.
struct Vectors {
  const float* data;
  int64_t step;
};

template <int kCount, int kVectors>
inline void add_to_stored(
    Values values, Vectors vectors, int n, float* sums, int64_t pitch) {
  F32x16 local[kCount][kVectors];
  for (int i = 0; i < kCount; ++i) {
    for (int j = 0; j < kVectors; ++j) {
      local[i][j] = simd::load(sums + i * pitch + 16 * j);
    }
  }
  add_outer_products(
      local, values.data, values.stride, values.step, vectors.data, vectors.step, n);
  for (int i = 0; i < kCount; ++i) {
    for (int j = 0; j < kVectors; ++j) {
      simd::store(sums + i * pitch + 16 * j, local[i][j]);
    }
  }
}

template <int kVectors>
void add_columns(
    Values values, int n_values, Vectors vectors, int n, float* sums, int64_t pitch) {
  constexpr int kCount = kValues<kVectors>;
  int i = 0;
  for (; i + kCount <= n_values; i += kCount) {
    add_to_stored<kCount, kVectors>(values, vectors, n, sums + i * pitch, pitch);
    values.data += kCount * values.stride;
  }
  for (; i < n_values; ++i) {
    add_to_stored<1, kVectors>(values, vectors, n, sums + i * pitch, pitch);
    values.data += values.stride;
  }
}

// sums[i * pitch + c] += value(i, s) * vectors[s][c] for s ascending; n_columns is a multiple
// of 16.
inline void add_products(
    Values values,
    int n_values,
    Vectors vectors,
    int n_columns,
    int n,
    float* sums,
    int64_t pitch) {
  int c = 0;
  for (; c + kPanel <= n_columns; c += kPanel) {
    const Vectors panel{vectors.data + c, vectors.step};
    add_columns<kPanelVectors>(values, n_values, panel, n, sums + c, pitch);
  }
  for (; c < n_columns; c += 16) {
    const Vectors panel{vectors.data + c, vectors.step};
    add_columns<1>(values, n_values, panel, n, sums + c, pitch);
  }
}

}  // namespace mlx_dsv4::DSV4_ISA
