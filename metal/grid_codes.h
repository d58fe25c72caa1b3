// What lies in a block of the IQ formats: codes are entries of grids, signs apart; see
// block_codes.h for what the functions mean.
#pragma once

#include "block_codes.h"
#include "codebooks.h"

DSV4_BEGIN_KERNELS

// Four numbers of two bits, one in each byte.
constexpr uint32_t four_pairs(uint32_t bits) {
  const uint32_t halves = (bits | bits << 12) & 0x000f000fu;
  return (halves | halves << 6) & 0x03030303u;
}
constexpr Codes8 eight_pairs(uint32_t entry) {
  return codes8(four_pairs(entry & 255u), four_pairs(entry >> 8));
}

// Four numbers of three bits, one in each byte.
constexpr uint32_t four_triples(uint32_t entry) {
  const uint32_t halves = (entry | entry << 10) & 0x003f003fu;
  return (halves | halves << 5) & 0x07070707u;
}

// 0, 1, 2 stand for 8, 25, 43.
constexpr Codes8 iq2_values(uint32_t entry) {
  const Codes8 numbers = eight_pairs(entry);
  const Codes8 twos = both(shifted(numbers, 1), eight(1));
  return plus(plus(times(numbers, 17), twos), eight(8));
}

// 0 to 7 stand for 4, 12, ..., 52 and 62.
constexpr uint32_t iq3_xxs_values(uint32_t entry) {
  const uint32_t numbers = four_triples(entry);
  const uint32_t sevens = numbers & numbers >> 1 & numbers >> 2 & four(1);
  return numbers * 8 + sevens * 2 + four(4);
}

// 0 to 7 stand for 1, 3, ..., 15.
constexpr uint32_t iq3_s_values(uint32_t entry) {
  return four_triples(entry) * 2 + four(1);
}

// 0, 1, 2 stand for 0, 8, 16: eight times -1, 0, 1, and 8 more.
constexpr Codes8 iq1_values(uint32_t entry) { return times(eight_pairs(entry), 8); }

// Seven signs; the eighth makes their number even.
constexpr uint32_t even_signs(uint32_t bits) {
  uint32_t parity = bits ^ bits >> 4;
  parity ^= parity >> 2;
  parity ^= parity >> 1;
  return bits | (parity & 1u) << 7;
}

// All ones where a sign is negative.
constexpr Codes8 sign_bytes(uint32_t bits) { return times(spread(bits), 255); }
constexpr Codes8 even_sign_bytes(uint32_t bits) { return sign_bytes(even_signs(bits)); }

// name(n) is what `values` makes of entry n; the host has a table of that.
#ifdef __METAL_VERSION__
#define DSV4_GRID(name, type, values, grid) \
  inline type name(uint32_t n) { return values(grid[n]); }
#define DSV4_SIGNS(name, values, n_entries) \
  inline Codes8 name(uint32_t n) { return values(n); }
#else
template <typename Value, int kEntries>
struct Expanded {
  Value of[kEntries];
};
template <typename Value, int kEntries, typename Values>
constexpr Expanded<Value, kEntries> expand(Values values) {
  Expanded<Value, kEntries> expanded{};
  for (int n = 0; n < kEntries; ++n) {
    expanded.of[n] = values(n);
  }
  return expanded;
}
#define DSV4_GRID(name, type, values, grid)                                              \
  constexpr auto name##_table =                                                          \
      expand<type, sizeof(grid) / sizeof(*grid)>([](int n) { return values(grid[n]); }); \
  inline type name(uint32_t n) { return name##_table.of[n]; }
#define DSV4_SIGNS(name, values, n_entries)                       \
  constexpr auto name##_table =                                   \
      expand<Codes8, n_entries>([](int n) { return values(n); }); \
  inline Codes8 name(uint32_t n) { return name##_table.of[n]; }
#endif
DSV4_GRID(iq2_xxs_entry, Codes8, iq2_values, kGridIQ2_XXS)
DSV4_GRID(iq2_xs_entry, Codes8, iq2_values, kGridIQ2_XS)
DSV4_GRID(iq2_s_entry, Codes8, iq2_values, kGridIQ2_S)
DSV4_GRID(iq3_xxs_entry, uint32_t, iq3_xxs_values, kGridIQ3_XXS)
DSV4_GRID(iq3_s_entry, uint32_t, iq3_s_values, kGridIQ3_S)
DSV4_GRID(iq1_entry, Codes8, iq1_values, kGridIQ1)
DSV4_SIGNS(eight_signs, sign_bytes, 256)
DSV4_SIGNS(seven_signs, even_sign_bytes, 128)

// Bytes of 1..127, negated where `signs` has ones.
inline Codes8 negated(Codes8 a, Codes8 signs) {
  return plus(either(a, signs), both(signs, eight(1)));
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
    return negated(iq2_xxs_entry(block[2 + 8 * part + group]), seven_signs(signs));
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
    return negated(iq2_xs_entry(entry & 511u), seven_signs(entry >> 9));
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
    return negated(iq2_s_entry(block[2 + at] | high << 8), eight_signs(block[34 + at]));
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
    const Codes8 values = codes8(iq3_xxs_entry(entries[0]), iq3_xxs_entry(entries[1]));
    return negated(values, seven_signs(signs));
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
    const Codes8 values = codes8(
        iq3_s_entry(entries[0] | (high & 1u) << 8),
        iq3_s_entry(entries[1] | (high & 2u) << 7));
    return negated(values, eight_signs(block[74 + 4 * part + group]));
  }
  template <typename Bytes>
  static float scale(Bytes block, int part, int) {
    const int bits = block[106 + part / 2] >> part % 2 * 4 & 15;
    return load_scale(block) * float(1 + 2 * bits);
  }
};

// Codes of 8 times entries of -1, 0 and 1 and a delta of an eighth.
inline Codes8 iq1_codes(uint32_t number, bool delta_is_negative) {
  return less(iq1_entry(number), delta_is_negative ? 9 : 7);
}

// d, low bytes of 32 numbers of entries, for each part their high bits, a scale, a delta's sign.
template <>
struct BlockCodes<kFormatIQ1_S> {
  static constexpr bool kHasOffset = false;
  template <typename Bytes>
  static Codes8 codes(Bytes block, int part, int group) {
    const uint32_t bits = load_u16(block + 34 + 2 * part);
    const uint32_t high = bits >> 3 * group & 7u;
    return iq1_codes(block[2 + 4 * part + group] | high << 8, (bits & 0x8000u) != 0);
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
    return iq1_codes(block[4 * part + group] | (high & 7u) << 8, (high & 8u) != 0);
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
// 16 bytes as in nibbles().
template <typename Bytes>
inline Codes8 iq4_codes(Bytes bytes, int group) {
  const int at = 8 * (group & 1), right = group < 2 ? 0 : 4;
  return codes8(
      iq4_values(load_u32(bytes + at) >> right),
      iq4_values(load_u32(bytes + at + 4) >> right));
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
