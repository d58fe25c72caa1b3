// What lies in a block: one struct per format, read by the CPU kernels and the GPU's alike.
//
// A piece of 32 values, number `part` of its block, is four groups of eight integers:
//
//   value i = scale(side) * code i + offset(side),   side = i / 16
//
// rounded after the product and after the sum, as gguf.quants computes them. Without an offset
// nothing is added, so that -0 stays -0. Q: type ggml-common.h; f16 scales are called d and m.
#pragma once

#include "block_bytes.h"

DSV4_BEGIN_KERNELS

template <int kFormat>
struct BlockCodes;

// 16 bytes: byte i holds value i in its low half and value i + 16 in its high half.
template <typename Bytes>
inline Codes8 nibbles(Bytes bytes, int group) {
  return bits_of(load_codes(bytes + 8 * (group & 1)), group < 2 ? 0 : 4, 15);
}

// One d for the block.
struct OneScale {
  static constexpr bool kHasOffset = false;
  template <typename Bytes>
  static float scale(Bytes block, int, int) {
    return load_scale(block);
  }
};

// d, then m.
struct OneScaleAndOffset : OneScale {
  static constexpr bool kHasOffset = true;
  template <typename Bytes>
  static float offset(Bytes block, int, int) {
    return load_scale(block + 2);
  }
};

template <>
struct BlockCodes<kFormatQ4_0> : OneScale {
  template <typename Bytes>
  static Codes8 codes(Bytes block, int, int group) {
    return less(nibbles(block + 2, group), 8);
  }
};

template <>
struct BlockCodes<kFormatQ4_1> : OneScaleAndOffset {
  template <typename Bytes>
  static Codes8 codes(Bytes block, int, int group) {
    return nibbles(block + 4, group);
  }
};

// Four bytes with the fifth bit of value i in bit i, then 16 bytes.
template <typename Bytes>
inline Codes8 five_bits(Bytes bytes, int group) {
  const Codes8 high = spread(load_u32(bytes) >> 8 * group & 255u);
  return plus(nibbles(bytes + 4, group), times(high, 16));
}

template <>
struct BlockCodes<kFormatQ5_0> : OneScale {
  template <typename Bytes>
  static Codes8 codes(Bytes block, int, int group) {
    return less(five_bits(block + 2, group), 16);
  }
};

template <>
struct BlockCodes<kFormatQ5_1> : OneScaleAndOffset {
  template <typename Bytes>
  static Codes8 codes(Bytes block, int, int group) {
    return five_bits(block + 4, group);
  }
};

template <>
struct BlockCodes<kFormatQ8_0> : OneScale {
  template <typename Bytes>
  static Codes8 codes(Bytes block, int, int group) {
    return load_codes(block + 2 + 8 * group);
  }
};

// 16 scales of 4 bits below 4 bits of offsets, 64 bytes of codes, d, m.
template <>
struct BlockCodes<kFormatQ2_K> {
  static constexpr bool kHasOffset = true;
  template <typename Bytes>
  static Codes8 codes(Bytes block, int part, int group) {
    return bits_of(load_codes(block + 16 + 32 * (part / 4) + 8 * group), part % 4 * 2, 3);
  }
  template <typename Bytes>
  static float scale(Bytes block, int part, int side) {
    return load_scale(block + 80) * float(block[2 * part + side] & 15);
  }
  template <typename Bytes>
  static float offset(Bytes block, int part, int side) {
    return -(load_scale(block + 82) * float(block[2 * part + side] >> 4));
  }
};

// 32 bytes with the third bit of the codes, 64 bytes of the others, 16 scales of 6 bits, d.
template <>
struct BlockCodes<kFormatQ3_K> {
  static constexpr bool kHasOffset = false;
  template <typename Bytes>
  static Codes8 codes(Bytes block, int part, int group) {
    const Codes8 low =
        bits_of(load_codes(block + 32 + 32 * (part / 4) + 8 * group), part % 4 * 2, 3);
    const Codes8 high = bits_of(load_codes(block + 8 * group), part, 1);
    return less(plus(low, times(high, 4)), 4);
  }
  template <typename Bytes>
  static float scale(Bytes block, int part, int side) {
    const int j = 2 * part + side;
    const int low = block[96 + j % 8] >> j / 8 * 4 & 15;
    const int high = block[104 + j % 4] >> j / 4 * 2 & 3;
    return load_scale(block + 108) * float((low | high << 4) - 32);
  }
};

// d, m, then 12 bytes with 8 scales and 8 offsets of 6 bits.
struct SixBitScales {
  static constexpr bool kHasOffset = true;
  template <typename Bytes>
  static float scale(Bytes block, int part, int) {
    const Bytes packed = block + 4;
    const int j = part % 4;
    const int bits =
        part < 4 ? packed[j] & 63 : (packed[8 + j] & 15) | packed[j] >> 6 << 4;
    return load_scale(block) * float(bits);
  }
  template <typename Bytes>
  static float offset(Bytes block, int part, int) {
    const Bytes packed = block + 4;
    const int j = part % 4;
    const int bits =
        part < 4 ? packed[4 + j] & 63 : packed[8 + j] >> 4 | packed[4 + j] >> 6 << 4;
    return -(load_scale(block + 2) * float(bits));
  }
};

// 128 bytes: parts 2 i and 2 i + 1 are the low and high halves of 32.
template <typename Bytes>
inline Codes8 nibble_parts(Bytes bytes, int part, int group) {
  return bits_of(load_codes(bytes + 32 * (part / 2) + 8 * group), part % 2 * 4, 15);
}

template <>
struct BlockCodes<kFormatQ4_K> : SixBitScales {
  template <typename Bytes>
  static Codes8 codes(Bytes block, int part, int group) {
    return nibble_parts(block + 16, part, group);
  }
};

// As Q4_K, with 32 bytes of the codes' fifth bits before them.
template <>
struct BlockCodes<kFormatQ5_K> : SixBitScales {
  template <typename Bytes>
  static Codes8 codes(Bytes block, int part, int group) {
    const Codes8 high = bits_of(load_codes(block + 16 + 8 * group), part, 1);
    return plus(nibble_parts(block + 48, part, group), times(high, 16));
  }
};

// 128 bytes of low halves, 64 of two high bits, 16 scales of 8 bits, d.
template <>
struct BlockCodes<kFormatQ6_K> {
  static constexpr bool kHasOffset = false;
  template <typename Bytes>
  static Codes8 codes(Bytes block, int part, int group) {
    const int side = part / 4, quarter = part % 4;
    const Codes8 low = bits_of(
        load_codes(block + 64 * side + 32 * (quarter % 2) + 8 * group),
        quarter / 2 * 4,
        15);
    const Codes8 high =
        bits_of(load_codes(block + 128 + 32 * side + 8 * group), 2 * quarter, 3);
    return less(plus(low, times(high, 16)), 32);
  }
  template <typename Bytes>
  static float scale(Bytes block, int part, int side) {
    const int bits = block[192 + 2 * part + side];
    return load_scale(block + 208) * float(bits < 128 ? bits : bits - 256);
  }
};

DSV4_END_KERNELS
