// What rows and queries go through before they are stored: RMSNorm, tail RoPE, round trips.
//
// Each function works on one float32 row in scratch memory; dims are multiples of 16. Shared by
// the window, compressor, indexer and attention kernels, so that a row is the same whoever made it.
#pragma once

#include <cmath>

#include "../metal/common.h"
#include "simd.h"

namespace mlx_dsv4::DSV4_ISA {

// row / sqrt(mean(row^2) + eps), times weight where there is one.
inline void rms_norm(float* row, const float* weight, int dim, float eps) {
  F32x16 squares = simd::set1(0);
  for (int i = 0; i < dim; i += 16) {
    const F32x16 x = simd::load(row + i);
    squares = simd::fma(x, x, squares);
  }
  const float mean = simd::reduce_add(squares) / static_cast<float>(dim);
  const F32x16 scale = simd::set1(1.0f / std::sqrt(mean + eps));
  for (int i = 0; i < dim; i += 16) {
    const F32x16 x = simd::mul(simd::load(row + i), scale);
    simd::store(row + i, weight ? simd::mul(x, simd::load(weight + i)) : x);
  }
}

// Rotates the last 2 * pairs values; `rotation` holds cosine and sine of each pair.
inline void rotate_tail(
    float* row, int dim, const float* rotation, int pairs, bool inverse) {
  float* tail = row + dim - 2 * pairs;
  const float sign = inverse ? -1.0f : 1.0f;
  for (int i = 0; i < pairs; ++i) {
    const float cosine = rotation[2 * i], sine = sign * rotation[2 * i + 1];
    const float x = tail[2 * i], y = tail[2 * i + 1];
    // Fused on purpose: GCC fuses this pattern with wide instructions and only there.
    tail[2 * i] = __builtin_fmaf(x, cosine, -(y * sine));
    tail[2 * i + 1] = __builtin_fmaf(x, sine, y * cosine);
  }
}

inline float absmax(const float* x, int n, float smallest) {
  float best = smallest;
  for (int i = 0; i < n; ++i) {
    const float magnitude = std::fabs(x[i]);
    best = magnitude > best ? magnitude : best;
  }
  return best;
}

// Smallest power of two s with x <= significand * 2^exponent * s, for a normal x > 0.
inline float power_of_two_scale(float x, float significand, int exponent) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  const uint32_t mantissa = (bits & 0x007FFFFF) | 0x3F800000;
  float fraction;
  std::memcpy(&fraction, &mantissa, 4);
  const int scale =
      static_cast<int>(bits >> 23) - 127 - exponent + (fraction > significand);
  return std::ldexp(1.0f, scale);
}

// Nearest E4M3FN value, ties to even, clamped to ±448.
inline float round_to_e4m3(float x) {
  const float magnitude = std::fabs(x);
  if (magnitude < 0x1p-6f) {
    return (x + 0x1.8p14f) - 0x1.8p14f;  // subnormal codes are multiples of 2^-9
  }
  if (!(magnitude < 448.0f)) {
    return magnitude >= 448.0f ? std::copysign(448.0f, x) : x;
  }
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  bits = (bits + 0x7FFFF + ((bits >> 20) & 1)) & 0xFFF00000;
  float rounded;
  std::memcpy(&rounded, &bits, 4);
  return rounded;
}

// n is a multiple of kFp8Block.
inline void fp8_round_trip(float* x, int n) {
  for (int block = 0; block < n; block += kFp8Block) {
    float* values = x + block;
    const float scale = power_of_two_scale(
        absmax(values, kFp8Block, 1e-4f), 1.75f, 8);  // 448 = 1.75 * 2^8
    for (int i = 0; i < kFp8Block; ++i) {
      values[i] = round_to_e4m3(values[i] / scale) * scale;
    }
  }
}

// Nearest E2M1 value, ties to even.
inline float round_to_e2m1(float x) {
  const float magnitude = std::fabs(x);
  float code = magnitude != magnitude ? magnitude : 6.0f;
  code = magnitude <= 5.0f ? 4.0f : code;
  code = magnitude < 3.5f ? 3.0f : code;
  code = magnitude <= 2.5f ? 2.0f : code;
  code = magnitude < 1.75f ? 1.5f : code;
  code = magnitude <= 1.25f ? 1.0f : code;
  code = magnitude < 0.75f ? 0.5f : code;
  code = magnitude <= 0.25f ? 0.0f : code;
  return std::copysign(code, x);
}

// n is a multiple of kFp4Block.
inline void fp4_round_trip(float* x, int n) {
  for (int block = 0; block < n; block += kFp4Block) {
    float* values = x + block;
    const float scale = power_of_two_scale(
        absmax(values, kFp4Block, 6 * 0x1p-126f), 1.5f, 2);  // 6 = 1.5 * 2^2
    for (int i = 0; i < kFp4Block; ++i) {
      values[i] = round_to_e2m1(values[i] / scale) * scale;
    }
  }
}

// Sylvester-ordered Walsh-Hadamard transform times 1 / sqrt(n); n is a power of two.
inline void hadamard(float* x, int n) {
  for (int half = 1; half < n; half *= 2) {
    for (int first = 0; first < n; first += 2 * half) {
      for (int i = first; i < first + half; ++i) {
        const float a = x[i], b = x[i + half];
        x[i] = a + b;
        x[i + half] = a - b;
      }
    }
  }
  const float scale = 1.0f / std::sqrt(static_cast<float>(n));
  for (int i = 0; i < n; ++i) {
    x[i] *= scale;
  }
}

// The round trip of one kind of row (enum RoundTrip), applied after RoPE.
inline void round_trip(float* row, int dim, int pairs, int kind) {
  if (kind == kRoundTripFp8) {
    fp8_round_trip(row, dim - 2 * pairs);
  } else if (kind == kRoundTripHadamardFp4) {
    hadamard(row, dim);
    fp4_round_trip(row, dim);
  }
}

// Copies a row between float32 scratch and its stored dtype (float or bfloat16 as uint16_t).
template <typename Row>
void load_row(float* to, const Row* from, int dim) {
  for (int i = 0; i < dim; i += 16) {
    simd::store(to + i, simd::load_row(from + i));
  }
}
template <typename Row>
void store_row(Row* to, const float* from, int dim) {
  for (int i = 0; i < dim; i += 16) {
    simd::store_row(to + i, simd::load(from + i));
  }
}

}  // namespace mlx_dsv4::DSV4_ISA
