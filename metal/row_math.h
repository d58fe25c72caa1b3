// Device only: what rows and queries go through before they are stored: RMSNorm, tail RoPE,
// round trips. One simdgroup holds one float32 row; a row is the same whoever makes it.
//
// Pairs that rotate lie in one lane; an FP8 block is half a slice, an FP4 block a quarter.
#pragma once

#include "packed_values.h"
#include "row_slices.h"

using namespace metal;

// Dims [128 j + 4 lane, + 4) in part j; zeros from the row's end on. Dims are multiples of 16,
// so a part is in the row or outside.
template <int kSlices>
struct LaneRow {
  float4 parts[kSlices];
};

constexpr int first_dim(int slice, uint lane) {
  return slice * kRowSliceDims + 4 * int(lane);
}

template <int kSlices>
inline LaneRow<kSlices> load_row(const device float* from, int dim, uint lane) {
  LaneRow<kSlices> row;
#pragma unroll
  for (int j = 0; j < kSlices; ++j) {
    const int at = first_dim(j, lane);
    row.parts[j] = at < dim ? load_four(from + at) : float4(0.0f);
  }
  return row;
}

template <int kSlices, typename T>
inline void store_row(
    device T* to, thread const LaneRow<kSlices>& row, int dim, uint lane) {
#pragma unroll
  for (int j = 0; j < kSlices; ++j) {
    const int at = first_dim(j, lane);
    if (at < dim) {
      store_four(to + at, row.parts[j]);
    }
  }
}

// row / sqrt(mean(row^2) + eps). The butterfly gives every lane the same sum.
template <int kSlices>
inline void rms_norm(thread LaneRow<kSlices>& row, int dim, float eps) {
  float squares = 0.0f;
#pragma unroll
  for (int j = 0; j < kSlices; ++j) {
    const float4 x = row.parts[j];
    squares = fma(x.x, x.x, squares);
    squares = fma(x.y, x.y, squares);
    squares = fma(x.z, x.z, squares);
    squares = fma(x.w, x.w, squares);
  }
  for (int apart = kSimdWidth / 2; apart > 0; apart /= 2) {
    squares += simd_shuffle_xor(squares, ushort(apart));
  }
  const float scale = 1.0f / precise::sqrt(squares / float(dim) + eps);
#pragma unroll
  for (int j = 0; j < kSlices; ++j) {
    row.parts[j] *= scale;
  }
}

template <int kSlices>
inline void weigh(
    thread LaneRow<kSlices>& row, const device float* weights, int dim, uint lane) {
  const LaneRow<kSlices> weight = load_row<kSlices>(weights, dim, lane);
#pragma unroll
  for (int j = 0; j < kSlices; ++j) {
    row.parts[j] *= weight.parts[j];
  }
}

// `rotation` is the cosine and the sine of the pair.
inline float2 rotate(float2 pair, const device float* rotation) {
  const float cosine = rotation[0], sine = rotation[1];
  return float2(
      fma(pair.x, cosine, -(pair.y * sine)), fma(pair.x, sine, pair.y * cosine));
}

// Rotates the last 2 * pairs values.
template <int kSlices>
inline void rotate_tail(
    thread LaneRow<kSlices>& row,
    int dim,
    const device float* rotation,
    int pairs,
    uint lane) {
  const int tail = dim - 2 * pairs;
#pragma unroll
  for (int j = 0; j < kSlices; ++j) {
    const int at = first_dim(j, lane);
    if (at >= tail && at < dim) {
      row.parts[j].xy = rotate(row.parts[j].xy, rotation + (at - tail));
    }
    if (at + 2 >= tail && at < dim) {
      row.parts[j].zw = rotate(row.parts[j].zw, rotation + (at + 2 - tail));
    }
  }
}

// The largest magnitude among `lanes` neighbours, at least `smallest`; NaN is passed over.
inline float absmax(float4 values, float smallest, int lanes) {
  float best = smallest;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float magnitude = fabs(values[i]);
    best = magnitude > best ? magnitude : best;
  }
  for (int apart = 1; apart < lanes; apart *= 2) {
    best = max(best, simd_shuffle_xor(best, ushort(apart)));
  }
  return best;
}

inline float power_of_two(int exponent) {
  return as_type<float>(uint(exponent + 127) << 23);
}

// Smallest n with x <= significand * 2^exponent * 2^n, for a normal x > 0.
inline int scale_exponent(float x, float significand, int exponent) {
  const uint bits = as_type<uint>(x);
  const float fraction = as_type<float>((bits & 0x007FFFFFu) | 0x3F800000u);
  return int(bits >> 23) - 127 - exponent + (fraction > significand ? 1 : 0);
}

// Nearest E4M3FN value, ties to even, of |x| <= 448; NaN for an infinity.
inline float round_to_e4m3(float x) {
  const float magnitude = fabs(x);
  // 2^-6 is the smallest normal code.
  const uint binade = max(as_type<uint>(magnitude) & 0x7F800000u, 0x3C800000u);
  // Codes are multiples of binade / 8, which is the last place of a float near `shift`.
  const float shift = as_type<float>(binade) * 0x1p20f;
  return copysign((magnitude + shift) - shift, x);
}

// Nearest E2M1 value, ties to even.
inline float round_to_e2m1(float x) {
  const float magnitude = fabs(x);
  float code = isnan(magnitude) ? magnitude : 6.0f;
  code = magnitude <= 5.0f ? 4.0f : code;
  code = magnitude < 3.5f ? 3.0f : code;
  code = magnitude <= 2.5f ? 2.0f : code;
  code = magnitude < 1.75f ? 1.5f : code;
  code = magnitude <= 1.25f ? 1.0f : code;
  code = magnitude < 0.75f ? 0.5f : code;
  code = magnitude <= 0.25f ? 0.0f : code;
  return copysign(code, x);
}

// Of the first n values, a multiple of kFp8Block.
template <int kSlices>
inline void fp8_round_trip(thread LaneRow<kSlices>& row, int n, uint lane) {
#pragma unroll
  for (int j = 0; j < kSlices; ++j) {
    const float largest = absmax(row.parts[j], 1e-4f, kFp8Block / 4);
    const int exponent = scale_exponent(largest, 1.75f, 8);  // 448 = 1.75 * 2^8
    const float scale = power_of_two(exponent), inverse = power_of_two(-exponent);
    if (first_dim(j, lane) < n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        row.parts[j][i] = round_to_e4m3(row.parts[j][i] * inverse) * scale;
      }
    }
  }
}

template <int kSlices>
inline void fp4_round_trip(thread LaneRow<kSlices>& row) {
#pragma unroll
  for (int j = 0; j < kSlices; ++j) {
    const float largest = absmax(row.parts[j], 6 * 0x1p-126f, kFp4Block / 4);
    const int exponent = scale_exponent(largest, 1.5f, 2);  // 6 = 1.5 * 2^2
    const float scale = power_of_two(exponent), inverse = power_of_two(-exponent);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      row.parts[j][i] = round_to_e2m1(row.parts[j][i] * inverse) * scale;
    }
  }
}

// Sums and differences of neighbours 1 and 2 dims apart, which one lane holds.
inline float4 hadamard_of_four(float4 x) {
  const float4 once = float4(x.x + x.y, x.x - x.y, x.z + x.w, x.z - x.w);
  return float4(once.xy + once.zw, once.xy - once.zw);
}

// Sylvester-ordered Walsh-Hadamard transform times 1 / sqrt(dim); dim is a power of two >= 16,
// so that all slices are full or there is one.
template <int kSlices>
inline void hadamard(thread LaneRow<kSlices>& row, int dim, uint lane) {
#pragma unroll
  for (int j = 0; j < kSlices; ++j) {
    row.parts[j] = hadamard_of_four(row.parts[j]);
    for (int apart = 1; apart < kSimdWidth && 4 * apart < dim; apart *= 2) {
      const float4 mine = row.parts[j];
      const float4 other = simd_shuffle_xor(mine, ushort(apart));
      row.parts[j] = (int(lane) & apart) != 0 ? other - mine : mine + other;
    }
  }
#pragma unroll
  for (int apart = 1; apart < kSlices; apart *= 2) {
#pragma unroll
    for (int j = 0; j < kSlices; ++j) {
      if ((j & apart) == 0) {
        const float4 a = row.parts[j], b = row.parts[j + apart];
        row.parts[j] = a + b;
        row.parts[j + apart] = a - b;
      }
    }
  }
  const float scale = 1.0f / precise::sqrt(float(dim));
#pragma unroll
  for (int j = 0; j < kSlices; ++j) {
    row.parts[j] *= scale;
  }
}

// The round trip of one kind of row (enum RoundTrip), applied after RoPE.
template <int kSlices>
inline void round_trip(
    thread LaneRow<kSlices>& row, int dim, int pairs, int kind, uint lane) {
  if (kind == kRoundTripFp8) {
    fp8_round_trip(row, dim - 2 * pairs, lane);
  } else if (kind == kRoundTripHadamardFp4) {
    hadamard(row, dim, lane);
    fp4_round_trip(row);
  }
}
