// Sixteen lanes in two AVX2 registers. simd_scalar.h defines each operation.
#pragma once

#include <immintrin.h>

namespace mlx_dsv4::DSV4_ISA {

struct F32x16 {
  __m256 lo, hi;
};
struct I32x16 {
  __m256i lo, hi;
};

namespace simd {

inline constexpr int kRegisters = 16, kPartLanes = 8;
using Part = __m256;
inline Part zero_part() { return _mm256_setzero_ps(); }
inline Part load_part(const float* p) { return _mm256_loadu_ps(p); }
inline void store_part(float* p, Part x) { _mm256_storeu_ps(p, x); }
inline Part fma_part(Part a, Part b, Part c) { return _mm256_fmadd_ps(a, b, c); }

inline F32x16 set1(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
inline F32x16 load(const float* p) {
  return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)};
}
inline void store(float* p, F32x16 x) {
  _mm256_storeu_ps(p, x.lo);
  _mm256_storeu_ps(p + 8, x.hi);
}
inline F32x16 add(F32x16 a, F32x16 b) {
  return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)};
}
inline F32x16 sub(F32x16 a, F32x16 b) {
  return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)};
}
inline F32x16 mul(F32x16 a, F32x16 b) {
  return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)};
}
inline F32x16 div(F32x16 a, F32x16 b) {
  return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)};
}
inline F32x16 fma(F32x16 a, F32x16 b, F32x16 c) {
  return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}
inline F32x16 max(F32x16 a, F32x16 b) {
  return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)};
}
inline F32x16 min(F32x16 a, F32x16 b) {
  return {_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)};
}
inline F32x16 sqrt(F32x16 a) { return {_mm256_sqrt_ps(a.lo), _mm256_sqrt_ps(a.hi)}; }
inline F32x16 select_less(F32x16 a, F32x16 b, F32x16 x, F32x16 y) {
  return {
      _mm256_blendv_ps(y.lo, x.lo, _mm256_cmp_ps(a.lo, b.lo, _CMP_LT_OQ)),
      _mm256_blendv_ps(y.hi, x.hi, _mm256_cmp_ps(a.hi, b.hi, _CMP_LT_OQ))};
}
inline __m128i load_16bytes(const void* p) {
  return _mm_loadu_si128(static_cast<const __m128i*>(p));
}
inline F32x16 widen_i8(__m128i raw) {
  return {
      _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(raw)),
      _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_unpackhi_epi64(raw, raw)))};
}
inline F32x16 widen_i8(Bytes16 bytes) { return widen_i8((__m128i)bytes); }
inline F32x16 load_i8(const int8_t* p) { return widen_i8(load_16bytes(p)); }
inline __m256 widen_bf16(const uint16_t* p) {
  return _mm256_castsi256_ps(
      _mm256_slli_epi32(_mm256_cvtepu16_epi32(load_16bytes(p)), 16));
}
inline F32x16 load_bf16(const uint16_t* p) { return {widen_bf16(p), widen_bf16(p + 8)}; }
inline void narrow_bf16(uint16_t* p, __m256 x) {
  const __m256i raw = _mm256_castps_si256(x);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(raw, 16), _mm256_set1_epi32(1));
  const __m256i up =
      _mm256_add_epi32(_mm256_add_epi32(raw, _mm256_set1_epi32(0x7FFF)), odd);
  const __m256i high = _mm256_blendv_epi8(
      _mm256_srli_epi32(up, 16),
      _mm256_set1_epi32(0x7FC0),
      _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q)));
  const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(high, high), 0x08);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_castsi256_si128(packed));
}
inline void store_bf16(uint16_t* p, F32x16 x) {
  narrow_bf16(p, x.lo);
  narrow_bf16(p + 8, x.hi);
}
inline F32x16 load_f16(const uint16_t* p) {
  return {_mm256_cvtph_ps(load_16bytes(p)), _mm256_cvtph_ps(load_16bytes(p + 8))};
}
inline void unpack_e2m1(const uint8_t* bytes, F32x16 scale, F32x16& low, F32x16& high) {
  const __m128i doubled =
      _mm_setr_epi8(0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12);
  const __m128i mask = _mm_set1_epi8(15), codes = load_16bytes(bytes);
  low = mul(widen_i8(_mm_shuffle_epi8(doubled, _mm_and_si128(codes, mask))), scale);
  const __m128i high_codes = _mm_and_si128(_mm_srli_epi16(codes, 4), mask);
  high = mul(widen_i8(_mm_shuffle_epi8(doubled, high_codes)), scale);
}
inline __m256 lookup8(F32x16 table, __m256i lanes) {
  // The sign bit that blendv reads is bit 3 of the lane's number.
  return _mm256_blendv_ps(
      _mm256_permutevar8x32_ps(table.lo, lanes),
      _mm256_permutevar8x32_ps(table.hi, lanes),
      _mm256_castsi256_ps(_mm256_slli_epi32(lanes, 28)));
}
inline F32x16 lookup(F32x16 table, Bytes16 bytes, int shift) {
  const __m128i raw = _mm_srli_epi64((__m128i)bytes, shift);
  return {
      lookup8(table, _mm256_cvtepu8_epi32(raw)),
      lookup8(table, _mm256_cvtepu8_epi32(_mm_unpackhi_epi64(raw, raw)))};
}
inline F32x16 lookup_pairs(F32x16 table, uint32_t pairs) {
  const __m256i shifts = _mm256_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14);
  // Only the low three bits of each are read.
  const __m256i low =
      _mm256_srlv_epi32(_mm256_set1_epi32(static_cast<int>(pairs)), shifts);
  const __m256i high =
      _mm256_srlv_epi32(_mm256_set1_epi32(static_cast<int>(pairs >> 16)), shifts);
  return {
      _mm256_permutevar8x32_ps(table.lo, low), _mm256_permutevar8x32_ps(table.lo, high)};
}
inline __m256 negate8(__m256 x, int signs) {
  const __m256i bit = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
  const __m256i set =
      _mm256_cmpeq_epi32(_mm256_and_si256(_mm256_set1_epi32(signs), bit), bit);
  return _mm256_xor_ps(x, _mm256_and_ps(_mm256_castsi256_ps(set), _mm256_set1_ps(-0.0f)));
}
inline F32x16 negate(F32x16 x, uint16_t signs) {
  return {negate8(x.lo, signs), negate8(x.hi, signs >> 8)};
}
inline void lookup_256(
    const uint16_t (&table)[256], const uint8_t (&numbers)[32], uint16_t (&out)[32]) {
  for (int i = 0; i < 32; ++i) {
    out[i] = table[numbers[i]];
  }
}
inline I32x16 bits(F32x16 x) {
  return {_mm256_castps_si256(x.lo), _mm256_castps_si256(x.hi)};
}
inline F32x16 from_bits(I32x16 x) {
  return {_mm256_castsi256_ps(x.lo), _mm256_castsi256_ps(x.hi)};
}
inline I32x16 add_int(I32x16 a, I32x16 b) {
  return {_mm256_add_epi32(a.lo, b.lo), _mm256_add_epi32(a.hi, b.hi)};
}
inline I32x16 set1_int(int32_t x) { return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
template <int kBits>
inline I32x16 shift_left(I32x16 a) {
  return {_mm256_slli_epi32(a.lo, kBits), _mm256_slli_epi32(a.hi, kBits)};
}
inline void transpose8(__m256 (&tile)[8]) {
  __m256 pairs[8], quads[8];
  for (int i = 0; i < 8; i += 2) {
    pairs[i] = _mm256_unpacklo_ps(tile[i], tile[i + 1]);
    pairs[i + 1] = _mm256_unpackhi_ps(tile[i], tile[i + 1]);
  }
  for (int i = 0; i < 8; i += 4) {
    for (int j = 0; j < 2; ++j) {
      const __m256d first = _mm256_castps_pd(pairs[i + j]);
      const __m256d second = _mm256_castps_pd(pairs[i + j + 2]);
      quads[i + 2 * j] = _mm256_castpd_ps(_mm256_unpacklo_pd(first, second));
      quads[i + 2 * j + 1] = _mm256_castpd_ps(_mm256_unpackhi_pd(first, second));
    }
  }
  for (int c = 0; c < 4; ++c) {
    tile[c] = _mm256_permute2f128_ps(quads[c], quads[c + 4], 0x20);
    tile[c + 4] = _mm256_permute2f128_ps(quads[c], quads[c + 4], 0x31);
  }
}
inline void transpose(F32x16 (&tile)[16]) {
  __m256 quarters[4][8];
  for (int i = 0; i < 8; ++i) {
    quarters[0][i] = tile[i].lo;
    quarters[1][i] = tile[i].hi;
    quarters[2][i] = tile[i + 8].lo;
    quarters[3][i] = tile[i + 8].hi;
  }
  for (auto& quarter : quarters) {
    transpose8(quarter);
  }
  for (int i = 0; i < 8; ++i) {
    tile[i] = {quarters[0][i], quarters[2][i]};
    tile[i + 8] = {quarters[1][i], quarters[3][i]};
  }
}
inline float reduce_add(F32x16 x) {
  const __m256 eight = _mm256_add_ps(x.lo, x.hi);
  __m128 four =
      _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  four = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(four, _mm_movehdup_ps(four)));
}

}  // namespace simd
}  // namespace mlx_dsv4::DSV4_ISA
