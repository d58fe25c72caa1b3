// What lies in a block of the IQ formats: codes are entries of grids, signs apart; see
// block_codes.h for what the functions mean.
#pragma once

#include "block_codes.h"
#include "codebooks.h"

DSV4_BEGIN_KERNELS

// Four numbers of two bits, one in each byte.
inline uint32_t four_pairs(uint32_t bits) {
  const uint32_t halves = (bits | bits << 12) & 0x000f000fu;
  return (halves | halves << 6) & 0x03030303u;
}
inline Codes8 eight_pairs(uint32_t entry) {
  return {four_pairs(entry & 255u), four_pairs(entry >> 8)};
}

// Four numbers of three bits, one in each byte.
inline uint32_t four_triples(uint32_t entry) {
  const uint32_t halves = (entry | entry << 10) & 0x003f003fu;
  return (halves | halves << 5) & 0x07070707u;
}

// 0, 1, 2 stand for 8, 25, 43.
inline Codes8 iq2_values(uint32_t entry) {
  const Codes8 numbers = eight_pairs(entry);
  return plus(plus(times(numbers, 17), bits_of(numbers, 1, 1)), Codes8{four(8), four(8)});
}

// 0 to 7 stand for 4, 12, ..., 52 and 62.
inline uint32_t iq3_xxs_values(uint32_t entry) {
  const uint32_t numbers = four_triples(entry);
  const uint32_t sevens = numbers & numbers >> 1 & numbers >> 2 & four(1);
  return numbers * 8 + sevens * 2 + four(4);
}

// 0 to 7 stand for 1, 3, ..., 15.
inline uint32_t iq3_s_values(uint32_t entry) { return four_triples(entry) * 2 + four(1); }

// Seven signs; the eighth makes their number even.
inline uint32_t even_signs(uint32_t bits) {
  uint32_t parity = bits ^ bits >> 4;
  parity ^= parity >> 2;
  parity ^= parity >> 1;
  return bits | (parity & 1u) << 7;
}

// Scales of four bits, in quarters or halves from 0.5 d on.
template <typename Bytes>
inline float half_steps(Bytes block, uint32_t bits, float step) {
  return load_scale(block) * (0.5f + float(bits)) * step;
}

// d, then for each part four entries' numbers, four times seven signs and a scale.
template <>
struct BlockCodes<kFormatIQ2_XXS> {
  static constexpr bool kHasOffset = false;
  template <typename Bytes>
  static Codes8 codes(Bytes block, int part, int group) {
    const uint32_t signs = load_u32(block + 6 + 8 * part) >> 7 * group & 127u;
    const Codes8 values = iq2_values(kGridIQ2_XXS[block[2 + 8 * part + group]]);
    return negated(values, even_signs(signs));
  }
  template <typename Bytes>
  static float scale(Bytes block, int part, int) {
    return half_steps(block, load_u32(block + 6 + 8 * part) >> 28, 0.25f);
  }
};

// A scale of four bits for every 16 values, `at` the first of them.
template <typename Bytes>
inline float iq2_scale(Bytes block, int at, int part, int side) {
  return half_steps(block, block[at + part] >> 4 * side & 15, 0.25f);
}

// d, 32 numbers of entries below seven signs, 16 scales.
template <>
struct BlockCodes<kFormatIQ2_XS> {
  static constexpr bool kHasOffset = false;
  template <typename Bytes>
  static Codes8 codes(Bytes block, int part, int group) {
    const uint32_t entry = load_u16(block + 2 + 8 * part + 2 * group);
    return negated(iq2_values(kGridIQ2_XS[entry & 511u]), even_signs(entry >> 9));
  }
  template <typename Bytes>
  static float scale(Bytes block, int part, int side) {
    return iq2_scale(block, 66, part, side);
  }
};

// d, low bytes of 32 numbers of entries, 32 times eight signs, the numbers' high bits, 16 scales.
template <>
struct BlockCodes<kFormatIQ2_S> {
  static constexpr bool kHasOffset = false;
  template <typename Bytes>
  static Codes8 codes(Bytes block, int part, int group) {
    const int at = 4 * part + group;
    const uint32_t high = block[66 + part] >> 2 * group & 3;
    return negated(iq2_values(kGridIQ2_S[block[2 + at] | high << 8]), block[34 + at]);
  }
  template <typename Bytes>
  static float scale(Bytes block, int part, int side) {
    return iq2_scale(block, 74, part, side);
  }
};

// d, 64 numbers of entries, for each part four times seven signs and a scale.
template <>
struct BlockCodes<kFormatIQ3_XXS> {
  static constexpr bool kHasOffset = false;
  template <typename Bytes>
  static Codes8 codes(Bytes block, int part, int group) {
    const Bytes entries = block + 2 + 8 * part + 2 * group;
    const uint32_t signs = load_u32(block + 66 + 4 * part) >> 7 * group & 127u;
    const Codes8 values = {
        iq3_xxs_values(kGridIQ3_XXS[entries[0]]),
        iq3_xxs_values(kGridIQ3_XXS[entries[1]])};
    return negated(values, even_signs(signs));
  }
  template <typename Bytes>
  static float scale(Bytes block, int part, int) {
    return half_steps(block, load_u32(block + 66 + 4 * part) >> 28, 0.5f);
  }
};

// d, low bytes of 64 numbers of entries, their high bits, 32 times eight signs, 8 scales.
template <>
struct BlockCodes<kFormatIQ3_S> {
  static constexpr bool kHasOffset = false;
  template <typename Bytes>
  static Codes8 codes(Bytes block, int part, int group) {
    const Bytes entries = block + 2 + 8 * part + 2 * group;
    const uint32_t high = uint32_t(block[66 + part]) >> 2 * group;
    const Codes8 values = {
        iq3_s_values(kGridIQ3_S[entries[0] | (high & 1u) << 8]),
        iq3_s_values(kGridIQ3_S[entries[1] | (high & 2u) << 7])};
    return negated(values, block[74 + 4 * part + group]);
  }
  template <typename Bytes>
  static float scale(Bytes block, int part, int) {
    const int bits = block[106 + part / 2] >> part % 2 * 4 & 15;
    return load_scale(block) * float(1 + 2 * bits);
  }
};

// Codes are 8 (entry - 1) + 1, or - 1: entries of -1, 0 and 1, and a delta of an eighth.
inline Codes8 iq1_codes(uint32_t entry, bool delta_is_negative) {
  const Codes8 eighths = times(eight_pairs(entry), 8);
  return less(eighths, delta_is_negative ? 9 : 7);
}

// d, low bytes of 32 numbers of entries, for each part their high bits, a scale, a delta's sign.
template <>
struct BlockCodes<kFormatIQ1_S> {
  static constexpr bool kHasOffset = false;
  template <typename Bytes>
  static Codes8 codes(Bytes block, int part, int group) {
    const uint32_t bits = load_u16(block + 34 + 2 * part);
    const uint32_t high = bits >> 3 * group & 7u;
    return iq1_codes(
        kGridIQ1[block[2 + 4 * part + group] | high << 8], (bits & 0x8000u) != 0);
  }
  template <typename Bytes>
  static float scale(Bytes block, int part, int) {
    const uint32_t bits = load_u16(block + 34 + 2 * part) >> 12 & 7u;
    return load_scale(block) * float(2 * bits + 1) * 0.125f;
  }
};

// Low bytes of 32 numbers of entries, their high bits with deltas' signs, 16 scales of three bits
// in four words whose high halves make d.
template <>
struct BlockCodes<kFormatIQ1_M> {
  static constexpr bool kHasOffset = false;
  template <typename Bytes>
  static Codes8 codes(Bytes block, int part, int group) {
    const uint32_t high = block[32 + 2 * part + group / 2] >> group % 2 * 4;
    return iq1_codes(
        kGridIQ1[block[4 * part + group] | (high & 7u) << 8], (high & 8u) != 0);
  }
  template <typename Bytes>
  static float scale(Bytes block, int part, int side) {
    uint32_t d = 0;
    for (int i = 0; i < 4; ++i) {
      d |= load_u16(block + 48 + 2 * i) >> 12 << 4 * i;
    }
    const int j = 2 * part + side;
    const uint32_t bits = load_u16(block + 48 + j / 4 * 2) >> j % 4 * 3 & 7u;
    return half_value(d) * float(2 * bits + 1) * 0.125f;
  }
};

// What a half byte stands for in the IQ4 formats.
inline uint32_t iq4_value(uint32_t bits) { return kIQ4Values[bits & 15u]; }
inline uint32_t iq4_values(uint32_t halves) {
  return iq4_value(halves) | iq4_value(halves >> 8) << 8 | iq4_value(halves >> 16) << 16 |
         iq4_value(halves >> 24) << 24;
}
template <typename Bytes>
inline Codes8 iq4_codes(Bytes bytes, int group) {
  const Codes8 halves = nibbles(bytes, group);
  return {iq4_values(halves.low), iq4_values(halves.high)};
}

template <>
struct BlockCodes<kFormatIQ4_NL> : OneScale {
  template <typename Bytes>
  static Codes8 codes(Bytes block, int, int group) {
    return iq4_codes(block + 2, group);
  }
};

// d, 8 scales of 6 bits (the high ones first), 16 bytes for each part.
template <>
struct BlockCodes<kFormatIQ4_XS> {
  static constexpr bool kHasOffset = false;
  template <typename Bytes>
  static Codes8 codes(Bytes block, int part, int group) {
    return iq4_codes(block + 8 + 16 * part, group);
  }
  template <typename Bytes>
  static float scale(Bytes block, int part, int) {
    const int high = int(load_u16(block + 2) >> 2 * part & 3u);
    const int low = block[4 + part / 2] >> part % 2 * 4 & 15;
    return load_scale(block) * float((low | high << 4) - 32);
  }
};

DSV4_END_KERNELS
