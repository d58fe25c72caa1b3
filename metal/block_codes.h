// What lies in a block: one struct per format, read by the CPU kernels and the GPU's alike.
//
// A piece of 32 values, number `part` of its block, is integers and their scales:
//
//   value i = d * scale j * kStep * code i + m * offset j
//
// rounded after each product (kStep is a power of two) and after the sum, as gguf.quants computes
// them. j counts the block's kScales scales: one for the block, one for each part or two. Without
// an offset nothing is added, so that -0 stays -0. codes() gives the codes from value `at` of the
// part on, as many as Codes holds; scales() and offsets() the integers from j = `at` on, as many as
// ScaleCodes holds. Source: ggml-common.h; its f16 scales are called d and m here.
#pragma once

#include "block_bytes.h"

DSV4_BEGIN_KERNELS

template <int kFormat>
struct BlockCodes;

// Which of the block's scales the values of one side of a part (first or last 16) have.
template <int kFormat>
inline int scale_index(int part, int side) {
  constexpr int kParts = block_elements(kFormat) / kBlockValues;
  constexpr int kScales = BlockCodes<kFormat>::kScales;
  return kScales == 1 ? 0 : kScales == kParts ? part : 2 * part + side;
}

// One d for the block.
struct OneScale {
  DSV4_MEMBER bool kHasOffset = false;
  DSV4_MEMBER int kScales = 1;
  DSV4_MEMBER float kStep = 1;
  template <typename Bytes>
  static float d(Bytes block) {
    return load_scale(block);
  }
  template <typename Bytes>
  static ScaleCodes scales(Bytes, int) {
    return all<ScaleCodes>(1);
  }
};

// d, then m, which is the offset.
struct OneScaleAndOffset : OneScale {
  DSV4_MEMBER bool kHasOffset = true;
  template <typename Bytes>
  static float m(Bytes block) {
    return load_scale(block + 2);
  }
  template <typename Bytes>
  static ScaleCodes offsets(Bytes, int) {
    return all<ScaleCodes>(1);
  }
};

// Codes as they are made of several fields.
struct ManyCodes {
  DSV4_MEMBER bool kFewCodes = false;
  DSV4_MEMBER bool kGrid = false;
};

// At most 16 codes: numbers(bits) for the bits of kMask in each byte of stored(), from bit shift() on.
template <int kFormat>
struct FewCodes {
  DSV4_MEMBER bool kFewCodes = true;
  DSV4_MEMBER bool kGrid = false;
  DSV4_MEMBER uint32_t kMask = 15;
  template <typename Codes>
  static Codes numbers(Codes bits) {
    return bits;
  }
  template <typename Codes, typename Bytes>
  static Codes codes(Bytes block, int part, int at) {
    using Format = BlockCodes<kFormat>;
    const Codes stored = Format::template stored<Codes>(block, part, at);
    return Format::numbers(bits_of(stored, Format::shift(part, at), Format::kMask));
  }
};

// 16 bytes: the low half of byte i belongs to value i, the high one to value i + 16.
template <typename Codes, typename Bytes>
inline Codes nibbles(Bytes bytes, int at) {
  return load_codes<Codes>(bytes + at % 16);
}
inline int nibble_shift(int at) { return at < 16 ? 0 : 4; }
template <int kFormat>
struct Nibbles : FewCodes<kFormat> {
  static int shift(int, int at) { return nibble_shift(at); }
};

template <>
struct BlockCodes<kFormatQ4_0> : OneScale, Nibbles<kFormatQ4_0> {
  template <typename Codes>
  static Codes numbers(Codes bits) {
    return less(bits, 8);
  }
  template <typename Codes, typename Bytes>
  static Codes stored(Bytes block, int, int at) {
    return nibbles<Codes>(block + 2, at);
  }
};

template <>
struct BlockCodes<kFormatQ4_1> : OneScaleAndOffset, Nibbles<kFormatQ4_1> {
  template <typename Codes, typename Bytes>
  static Codes stored(Bytes block, int, int at) {
    return nibbles<Codes>(block + 4, at);
  }
};

// Four bytes with the fifth bit of value i in bit i, then 16 bytes.
template <typename Codes, typename Bytes>
inline Codes five_bits(Bytes bytes, int at) {
  const Codes low = bits_of(nibbles<Codes>(bytes + 4, at), nibble_shift(at), 15);
  return plus(low, raised(spread<Codes>(load_u32(bytes) >> at), 4));
}

template <>
struct BlockCodes<kFormatQ5_0> : OneScale, ManyCodes {
  template <typename Codes, typename Bytes>
  static Codes codes(Bytes block, int, int at) {
    return less(five_bits<Codes>(block + 2, at), 16);
  }
};

template <>
struct BlockCodes<kFormatQ5_1> : OneScaleAndOffset, ManyCodes {
  template <typename Codes, typename Bytes>
  static Codes codes(Bytes block, int, int at) {
    return five_bits<Codes>(block + 4, at);
  }
};

// Two bits of each code of a half of the block: 32 bytes with those of four parts.
template <typename Codes, typename Bytes>
inline Codes pairs(Bytes bytes, int part, int at) {
  return load_codes<Codes>(bytes + 32 * (part / 4) + at);
}
inline int pair_shift(int part) { return part % 4 * 2; }

// 16 scales of 4 bits below 4 bits of offsets, 64 bytes of codes, d, m.
template <>
struct BlockCodes<kFormatQ2_K> : FewCodes<kFormatQ2_K> {
  DSV4_MEMBER bool kHasOffset = true;
  DSV4_MEMBER int kScales = 16;
  DSV4_MEMBER float kStep = 1;
  DSV4_MEMBER uint32_t kMask = 3;
  template <typename Codes, typename Bytes>
  static Codes stored(Bytes block, int part, int at) {
    return pairs<Codes>(block + 16, part, at);
  }
  static int shift(int part, int) { return pair_shift(part); }
  template <typename Bytes>
  static float d(Bytes block) {
    return load_scale(block + 80);
  }
  template <typename Bytes>
  static float m(Bytes block) {
    return -load_scale(block + 82);
  }
  template <typename Bytes>
  static ScaleCodes scales(Bytes block, int at) {
    return bits_of(load_codes<ScaleCodes>(block + at), 0, 15);
  }
  template <typename Bytes>
  static ScaleCodes offsets(Bytes block, int at) {
    return bits_of(load_codes<ScaleCodes>(block + at), 4, 15);
  }
};

// From number `at` on: 16 numbers of two bits in four bytes, j in byte j % 4.
template <typename Bytes>
inline ScaleCodes pairs_of_four(Bytes bytes, int at) {
#ifdef __METAL_VERSION__
  return bits_of(load_codes<ScaleCodes>(bytes + at % 4), at / 4 * 2, 3);
#else
  const uint32_t pairs = load_u32(bytes) >> at / 4 * 2;
  return both(codes8(pairs, pairs >> 2), all<ScaleCodes>(3));
#endif
}

// 32 bytes with the third bit of the codes, 64 bytes of the others, 16 scales of 6 bits, d.
template <>
struct BlockCodes<kFormatQ3_K> : FewCodes<kFormatQ3_K> {
  DSV4_MEMBER bool kHasOffset = false;
  DSV4_MEMBER int kScales = 16;
  DSV4_MEMBER float kStep = 1;
  DSV4_MEMBER uint32_t kMask = 7;
  template <typename Codes>
  static Codes numbers(Codes bits) {
    return less(bits, 4);
  }
  template <typename Codes, typename Bytes>
  static Codes stored(Bytes block, int part, int at) {
    const Codes low = bits_of(pairs<Codes>(block + 32, part, at), pair_shift(part), 3);
    return plus(low, raised(bits_of(load_codes<Codes>(block + at), part, 1), 2));
  }
  static int shift(int, int) { return 0; }
  template <typename Bytes>
  static float d(Bytes block) {
    return load_scale(block + 108);
  }
  template <typename Bytes>
  static ScaleCodes scales(Bytes block, int at) {
    const ScaleCodes low =
        bits_of(load_codes<ScaleCodes>(block + 96 + at % 8), at / 8 * 4, 15);
    return less(plus(low, raised(pairs_of_four(block + 104, at), 4)), 32);
  }
};

// From number `at` of eight on: `four` bytes hold six bits of the first four and, above them, the
// highest two of the last four, whose lowest four are in `rest` from bit `right` of its bytes on.
template <typename Bytes>
inline ScaleCodes six_bits(Bytes four, Bytes rest, int right, int at) {
#ifdef __METAL_VERSION__
  return {
      at < 4 ? four[at] & 63u : (rest[at - 4] >> right & 15u) | four[at - 4] >> 6 << 4};
#else
  (void)at;  // 0: all eight are made
  const uint32_t first = load_u32(four), last = load_u32(rest) >> right;
  return codes8(first & 0x3f3f3f3f, (last & 0x0f0f0f0f) | (first >> 6 & 0x03030303) << 4);
#endif
}

// d, m, then 12 bytes with 8 scales and 8 offsets of 6 bits.
struct SixBitScales {
  DSV4_MEMBER bool kHasOffset = true;
  DSV4_MEMBER int kScales = 8;
  DSV4_MEMBER float kStep = 1;
  template <typename Bytes>
  static float d(Bytes block) {
    return load_scale(block);
  }
  template <typename Bytes>
  static float m(Bytes block) {
    return -load_scale(block + 2);
  }
  template <typename Bytes>
  static ScaleCodes scales(Bytes block, int at) {
    return six_bits(block + 4, block + 12, 0, at);
  }
  template <typename Bytes>
  static ScaleCodes offsets(Bytes block, int at) {
    return six_bits(block + 8, block + 12, 4, at);
  }
};

// 128 bytes: parts 2 i and 2 i + 1 are the low and high halves of 32.
template <typename Codes, typename Bytes>
inline Codes nibble_parts(Bytes bytes, int part, int at) {
  return load_codes<Codes>(bytes + 32 * (part / 2) + at);
}
inline int nibble_part_shift(int part) { return part % 2 * 4; }

template <>
struct BlockCodes<kFormatQ4_K> : SixBitScales, FewCodes<kFormatQ4_K> {
  template <typename Codes, typename Bytes>
  static Codes stored(Bytes block, int part, int at) {
    return nibble_parts<Codes>(block + 16, part, at);
  }
  static int shift(int part, int) { return nibble_part_shift(part); }
};

// As Q4_K, with 32 bytes of the codes' fifth bits before them.
template <>
struct BlockCodes<kFormatQ5_K> : SixBitScales, ManyCodes {
  template <typename Codes, typename Bytes>
  static Codes codes(Bytes block, int part, int at) {
    const Codes low =
        bits_of(nibble_parts<Codes>(block + 48, part, at), nibble_part_shift(part), 15);
    return plus(low, raised(bits_of(load_codes<Codes>(block + 16 + at), part, 1), 4));
  }
};

// 128 bytes of low halves, 64 of two high bits, 16 scales of 8 bits, d.
template <>
struct BlockCodes<kFormatQ6_K> : ManyCodes {
  DSV4_MEMBER bool kHasOffset = false;
  DSV4_MEMBER int kScales = 16;
  DSV4_MEMBER float kStep = 1;
  template <typename Codes, typename Bytes>
  static Codes codes(Bytes block, int part, int at) {
    const int side = part / 4, quarter = part % 4;
    const Bytes halves = block + 64 * side + 32 * (quarter % 2);
    const Codes low = bits_of(load_codes<Codes>(halves + at), quarter / 2 * 4, 15);
    const Codes pairs = load_codes<Codes>(block + 128 + 32 * side + at);
    return less(plus(low, raised(bits_of(pairs, 2 * quarter, 3), 4)), 32);
  }
  template <typename Bytes>
  static float d(Bytes block) {
    return load_scale(block + 208);
  }
  template <typename Bytes>
  static ScaleCodes scales(Bytes block, int at) {
    return load_codes<ScaleCodes>(block + 192 + at);
  }
};

DSV4_END_KERNELS
