// Sixteen lanes in one AVX-512 register. simd_scalar.h defines each operation.
#pragma once

#include <immintrin.h>

namespace mlx_dsv4::DSV4_ISA {

struct F32x16 {
  __m512 v;
};
struct I32x16 {
  __m512i v;
};

namespace simd {

inline constexpr int kRegisters = 32, kPartLanes = 16;
using Part = __m512;
inline Part zero_part() { return _mm512_setzero_ps(); }
inline Part load_part(const float* p) { return _mm512_loadu_ps(p); }
inline void store_part(float* p, Part x) { _mm512_storeu_ps(p, x); }
inline Part fma_part(Part a, Part b, Part c) { return _mm512_fmadd_ps(a, b, c); }

inline F32x16 set1(float x) { return {_mm512_set1_ps(x)}; }
inline F32x16 load(const float* p) { return {_mm512_loadu_ps(p)}; }
inline void store(float* p, F32x16 x) { _mm512_storeu_ps(p, x.v); }
inline F32x16 add(F32x16 a, F32x16 b) { return {_mm512_add_ps(a.v, b.v)}; }
inline F32x16 sub(F32x16 a, F32x16 b) { return {_mm512_sub_ps(a.v, b.v)}; }
inline F32x16 mul(F32x16 a, F32x16 b) { return {_mm512_mul_ps(a.v, b.v)}; }
inline F32x16 div(F32x16 a, F32x16 b) { return {_mm512_div_ps(a.v, b.v)}; }
inline F32x16 fma(F32x16 a, F32x16 b, F32x16 c) {
  return {_mm512_fmadd_ps(a.v, b.v, c.v)};
}
inline F32x16 max(F32x16 a, F32x16 b) { return {_mm512_max_ps(a.v, b.v)}; }
inline F32x16 min(F32x16 a, F32x16 b) { return {_mm512_min_ps(a.v, b.v)}; }
inline F32x16 sqrt(F32x16 a) { return {_mm512_sqrt_ps(a.v)}; }
inline F32x16 select_less(F32x16 a, F32x16 b, F32x16 x, F32x16 y) {
  return {_mm512_mask_blend_ps(_mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ), y.v, x.v)};
}
inline F32x16 load_i8(const int8_t* p) {
  return {_mm512_cvtepi32_ps(
      _mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))))};
}
inline F32x16 widen_i8(Bytes16 bytes) {
  return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32((__m128i)bytes))};
}
inline __m256i load_16bit(const uint16_t* p) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
}
inline F32x16 load_bf16(const uint16_t* p) {
  return {
      _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(load_16bit(p)), 16))};
}
inline void store_bf16(uint16_t* p, F32x16 x) {
  const __m512i raw = _mm512_castps_si512(x.v);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(raw, 16), _mm512_set1_epi32(1));
  const __m512i up =
      _mm512_add_epi32(_mm512_add_epi32(raw, _mm512_set1_epi32(0x7FFF)), odd);
  const __m512i high = _mm512_mask_mov_epi32(
      _mm512_srli_epi32(up, 16),
      _mm512_cmp_ps_mask(x.v, x.v, _CMP_UNORD_Q),
      _mm512_set1_epi32(0x7FC0));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(high));
}
inline F32x16 load_f16(const uint16_t* p) { return {_mm512_cvtph_ps(load_16bit(p))}; }
inline void unpack_e2m1(const uint8_t* bytes, F32x16 scale, F32x16& low, F32x16& high) {
  const __m512 doubled =
      _mm512_setr_ps(0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12);
  const __m512 scaled = _mm512_mul_ps(doubled, scale.v);
  const __m512i codes =
      _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes)));
  // permutexvar reads only the low four bits of each index.
  low = {_mm512_permutexvar_ps(codes, scaled)};
  high = {_mm512_permutexvar_ps(_mm512_srli_epi32(codes, 4), scaled)};
}
inline F32x16 lookup(F32x16 table, Bytes16 bytes, int shift) {
  const __m512i lanes = _mm512_cvtepu8_epi32((__m128i)bytes);
  return {_mm512_permutexvar_ps(
      _mm512_srli_epi32(lanes, static_cast<unsigned>(shift)), table.v)};
}
inline F32x16 lookup_pairs(F32x16 table, uint32_t pairs) {
  const __m512i shifts =
      _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
  const __m512i lanes =
      _mm512_srlv_epi32(_mm512_set1_epi32(static_cast<int>(pairs)), shifts);
  return {_mm512_permutexvar_ps(lanes, table.v)};
}
inline F32x16 negate(F32x16 x, uint16_t signs) {
  return {_mm512_mask_xor_ps(x.v, signs, x.v, _mm512_set1_ps(-0.0f))};
}
inline void lookup_256(
    const uint16_t (&table)[256], const uint8_t (&numbers)[32], uint16_t (&out)[32]) {
  const __m512i at =
      _mm512_cvtepu8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(numbers)));
  __m512i found[4];
  for (int i = 0; i < 4; ++i) {
    found[i] = _mm512_permutex2var_epi16(
        _mm512_loadu_si512(table + 64 * i), at, _mm512_loadu_si512(table + 64 * i + 32));
  }
  const __mmask32 odd = _mm512_test_epi16_mask(at, _mm512_set1_epi16(64));
  const __mmask32 high = _mm512_test_epi16_mask(at, _mm512_set1_epi16(128));
  const __m512i first = _mm512_mask_blend_epi16(odd, found[0], found[1]);
  const __m512i last = _mm512_mask_blend_epi16(odd, found[2], found[3]);
  _mm512_storeu_si512(out, _mm512_mask_blend_epi16(high, first, last));
}
inline I32x16 bits(F32x16 x) { return {_mm512_castps_si512(x.v)}; }
inline F32x16 from_bits(I32x16 x) { return {_mm512_castsi512_ps(x.v)}; }
inline I32x16 add_int(I32x16 a, I32x16 b) { return {_mm512_add_epi32(a.v, b.v)}; }
inline I32x16 set1_int(int32_t x) { return {_mm512_set1_epi32(x)}; }
template <int kBits>
inline I32x16 shift_left(I32x16 a) {
  return {_mm512_slli_epi32(a.v, kBits)};
}
inline void transpose(F32x16 (&tile)[16]) {
  __m512 pairs[16], quads[16];
  for (int i = 0; i < 16; i += 2) {
    pairs[i] = _mm512_unpacklo_ps(tile[i].v, tile[i + 1].v);
    pairs[i + 1] = _mm512_unpackhi_ps(tile[i].v, tile[i + 1].v);
  }
  for (int i = 0; i < 16; i += 4) {
    for (int j = 0; j < 2; ++j) {
      const __m512d first = _mm512_castps_pd(pairs[i + j]);
      const __m512d second = _mm512_castps_pd(pairs[i + j + 2]);
      quads[i + 2 * j] = _mm512_castpd_ps(_mm512_unpacklo_pd(first, second));
      quads[i + 2 * j + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(first, second));
    }
  }
  // 128-bit lane j of quads[4 * i + c] holds column 4 * j + c of rows 4 * i to 4 * i + 3.
  for (int c = 0; c < 4; ++c) {
    const __m512 even = _mm512_shuffle_f32x4(quads[c], quads[c + 4], 0x88);
    const __m512 odd = _mm512_shuffle_f32x4(quads[c], quads[c + 4], 0xDD);
    const __m512 even_low = _mm512_shuffle_f32x4(quads[c + 8], quads[c + 12], 0x88);
    const __m512 odd_low = _mm512_shuffle_f32x4(quads[c + 8], quads[c + 12], 0xDD);
    tile[c].v = _mm512_shuffle_f32x4(even, even_low, 0x88);
    tile[c + 4].v = _mm512_shuffle_f32x4(odd, odd_low, 0x88);
    tile[c + 8].v = _mm512_shuffle_f32x4(even, even_low, 0xDD);
    tile[c + 12].v = _mm512_shuffle_f32x4(odd, odd_low, 0xDD);
  }
}
inline float reduce_add(F32x16 x) {
  const __m256 eight =
      _mm256_add_ps(_mm512_castps512_ps256(x.v), _mm512_extractf32x8_ps(x.v, 1));
  __m128 four =
      _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  four = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(four, _mm_movehdup_ps(four)));
}

}  // namespace simd
}  // namespace mlx_dsv4::DSV4_ISA
