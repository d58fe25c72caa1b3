// Sixteen lanes in four NEON registers. simd_scalar.h defines each operation.
#pragma once

#include <arm_neon.h>

namespace mlx_dsv4::DSV4_ISA {

struct F32x16 {
  float32x4_t v[4];
};
struct I32x16 {
  int32x4_t v[4];
};

namespace simd {

inline constexpr int kRegisters = 32, kPartLanes = 4;
using Part = float32x4_t;
inline Part zero_part() { return vdupq_n_f32(0); }
inline Part load_part(const float* p) { return vld1q_f32(p); }
inline void store_part(float* p, Part x) { vst1q_f32(p, x); }
inline Part fma_part(Part a, Part b, Part c) { return vfmaq_f32(c, a, b); }

template <typename Fn>
inline F32x16 quads(Fn fn) {
  return {{fn(0), fn(1), fn(2), fn(3)}};
}

inline F32x16 set1(float x) {
  return quads([&](int) { return vdupq_n_f32(x); });
}
inline F32x16 load(const float* p) {
  return quads([&](int i) { return vld1q_f32(p + 4 * i); });
}
inline void store(float* p, F32x16 x) {
  for (int i = 0; i < 4; ++i) {
    vst1q_f32(p + 4 * i, x.v[i]);
  }
}
inline F32x16 add(F32x16 a, F32x16 b) {
  return quads([&](int i) { return vaddq_f32(a.v[i], b.v[i]); });
}
inline F32x16 sub(F32x16 a, F32x16 b) {
  return quads([&](int i) { return vsubq_f32(a.v[i], b.v[i]); });
}
inline F32x16 mul(F32x16 a, F32x16 b) {
  return quads([&](int i) { return vmulq_f32(a.v[i], b.v[i]); });
}
inline F32x16 div(F32x16 a, F32x16 b) {
  return quads([&](int i) { return vdivq_f32(a.v[i], b.v[i]); });
}
inline F32x16 fma(F32x16 a, F32x16 b, F32x16 c) {
  return quads([&](int i) { return vfmaq_f32(c.v[i], a.v[i], b.v[i]); });
}
// Not vmaxq and vminq: those return NaN when either side is one.
inline F32x16 max(F32x16 a, F32x16 b) {
  return quads(
      [&](int i) { return vbslq_f32(vcgtq_f32(a.v[i], b.v[i]), a.v[i], b.v[i]); });
}
inline F32x16 min(F32x16 a, F32x16 b) {
  return quads(
      [&](int i) { return vbslq_f32(vcltq_f32(a.v[i], b.v[i]), a.v[i], b.v[i]); });
}
inline F32x16 sqrt(F32x16 a) {
  return quads([&](int i) { return vsqrtq_f32(a.v[i]); });
}
inline F32x16 select_less(F32x16 a, F32x16 b, F32x16 x, F32x16 y) {
  return quads(
      [&](int i) { return vbslq_f32(vcltq_f32(a.v[i], b.v[i]), x.v[i], y.v[i]); });
}
inline F32x16 widen_i8(int8x16_t raw) {
  const int16x8_t lo = vmovl_s8(vget_low_s8(raw)), hi = vmovl_s8(vget_high_s8(raw));
  return {{
      vcvtq_f32_s32(vmovl_s16(vget_low_s16(lo))),
      vcvtq_f32_s32(vmovl_s16(vget_high_s16(lo))),
      vcvtq_f32_s32(vmovl_s16(vget_low_s16(hi))),
      vcvtq_f32_s32(vmovl_s16(vget_high_s16(hi))),
  }};
}
inline F32x16 widen_i8(Bytes16 bytes) { return widen_i8((int8x16_t)bytes); }
inline F32x16 load_i8(const int8_t* p) { return widen_i8(vld1q_s8(p)); }
inline F32x16 load_bf16(const uint16_t* p) {
  return quads(
      [&](int i) { return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p + 4 * i), 16)); });
}
inline void store_bf16(uint16_t* p, F32x16 x) {
  for (int i = 0; i < 4; ++i) {
    const uint32x4_t raw = vreinterpretq_u32_f32(x.v[i]);
    const uint32x4_t odd = vandq_u32(vshrq_n_u32(raw, 16), vdupq_n_u32(1));
    const uint32x4_t up = vaddq_u32(vaddq_u32(raw, vdupq_n_u32(0x7FFF)), odd);
    const uint32x4_t number = vceqq_f32(x.v[i], x.v[i]);
    vst1_u16(
        p + 4 * i,
        vmovn_u32(vbslq_u32(number, vshrq_n_u32(up, 16), vdupq_n_u32(0x7FC0))));
  }
}
inline F32x16 load_f16(const uint16_t* p) {
  return quads(
      [&](int i) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p + 4 * i))); });
}
inline void unpack_e2m1(const uint8_t* bytes, F32x16 scale, F32x16& low, F32x16& high) {
  constexpr int8_t kDoubled[] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
  const int8x16_t doubled = vld1q_s8(kDoubled);
  const uint8x16_t codes = vld1q_u8(bytes);
  low = mul(widen_i8(vqtbl1q_s8(doubled, vandq_u8(codes, vdupq_n_u8(15)))), scale);
  high = mul(widen_i8(vqtbl1q_s8(doubled, vshrq_n_u8(codes, 4))), scale);
}
inline F32x16 lookup(F32x16 table, Bytes16 bytes, int shift) {
  constexpr uint8_t kByteOfFloat[16] = {0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3};
  constexpr uint8_t kFloat[16] = {0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3};
  uint8x16x4_t bytes_of_table;
  for (int i = 0; i < 4; ++i) {
    bytes_of_table.val[i] = vreinterpretq_u8_f32(table.v[i]);
  }
  const uint8x16_t lanes =
      vshlq_u8((uint8x16_t)bytes, vdupq_n_s8(static_cast<int8_t>(-shift)));
  const uint8x16_t first = vandq_u8(vshlq_n_u8(lanes, 2), vdupq_n_u8(60));
  return quads([&](int i) {
    const uint8x16_t four =
        vqtbl1q_u8(first, vaddq_u8(vld1q_u8(kFloat), vdupq_n_u8(4 * i)));
    const uint8x16_t at = vaddq_u8(four, vld1q_u8(kByteOfFloat));
    return vreinterpretq_f32_u8(vqtbl4q_u8(bytes_of_table, at));
  });
}
inline F32x16 lookup_pairs(F32x16 table, uint32_t pairs) {
  uint8_t lanes[16];
  for (int i = 0; i < 16; ++i) {
    lanes[i] = pairs >> 2 * i & 3;
  }
  return lookup(table, (Bytes16)vld1q_u8(lanes), 0);
}
inline F32x16 negate(F32x16 x, uint16_t signs) {
  constexpr uint32_t kFour[] = {1, 2, 4, 8};
  return quads([&](int i) {
    const uint32x4_t set = vtstq_u32(vdupq_n_u32(signs >> 4 * i), vld1q_u32(kFour));
    const uint32x4_t sign = vandq_u32(set, vdupq_n_u32(0x80000000));
    return vreinterpretq_f32_u32(veorq_u32(vreinterpretq_u32_f32(x.v[i]), sign));
  });
}
inline void lookup_256(
    const uint16_t (&table)[256], const uint8_t (&numbers)[32], uint16_t (&out)[32]) {
  for (int i = 0; i < 32; ++i) {
    out[i] = table[numbers[i]];
  }
}
inline I32x16 bits(F32x16 x) {
  I32x16 r;
  for (int i = 0; i < 4; ++i) {
    r.v[i] = vreinterpretq_s32_f32(x.v[i]);
  }
  return r;
}
inline F32x16 from_bits(I32x16 x) {
  return quads([&](int i) { return vreinterpretq_f32_s32(x.v[i]); });
}
inline I32x16 add_int(I32x16 a, I32x16 b) {
  for (int i = 0; i < 4; ++i) {
    a.v[i] = vaddq_s32(a.v[i], b.v[i]);
  }
  return a;
}
inline I32x16 set1_int(int32_t x) {
  I32x16 r;
  for (int i = 0; i < 4; ++i) {
    r.v[i] = vdupq_n_s32(x);
  }
  return r;
}
template <int kBits>
inline I32x16 shift_left(I32x16 a) {
  for (int i = 0; i < 4; ++i) {
    a.v[i] = vshlq_n_s32(a.v[i], kBits);
  }
  return a;
}
inline void transpose(F32x16 (&tile)[16]) {
  F32x16 turned[16];
  for (int i = 0; i < 4; ++i) {
    for (int j = 0; j < 4; ++j) {
      const float32x4_t* rows[4];
      for (int c = 0; c < 4; ++c) {
        rows[c] = &tile[4 * i + c].v[j];
      }
      const float32x4x2_t top = vzipq_f32(*rows[0], *rows[2]);
      const float32x4x2_t bottom = vzipq_f32(*rows[1], *rows[3]);
      const float32x4x2_t left = vzipq_f32(top.val[0], bottom.val[0]);
      const float32x4x2_t right = vzipq_f32(top.val[1], bottom.val[1]);
      turned[4 * j].v[i] = left.val[0];
      turned[4 * j + 1].v[i] = left.val[1];
      turned[4 * j + 2].v[i] = right.val[0];
      turned[4 * j + 3].v[i] = right.val[1];
    }
  }
  for (int i = 0; i < 16; ++i) {
    tile[i] = turned[i];
  }
}
inline float reduce_add(F32x16 x) {
  const float32x4_t four =
      vaddq_f32(vaddq_f32(x.v[0], x.v[2]), vaddq_f32(x.v[1], x.v[3]));
  const float32x2_t two = vadd_f32(vget_low_f32(four), vget_high_f32(four));
  return vget_lane_f32(two, 0) + vget_lane_f32(two, 1);
}

}  // namespace simd
}  // namespace mlx_dsv4::DSV4_ISA
