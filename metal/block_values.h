// Values of GGUF blocks on the GPU: one struct per format.
//
// Four lanes share a piece of kBlockValues of a row: lane q decodes the slots 2q and 2q + 1, each four
// consecutive values that begin at slot_start(slot). A format's struct chooses slot_start so that
// a lane's bytes are adjacent. A format of BlockCodes needs no struct of its own.
//
// Values are exact in f32, given that f16 arithmetic keeps subnormal numbers. Where f32 arithmetic
// flushes them, products take those below 2^-126 as zero: scale bytes 0 and 1 of MXFP4, subnormal
// f32 and bf16 weights. Blocks of 17 bytes begin at any address and the others at even ones, so they
// are loaded as packed vectors, which need no more alignment than their element has.
#pragma once

#include "grid_codes.h"
#include "packed_values.h"

using namespace metal;

// Values [first, first + 4) of a row of n values, zeros from n on. kWhole: there are four.
template <bool kWhole, typename Scalar>
inline float4 four_values(const device Scalar* row, int first, int n) {
  if (kWhole || first + kSlotValues <= n) {
    return load_four(row + first);
  }
  float4 last = float4(0.0f);
  for (int i = 0; first + i < n; ++i) {
    last[i] = float(row[first + i]);
  }
  return last;
}

inline float scale_value(ScaleCodes code) {
  return float(as_type<char>(uchar(code.byte)));
}

// What follows the product of a code and its scale.
template <bool kHasOffset>
struct Offset {
  template <typename Codes>
  static float4 add(float4 products, const device uchar*, int) {
    return products;
  }
};
template <>
struct Offset<true> {
  template <typename Codes>
  static float4 add(float4 products, const device uchar* block, int j) {
    return products + Codes::m(block) * scale_value(Codes::offsets(block, j));
  }
};

// Slots 2q and 2q + 1 of a piece of a row of n values, and where in the piece a slot begins.
template <int kFormat>
struct BlockValues {
  static int slot_start(int slot) { return slot * kSlotValues; }
  static void decode(
      const device uchar* row, int piece, int q, int, thread float4* slots) {
    using Codes = BlockCodes<kFormat>;
    constexpr int kParts = block_elements(kFormat) / kBlockValues;
    const device uchar* block = row + piece / kParts * block_bytes(kFormat);
    const int part = piece % kParts, j = scale_index<kFormat>(part, q / 2);
    const Codes8 codes = Codes::template codes<Codes8>(block, part, 8 * q);
    const float scale =
        Codes::d(block) * scale_value(Codes::scales(block, j)) * Codes::kStep;
    using Add = Offset<Codes::kHasOffset>;
    slots[0] =
        Add::template add<Codes>(scale * float4(as_type<char4>(codes.low)), block, j);
    slots[1] =
        Add::template add<Codes>(scale * float4(as_type<char4>(codes.high)), block, j);
  }
};

// Formats without scales: the row's last block may be partly past its end.
template <typename Scalar>
inline void decode_plain(
    const device uchar* row, int block, int q, int n, thread float4* slots) {
  const int first = block * kBlockValues + 2 * q * kSlotValues;
  slots[0] = four_values<false>((const device Scalar*)row, first, n);
  slots[1] = four_values<false>((const device Scalar*)row, first + kSlotValues, n);
}

template <>
struct BlockValues<kFormatF32> {
  static int slot_start(int slot) { return slot * kSlotValues; }
  static void decode(
      const device uchar* row, int block, int q, int n, thread float4* slots) {
    decode_plain<float>(row, block, q, n, slots);
  }
};

template <>
struct BlockValues<kFormatF16> {
  static int slot_start(int slot) { return slot * kSlotValues; }
  static void decode(
      const device uchar* row, int block, int q, int n, thread float4* slots) {
    decode_plain<half>(row, block, q, n, slots);
  }
};

template <>
struct BlockValues<kFormatBF16> {
  static int slot_start(int slot) { return slot * kSlotValues; }
  static void decode(
      const device uchar* row, int block, int q, int n, thread float4* slots) {
    decode_plain<bfloat>(row, block, q, n, slots);
  }
};

template <>
struct BlockValues<kFormatQ8_0> {
  static int slot_start(int slot) { return slot * kSlotValues; }
  static void decode(
      const device uchar* row, int block, int q, int, thread float4* slots) {
    const device ushort* words =
        (const device ushort*)(row + block * block_bytes(kFormatQ8_0));
    const float scale = float(as_type<half>(words[0]));
    const ushort4 codes = ushort4(*(const device packed_ushort4*)(words + 1 + 4 * q));
    slots[0] = scale * float4(as_type<char4>(codes.xy));
    slots[1] = scale * float4(as_type<char4>(codes.zw));
  }
};

// 2^(e - 128), half of an E8M0 scale: E2M1 values come out doubled.
inline float half_e8m0(uint e) {
  return as_type<float>(e < 2 ? 0x00200000u << e : (e - 1) << 23);
}

// Twice the E2M1 values in bits 0..3 of each half of a and b. Shifted into place, a code is the
// f16 number 2^-14 times its value, subnormal for 0.5; the sum makes zero of minus zero.
inline float4 doubled_e2m1(uint a, uint b) {
  const uint2 pairs = uint2(a, b);
  const uint2 bits = (pairs & 0x00070007u) << 9 | (pairs & 0x00080008u) << 12;
  return float4(fma(as_type<half4>(bits), half4(32768.0h), half4(0.0h)));
}

// Byte i holds values i and i + 16: slot 2q begins at 4q, slot 2q + 1 at 16 + 4q.
template <>
struct BlockValues<kFormatMXFP4> {
  static int slot_start(int slot) { return (slot & 1) * 16 + (slot >> 1) * kSlotValues; }
  static void decode(
      const device uchar* row, int block, int q, int, thread float4* slots) {
    const device uchar* bytes = row + block * block_bytes(kFormatMXFP4);
    const float scale = half_e8m0(bytes[0]);
    const uchar4 codes = uchar4(*(const device packed_uchar4*)(bytes + 1 + 4 * q));
    const uint even = codes.x | uint(codes.y) << 16, odd = codes.z | uint(codes.w) << 16;
    slots[0] = scale * doubled_e2m1(even, odd);
    slots[1] = scale * doubled_e2m1(even >> 4, odd >> 4);
  }
};
