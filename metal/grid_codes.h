// What lies in a block of the IQ formats: codes are entries of grids, signs apart, eight at a time;
// see block_codes.h for what the functions mean.
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
  const Codes8 twos = both(shifted(numbers, 1), all<Codes8>(1));
  return plus(plus(times(numbers, 17), twos), all<Codes8>(8));
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
constexpr Codes8 sign_bytes(uint32_t bits) { return times(spread_eight(bits), 255); }
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

// Scales from scale_number(block, j).
template <int kFormat>
struct NumberedScales {
  template <typename Bytes>
  static ScaleCodes scales(Bytes block, int at) {
    using Format = BlockCodes<kFormat>;
#ifdef __METAL_VERSION__
    return {uint(Format::scale_number(block, at))};
#else
    ScaleCodes scales{};
#pragma GCC unroll 8
    for (int j = 0; j < 8; ++j) {
      scales.bytes |= uint64_t{uint8_t(Format::scale_number(block, at + j))} << 8 * j;
    }
    return scales;
#endif
  }
};

// Codes from eight at a time, entries() of a grid, and odd numbers of steps as scales: d first, one
// scale for each part.
template <int kFormat>
struct GridCodes : NumberedScales<kFormat> {
  DSV4_MEMBER bool kFewCodes = false;
  DSV4_MEMBER bool kGrid = true;
  DSV4_MEMBER bool kHasSigns = false;
  DSV4_MEMBER bool kHasOffset = false;
  DSV4_MEMBER int kScales = 8;
  template <typename Bytes>
  static float d(Bytes block) {
    return load_scale(block);
  }
  template <typename Codes, typename Bytes>
  static Codes codes(Bytes block, int part, int at) {
    return BlockCodes<kFormat>::entries(block, part, at);
  }
};

// As GridCodes, with signs() apart.
template <int kFormat>
struct SignedGridCodes : GridCodes<kFormat> {
  DSV4_MEMBER bool kHasSigns = true;
  template <typename Codes, typename Bytes>
  static Codes codes(Bytes block, int part, int at) {
    using Format = BlockCodes<kFormat>;
    return negated(Format::entries(block, part, at), Format::signs(block, part, at));
  }
};

// Number j of a row of numbers of four bits, two in a byte.
template <typename Bytes>
inline int half_byte(Bytes bytes, int j) {
  return bytes[j / 2] >> j % 2 * 4 & 15;
}

// d, then for each part four entries' numbers, four times seven signs and a scale.
template <>
struct BlockCodes<kFormatIQ2_XXS> : SignedGridCodes<kFormatIQ2_XXS> {
  DSV4_MEMBER float kStep = 0.125f;
  template <typename Bytes>
  static Codes8 entries(Bytes block, int part, int at) {
    return iq2_xxs_entry(block[2 + 8 * part + at / 8]);
  }
  template <typename Bytes>
  static Codes8 signs(Bytes block, int part, int at) {
    return seven_signs(load_u32(block + 6 + 8 * part) >> 7 * (at / 8) & 127u);
  }
  template <typename Bytes>
  static int scale_number(Bytes block, int j) {
    return 2 * (block[9 + 8 * j] >> 4) + 1;
  }
};

// d, 32 numbers of entries below seven signs, 16 scales.
template <>
struct BlockCodes<kFormatIQ2_XS> : SignedGridCodes<kFormatIQ2_XS> {
  DSV4_MEMBER int kScales = 16;
  DSV4_MEMBER float kStep = 0.125f;
  template <typename Bytes>
  static Codes8 entries(Bytes block, int part, int at) {
    return iq2_xs_entry(load_u16(block + 2 + 8 * part + at / 4) & 511u);
  }
  template <typename Bytes>
  static Codes8 signs(Bytes block, int part, int at) {
    return seven_signs(block[3 + 8 * part + at / 4] >> 1);
  }
  template <typename Bytes>
  static int scale_number(Bytes block, int j) {
    return 2 * half_byte(block + 66, j) + 1;
  }
};

// d, low bytes of 32 numbers of entries, 32 times eight signs, the numbers' high bits, 16 scales.
template <>
struct BlockCodes<kFormatIQ2_S> : SignedGridCodes<kFormatIQ2_S> {
  DSV4_MEMBER int kScales = 16;
  DSV4_MEMBER float kStep = 0.125f;
  template <typename Bytes>
  static Codes8 entries(Bytes block, int part, int at) {
    return iq2_s_entry(
        block[2 + 4 * part + at / 8] | uint32_t(block[66 + part] >> at / 4 & 3) << 8);
  }
  template <typename Bytes>
  static Codes8 signs(Bytes block, int part, int at) {
    return eight_signs(block[34 + 4 * part + at / 8]);
  }
  template <typename Bytes>
  static int scale_number(Bytes block, int j) {
    return 2 * half_byte(block + 74, j) + 1;
  }
};

// d, 64 numbers of entries, for each part four times seven signs and a scale.
template <>
struct BlockCodes<kFormatIQ3_XXS> : SignedGridCodes<kFormatIQ3_XXS> {
  DSV4_MEMBER float kStep = 0.25f;
  template <typename Bytes>
  static Codes8 entries(Bytes block, int part, int at) {
    const Bytes entries = block + 2 + 8 * part + at / 4;
    return codes8(iq3_xxs_entry(entries[0]), iq3_xxs_entry(entries[1]));
  }
  template <typename Bytes>
  static Codes8 signs(Bytes block, int part, int at) {
    return seven_signs(load_u32(block + 66 + 4 * part) >> 7 * (at / 8) & 127u);
  }
  template <typename Bytes>
  static int scale_number(Bytes block, int j) {
    return 2 * (block[69 + 4 * j] >> 4) + 1;
  }
};

// d, low bytes of 64 numbers of entries, their high bits, 32 times eight signs, 8 scales.
template <>
struct BlockCodes<kFormatIQ3_S> : SignedGridCodes<kFormatIQ3_S> {
  DSV4_MEMBER float kStep = 1;
  template <typename Bytes>
  static Codes8 entries(Bytes block, int part, int at) {
    const Bytes entries = block + 2 + 8 * part + at / 4;
    const uint32_t high = uint32_t(block[66 + part]) >> at / 4;
    return codes8(
        iq3_s_entry(entries[0] | (high & 1u) << 8),
        iq3_s_entry(entries[1] | (high & 2u) << 7));
  }
  template <typename Bytes>
  static Codes8 signs(Bytes block, int part, int at) {
    return eight_signs(block[74 + 4 * part + at / 8]);
  }
  template <typename Bytes>
  static int scale_number(Bytes block, int j) {
    return 2 * half_byte(block + 106, j) + 1;
  }
};

// Codes of 8 times entries of -1, 0 and 1 and a delta of an eighth.
inline Codes8 iq1_codes(uint32_t number, bool delta_is_negative) {
  return less(iq1_entry(number), delta_is_negative ? 9 : 7);
}

// d, low bytes of 32 numbers of entries, for each part their high bits, a scale, a delta's sign.
template <>
struct BlockCodes<kFormatIQ1_S> : GridCodes<kFormatIQ1_S> {
  DSV4_MEMBER float kStep = 0.125f;
  template <typename Bytes>
  static Codes8 entries(Bytes block, int part, int at) {
    const uint32_t bits = load_u16(block + 34 + 2 * part);
    const uint32_t high = bits >> 3 * (at / 8) & 7u;
    return iq1_codes(block[2 + 4 * part + at / 8] | high << 8, (bits & 0x8000u) != 0);
  }
  template <typename Bytes>
  static int scale_number(Bytes block, int j) {
    return 2 * (block[35 + 2 * j] >> 4 & 7) + 1;
  }
};

// Low bytes of 32 numbers of entries, their high bits with deltas' signs, 16 scales of three bits
// in four words whose high halves make d.
template <>
struct BlockCodes<kFormatIQ1_M> : GridCodes<kFormatIQ1_M> {
  DSV4_MEMBER int kScales = 16;
  DSV4_MEMBER float kStep = 0.125f;
  template <typename Bytes>
  static Codes8 entries(Bytes block, int part, int at) {
    const uint32_t high = half_byte(block + 32 + 2 * part, at / 8);
    return iq1_codes(block[4 * part + at / 8] | (high & 7u) << 8, (high & 8u) != 0);
  }
  template <typename Bytes>
  static float d(Bytes block) {
    uint32_t bits = 0;
    for (int i = 0; i < 4; ++i) {
      bits |= load_u16(block + 48 + 2 * i) >> 12 << 4 * i;
    }
    return half_value(bits);
  }
  template <typename Bytes>
  static int scale_number(Bytes block, int j) {
    return 2 * int(load_u16(block + 48 + j / 4 * 2) >> j % 4 * 3 & 7u) + 1;
  }
};

// What a half byte stands for in the IQ4 formats.
inline uint32_t iq4_value(uint32_t bits) { return kIQ4Values[bits & 15u]; }
inline uint32_t iq4_values(uint32_t halves) {
  return iq4_value(halves) | iq4_value(halves >> 8) << 8 | iq4_value(halves >> 16) << 16 |
         iq4_value(halves >> 24) << 24;
}
#ifdef __METAL_VERSION__
inline Codes8 iq4_numbers(Codes8 bits) {
  return {iq4_values(bits.low), iq4_values(bits.high)};
}
#else
inline Codes16 iq4_numbers(Codes16 bits) {
  uint32_t words[4];
  std::memcpy(words, &bits, sizeof(words));
  for (uint32_t& word : words) {
    word = iq4_values(word);
  }
  return load_codes<Codes16>(reinterpret_cast<const uint8_t*>(words));
}
#endif

template <>
struct BlockCodes<kFormatIQ4_NL> : OneScale, Nibbles<kFormatIQ4_NL> {
  template <typename Codes>
  static Codes numbers(Codes bits) {
    return iq4_numbers(bits);
  }
  template <typename Codes, typename Bytes>
  static Codes stored(Bytes block, int, int at) {
    return nibbles<Codes>(block + 2, at);
  }
};

// d, 8 scales of 6 bits (the high ones first), 16 bytes for each part.
template <>
struct BlockCodes<kFormatIQ4_XS> : Nibbles<kFormatIQ4_XS>, NumberedScales<kFormatIQ4_XS> {
  DSV4_MEMBER bool kHasOffset = false;
  DSV4_MEMBER int kScales = 8;
  DSV4_MEMBER float kStep = 1;
  template <typename Codes>
  static Codes numbers(Codes bits) {
    return iq4_numbers(bits);
  }
  template <typename Codes, typename Bytes>
  static Codes stored(Bytes block, int part, int at) {
    return nibbles<Codes>(block + 8 + 16 * part, at);
  }
  template <typename Bytes>
  static float d(Bytes block) {
    return load_scale(block);
  }
  template <typename Bytes>
  static int scale_number(Bytes block, int j) {
    const int high = int(load_u16(block + 2) >> 2 * j & 3u);
    return (half_byte(block + 4, j) | high << 4) - 32;
  }
};

DSV4_END_KERNELS
