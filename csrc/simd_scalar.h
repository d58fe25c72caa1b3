// Sixteen lanes without vector instructions; also the definition of every lane operation.
#pragma once

#include "half.h"

namespace mlx_dsv4::DSV4_ISA {

struct F32x16 {
  float lane[16];
};
struct I32x16 {
  int32_t lane[16];
};

namespace simd {

// One register's worth of lanes, for loops that keep many sums in registers.
inline constexpr int kRegisters = 16, kPartLanes = 1;
using Part = float;
inline Part zero_part() { return 0; }
inline Part load_part(const float* p) { return *p; }
inline void store_part(float* p, Part x) { *p = x; }
inline Part fma_part(Part a, Part b, Part c) { return __builtin_fmaf(a, b, c); }

template <typename Fn>
inline F32x16 each(Fn fn) {
  F32x16 r;
  for (int i = 0; i < 16; ++i) {
    r.lane[i] = fn(i);
  }
  return r;
}

inline F32x16 set1(float x) {
  return each([&](int) { return x; });
}
// Rows in a file begin at any byte: what is loaded from memory goes through memcpy.
inline F32x16 load(const float* p) {
  F32x16 r;
  std::memcpy(r.lane, p, sizeof(r));
  return r;
}
inline void store(float* p, F32x16 x) { std::memcpy(p, x.lane, sizeof(x)); }
inline F32x16 add(F32x16 a, F32x16 b) {
  return each([&](int i) { return a.lane[i] + b.lane[i]; });
}
inline F32x16 sub(F32x16 a, F32x16 b) {
  return each([&](int i) { return a.lane[i] - b.lane[i]; });
}
inline F32x16 mul(F32x16 a, F32x16 b) {
  return each([&](int i) { return a.lane[i] * b.lane[i]; });
}
inline F32x16 div(F32x16 a, F32x16 b) {
  return each([&](int i) { return a.lane[i] / b.lane[i]; });
}
// a * b + c with one rounding.
inline F32x16 fma(F32x16 a, F32x16 b, F32x16 c) {
  return each([&](int i) { return __builtin_fmaf(a.lane[i], b.lane[i], c.lane[i]); });
}
// a > b ? a : b, so a NaN in `b` stays and a NaN in `a` gives b.
inline F32x16 max(F32x16 a, F32x16 b) {
  return each([&](int i) { return a.lane[i] > b.lane[i] ? a.lane[i] : b.lane[i]; });
}
// a < b ? a : b, so a NaN in `b` stays and a NaN in `a` gives b.
inline F32x16 min(F32x16 a, F32x16 b) {
  return each([&](int i) { return a.lane[i] < b.lane[i] ? a.lane[i] : b.lane[i]; });
}
inline F32x16 sqrt(F32x16 a) {
  return each([&](int i) { return __builtin_sqrtf(a.lane[i]); });
}
// a < b ? x : y, lane by lane; false for NaN.
inline F32x16 select_less(F32x16 a, F32x16 b, F32x16 x, F32x16 y) {
  return each([&](int i) { return a.lane[i] < b.lane[i] ? x.lane[i] : y.lane[i]; });
}
inline F32x16 load_i8(const int8_t* p) {
  return each([&](int i) { return static_cast<float>(p[i]); });
}
// Sixteen int8.
inline F32x16 widen_i8(Bytes16 bytes) {
  int8_t numbers[16];
  std::memcpy(numbers, &bytes, sizeof(numbers));
  return load_i8(numbers);
}
inline F32x16 load_bf16(const uint16_t* p) {
  uint16_t halves[16];
  std::memcpy(halves, p, sizeof(halves));
  return each([&](int i) {
    const uint32_t bits = static_cast<uint32_t>(halves[i]) << 16;
    float x;
    std::memcpy(&x, &bits, 4);
    return x;
  });
}
// Nearest bfloat16, ties to even; NaN becomes 0x7FC0.
inline void store_bf16(uint16_t* p, F32x16 x) {
  for (int i = 0; i < 16; ++i) {
    uint32_t bits;
    std::memcpy(&bits, &x.lane[i], 4);
    p[i] = x.lane[i] != x.lane[i] ? 0x7FC0 : (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16;
  }
}
inline F32x16 load_f16(const uint16_t* p) {
  uint16_t halves[16];
  std::memcpy(halves, p, sizeof(halves));
  return each([&](int i) { return f16_to_f32(halves[i]); });
}
// Lane i: twice the E2M1 value of the low and of the high four bits of bytes[i], times scale.
inline void unpack_e2m1(const uint8_t* bytes, F32x16 scale, F32x16& low, F32x16& high) {
  constexpr float kDoubled[] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
  low = each([&](int i) { return kDoubled[bytes[i] & 15] * scale.lane[i]; });
  high = each([&](int i) { return kDoubled[bytes[i] >> 4] * scale.lane[i]; });
}
// Lane i: the lane of a table that the four bits of byte i from bit `shift` on name.
inline F32x16 lookup(F32x16 table, Bytes16 bytes, int shift) {
  uint8_t lanes[16];
  std::memcpy(lanes, &bytes, sizeof(lanes));
  return each([&](int i) { return table.lane[lanes[i] >> shift & 15]; });
}
// Lane i: lane (pairs >> 2 i & 3) of a table that repeats after four lanes.
inline F32x16 lookup_pairs(F32x16 table, uint32_t pairs) {
  return each([&](int i) { return table.lane[pairs >> 2 * i & 3]; });
}
// Lane i negated where bit i of the signs is set.
inline F32x16 negate(F32x16 x, uint16_t signs) {
  return each([&](int i) { return signs >> i & 1 ? -x.lane[i] : x.lane[i]; });
}
// out[i] = table[numbers[i]].
inline void lookup_256(
    const uint16_t (&table)[256], const uint8_t (&numbers)[32], uint16_t (&out)[32]) {
  for (int i = 0; i < 32; ++i) {
    out[i] = table[numbers[i]];
  }
}
inline I32x16 bits(F32x16 x) {
  I32x16 r;
  std::memcpy(r.lane, x.lane, sizeof(r));
  return r;
}
inline F32x16 from_bits(I32x16 x) {
  F32x16 r;
  std::memcpy(r.lane, x.lane, sizeof(r));
  return r;
}
inline I32x16 add_int(I32x16 a, I32x16 b) {
  for (int i = 0; i < 16; ++i) {
    a.lane[i] = static_cast<int32_t>(
        static_cast<uint32_t>(a.lane[i]) + static_cast<uint32_t>(b.lane[i]));
  }
  return a;
}
inline I32x16 set1_int(int32_t x) {
  I32x16 r;
  for (int i = 0; i < 16; ++i) {
    r.lane[i] = x;
  }
  return r;
}
template <int kBits>
inline I32x16 shift_left(I32x16 a) {
  for (int i = 0; i < 16; ++i) {
    a.lane[i] = static_cast<int32_t>(static_cast<uint32_t>(a.lane[i]) << kBits);
  }
  return a;
}
// Lane j of tile[i] and lane i of tile[j] change places.
inline void transpose(F32x16 (&tile)[16]) {
  for (int i = 0; i < 16; ++i) {
    for (int j = 0; j < i; ++j) {
      const float x = tile[i].lane[j];
      tile[i].lane[j] = tile[j].lane[i];
      tile[j].lane[i] = x;
    }
  }
}
// Lane i + lane i + 8, then + 4, + 2, + 1: the one order in which lanes are summed.
inline float reduce_add(F32x16 x) {
  for (int half = 8; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) {
      x.lane[i] += x.lane[i + half];
    }
  }
  return x.lane[0];
}

}  // namespace simd
}  // namespace mlx_dsv4::DSV4_ISA
