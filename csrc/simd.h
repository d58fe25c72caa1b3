// Sixteen float lanes, the same on every instruction set.
//
// Each lane operation is exact or correctly rounded and sums have one order, so a kernel
// written against this header gives the same bits with scalar code, AVX2, AVX-512 and NEON.
// Only *_cpu.cpp may include it; DSV4_ISA and DSV4_SIMD_HEADER come from CMakeLists.txt.
#pragma once

#include "half.h"

namespace mlx_dsv4::DSV4_ISA::simd {
// Sixteen bytes; operators act on the two words.
using Bytes16 = uint64_t __attribute__((vector_size(16)));
}  // namespace mlx_dsv4::DSV4_ISA::simd

#include DSV4_SIMD_HEADER

namespace mlx_dsv4::DSV4_ISA {

namespace simd {

// e^x within 1 ulp for -86.6 <= x <= 88; 0 below, infinity above, NaN stays NaN.
inline F32x16 exp(F32x16 x) {
  const F32x16 magic = set1(0x1.8p23f);
  const F32x16 bounded = min(set1(89.0f), x);
  // Adding 1.5 * 2^23 rounds to an integer and leaves it in the low bits.
  const F32x16 shifted = fma(bounded, set1(0x1.715476p0f), magic);
  const F32x16 n = sub(shifted, magic);
  F32x16 r = fma(n, set1(-0x1.62e4p-1f), bounded);
  r = fma(n, set1(-0x1.7f7d1cp-20f), r);
  F32x16 p = set1(0x1.6a2434p-10f);
  p = fma(p, r, set1(0x1.1239e2p-7f));
  p = fma(p, r, set1(0x1.5558f2p-5f));
  p = fma(p, r, set1(0x1.555492p-3f));
  p = fma(p, r, set1(0x1.fffffcp-2f));
  p = fma(p, r, set1(1.0f));
  p = fma(p, r, set1(1.0f));
  // 2^n in two factors, so that n = 128 overflows to infinity by the product and not by its bits.
  const F32x16 scale = from_bits(shift_left<23>(add_int(bits(shifted), set1_int(126))));
  const F32x16 y = mul(mul(p, scale), set1(2.0f));
  return select_less(x, set1(-86.6f), set1(0.0f), y);
}

// log(1 + y) within 2 ulp for 0 <= y <= 1; NaN stays NaN.
inline F32x16 log1p_unit(F32x16 y) {
  // log(1 + y) = 2 atanh(y / (2 + y)), an odd series that converges fast up to 1/3.
  const F32x16 s = div(y, add(set1(2.0f), y));
  const F32x16 z = mul(s, s), twice = add(s, s);
  F32x16 p = set1(0x1.f1aee2p-4f);
  p = fma(p, z, set1(0x1.b6d6a4p-4f));
  p = fma(p, z, set1(0x1.250972p-3f));
  p = fma(p, z, set1(0x1.9996a8p-3f));
  p = fma(p, z, set1(0x1.555558p-2f));
  return fma(mul(twice, z), p, twice);
}

inline F32x16 sigmoid(F32x16 x) {
  return div(set1(1.0f), add(set1(1.0f), exp(sub(set1(0.0f), x))));
}

// The largest lane; NaN lanes are passed over unless lane 0 is one.
inline float reduce_max(F32x16 x) {
  float lanes[16];
  store(lanes, x);
  float best = lanes[0];
  for (int i = 1; i < 16; ++i) {
    best = lanes[i] > best ? lanes[i] : best;
  }
  return best;
}

// Values of a row, whichever dtype the row has.
inline F32x16 load_row(const float* p) { return load(p); }
inline F32x16 load_row(const uint16_t* bfloat16) { return load_bf16(bfloat16); }
inline void store_row(float* p, F32x16 x) { store(p, x); }
inline void store_row(uint16_t* bfloat16, F32x16 x) { store_bf16(bfloat16, x); }

}  // namespace simd
}  // namespace mlx_dsv4::DSV4_ISA
