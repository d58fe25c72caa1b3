// Blocks of IQ2_XXS, the format of most experts that people download. What is integers in a block is
// decoded for all of it at once. Only *_cpu.cpp may include it.
#pragma once

#include "simd.h"

#include "../metal/grid_codes.h"

namespace mlx_dsv4::DSV4_ISA {

using Words8 = uint32_t __attribute__((vector_size(32)));
using Words16 = uint32_t __attribute__((vector_size(64)));
using Floats8 = float __attribute__((vector_size(32)));

// even_signs() of four times seven bits in each word, as four bytes.
inline Words8 expand_even_signs(Words8 words) {
  const Words8 bits = (words & 0x7f) | (words << 1 & 0x7f00) | (words << 2 & 0x7f0000) |
                      (words << 3 & 0x7f000000);
  Words8 parity = bits ^ (bits >> 4 & 0x0f0f0f0f);
  parity ^= parity >> 2 & 0x3f3f3f3f;
  parity ^= parity >> 1 & 0x7f7f7f7f;
  return bits | (parity & 0x01010101) << 7;
}

struct BlocksIQ2_XXS {
  using Format = BlockCodes<kFormatIQ2_XXS>;
  static constexpr int kElements = 256, kStep = kBlockValues,
                       kBytes = block_bytes(kFormatIQ2_XXS);

  struct Scales {
    uint16_t entries[32];  // of the grid: eight numbers of two bits, the first lowest
    uint16_t signs[16];    // of sixteen values: ones where they are negative
    float scales[8];       // of the parts

    void load(const uint8_t* block) {
      // Entries' numbers of each part, and its signs and scale: see BlockCodes.
      Words16 words;
      std::memcpy(&words, block + 2, sizeof(words));
      const Words8 numbers =
          __builtin_shufflevector(words, words, 0, 2, 4, 6, 8, 10, 12, 14);
      const Words8 rest =
          __builtin_shufflevector(words, words, 1, 3, 5, 7, 9, 11, 13, 15);
      uint8_t bytes[32];
      std::memcpy(bytes, &numbers, sizeof(bytes));
      simd::lookup_256(kGridIQ2_XXS, bytes, entries);
      const Words8 expanded = expand_even_signs(rest);
      std::memcpy(signs, &expanded, sizeof(signs));
      const float step = Format::d(block) * Format::kStep;
      const Floats8 scaled =
          __builtin_convertvector((rest >> 28 << 1) + 1, Floats8) * step;
      std::memcpy(scales, &scaled, sizeof(scales));
      // As in BlocksOf: what is broadcast comes from memory.
      __asm__("" : "+m"(*this));
    }
  };

  static void decode(const uint8_t*, const Scales& block, int part, F32x16* values) {
    // Numbers 0, 1, 2 and one that no entry has, in every four lanes.
    constexpr uint64_t kLevels = iq2_values(0x2424).bytes;
    const F32x16 levels = simd::widen_i8(simd::Bytes16{kLevels, kLevels});
    const F32x16 table = simd::mul(levels, simd::set1(block.scales[part]));
    for (int side = 0; side < 2; ++side) {
      uint32_t pairs;
      std::memcpy(&pairs, block.entries + 4 * part + 2 * side, sizeof(pairs));
      values[side] =
          simd::negate(simd::lookup_pairs(table, pairs), block.signs[2 * part + side]);
    }
  }
};

}  // namespace mlx_dsv4::DSV4_ISA
