// Decoders of the block formats: raw bytes of a matrix row -> float32 lanes, exactly.
//
// A block has kElements values in kBytes and Scales that are taken out of it once; a piece of kStep
// values, number `part` of its block, is decoded at once. Only *_cpu.cpp may include it.
#pragma once

#include "simd.h"

#include "../metal/grid_codes.h"
#include "grid_pairs_cpu.h"

namespace mlx_dsv4::DSV4_ISA {

struct NoScales {
  void load(const uint8_t*) {}
};

struct BlocksF32 {
  static constexpr int kElements = 16, kStep = 16, kBytes = 64;
  using Scales = NoScales;
  static void decode(const uint8_t* block, const Scales&, int, F32x16* values) {
    values[0] = simd::load(reinterpret_cast<const float*>(block));
  }
};

struct BlocksF16 {
  static constexpr int kElements = 16, kStep = 16, kBytes = 32;
  using Scales = NoScales;
  static void decode(const uint8_t* block, const Scales&, int, F32x16* values) {
    values[0] = simd::load_f16(reinterpret_cast<const uint16_t*>(block));
  }
};

struct BlocksBF16 {
  static constexpr int kElements = 16, kStep = 16, kBytes = 32;
  using Scales = NoScales;
  static void decode(const uint8_t* block, const Scales&, int, F32x16* values) {
    values[0] = simd::load_bf16(reinterpret_cast<const uint16_t*>(block));
  }
};

struct BlocksQ8_0 {
  static constexpr int kElements = 32, kStep = 32, kBytes = 34;
  using Scales = NoScales;
  static void decode(const uint8_t* block, const Scales&, int, F32x16* values) {
    const F32x16 scale = simd::set1(load_scale(block));
    const auto* codes = reinterpret_cast<const int8_t*>(block + 2);
    values[0] = simd::mul(simd::load_i8(codes), scale);
    values[1] = simd::mul(simd::load_i8(codes + 16), scale);
  }
};

// Half of each E8M0 scale, 2^(e - 128), since the lanes hold doubled E2M1 values.
struct E8M0Halves {
  float of[256];
};
constexpr E8M0Halves make_e8m0_halves() {
  E8M0Halves halves{};
  halves.of[0] = 0x1p-128f;
  for (int e = 1; e < 256; ++e) {
    halves.of[e] = 2 * halves.of[e - 1];
  }
  return halves;
}
constexpr E8M0Halves kE8M0Halves = make_e8m0_halves();

struct BlocksMXFP4 {
  static constexpr int kElements = 32, kStep = 32, kBytes = 17;
  using Scales = NoScales;
  static void decode(const uint8_t* block, const Scales&, int, F32x16* values) {
    const F32x16 half_scale = simd::set1(kE8M0Halves.of[block[0]]);
    simd::unpack_e2m1(block + 1, half_scale, values[0], values[1]);
  }
};

constexpr Codes16 kFirst16 = {{0x0706050403020100, 0x0f0e0d0c0b0a0908}};

// Any format of BlockCodes.
template <int kFormat>
struct BlocksOf {
  using Format = BlockCodes<kFormat>;
  static constexpr int kElements = block_elements(kFormat), kStep = kBlockValues,
                       kBytes = block_bytes(kFormat);

  struct Scales {
    float scales[16], offsets[16];
    void load(const uint8_t* block) {
      const float d = Format::d(block) * Format::kStep;
      store_scales(d, [=](int at) { return Format::scales(block, at); }, scales);
      if constexpr (Format::kHasOffset) {
        store_scales(
            Format::m(block),
            [=](int at) { return Format::offsets(block, at); },
            offsets);
      }
    }
  };

  template <typename Numbers>
  static void store_scales(float factor, Numbers numbers, float* scales) {
    if constexpr (Format::kScales == 1) {
      scales[0] = factor;
      return;
    }
    simd::Bytes16 codes = {numbers(0).bytes, 0};
    if constexpr (Format::kScales == 16) {
      codes[1] = numbers(8).bytes;
    }
    simd::store(scales, simd::mul(simd::widen_i8(codes), simd::set1(factor)));
    // Each is then broadcast from memory, which costs nothing; out of a register it costs a shuffle.
    __asm__("" : "+m"(*reinterpret_cast<float (*)[16]>(scales)));
  }

  static F32x16 values_of(F32x16 codes, const Scales& scales, int j) {
    const F32x16 products = simd::mul(codes, simd::set1(scales.scales[j]));
    if constexpr (Format::kHasOffset) {
      return simd::add(products, simd::set1(scales.offsets[j]));
    }
    return products;
  }

  static void decode(
      const uint8_t* block, const Scales& scales, int part, F32x16* values) {
    for (int side = 0; side < 2; ++side) {
      const int at = 16 * side, j = scale_index<kFormat>(part, side);
      if constexpr (Format::kFewCodes) {
        const F32x16 numbers = simd::widen_i8(
            Format::numbers(both(kFirst16, all<Codes16>(Format::kMask))).bytes);
        values[side] = simd::lookup(
            values_of(numbers, scales, j),
            Format::template stored<Codes16>(block, part, at).bytes,
            Format::shift(part, at));
      } else {
        values[side] = values_of(codes_of(block, part, at), scales, j);
      }
    }
  }

  static F32x16 codes_of(const uint8_t* block, int part, int at) {
    if constexpr (Format::kGrid) {
      const auto pair = [=](Codes8 (*of)(const uint8_t*, int, int)) {
        return Codes16{
            simd::Bytes16{of(block, part, at).bytes, of(block, part, at + 8).bytes}};
      };
      if constexpr (Format::kHasSigns) {
        return simd::widen_i8(negated(pair(Format::entries), pair(Format::signs)).bytes);
      } else {
        return simd::widen_i8(pair(Format::entries).bytes);
      }
    } else {
      return simd::widen_i8(Format::template codes<Codes16>(block, part, at).bytes);
    }
  }
};

template <>
struct BlocksOf<kFormatIQ2_XXS> : BlocksIQ2_XXS {};

// Calls fn with the decoder of `format`, an enum BlockFormat.
template <typename Fn>
inline void with_blocks(int format, Fn fn) {
  switch (format) {
    case kFormatF32:
      return fn(BlocksF32{});
    case kFormatF16:
      return fn(BlocksF16{});
    case kFormatBF16:
      return fn(BlocksBF16{});
    case kFormatQ8_0:
      return fn(BlocksQ8_0{});
    case kFormatMXFP4:
      return fn(BlocksMXFP4{});
#define DSV4_BLOCKS(format) \
  case format:              \
    return fn(BlocksOf<format>{});
      DSV4_EACH_CODED_FORMAT(DSV4_BLOCKS)
#undef DSV4_BLOCKS
  }
}

// The last n < 16 values of a row of a format without scales, zeros after them.
template <typename Blocks>
inline void decode_tail(const uint8_t* block, int n, F32x16* values) {
  uint8_t bytes[Blocks::kBytes] = {};
  std::memcpy(bytes, block, n * (Blocks::kBytes / Blocks::kElements));
  Blocks::decode(bytes, {}, 0, values);
}

// Values [first, first + n) of a row, `first` a multiple of 32; zeros up to whole lanes.
template <typename Blocks>
inline void decode_values(const uint8_t* row, int first, int n, float* out) {
  constexpr int kStep = Blocks::kStep, kElements = Blocks::kElements;
  typename Blocks::Scales scales;
  F32x16 values[kStep / 16];
  int i = 0;
  for (; i + kStep <= n; i += kStep) {
    const int at = first + i;
    const uint8_t* block = row + int64_t{at / kElements} * Blocks::kBytes;
    if (i == 0 || at % kElements == 0) {
      scales.load(block);
    }
    Blocks::decode(block, scales, at % kElements / kStep, values);
    for (int j = 0; j < kStep / 16; ++j) {
      simd::store(out + i + 16 * j, values[j]);
    }
  }
  if (i < n) {
    decode_tail<Blocks>(
        row + int64_t{(first + i) / kElements} * Blocks::kBytes, n - i, values);
    simd::store(out + i, values[0]);
  }
}

}  // namespace mlx_dsv4::DSV4_ISA
