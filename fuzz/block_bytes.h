// Blocks of any format: random, mutated, and what is known of their values without decoding them.
#pragma once

#include <bit>
#include <cmath>
#include <cstring>
#include <vector>

#include "../metal/blocks.h"
#include "random.h"

namespace fuzz {

using Bytes = Exact<uint8_t>;

#define FUZZ_FORMAT(format) format,
inline constexpr int kFormats[] = {
    kFormatF32,
    kFormatF16,
    kFormatBF16,
    kFormatQ8_0,
    kFormatMXFP4,
    DSV4_EACH_CODED_FORMAT(FUZZ_FORMAT)};
#undef FUZZ_FORMAT

inline bool is_plain(int format) { return block_elements(format) == 1; }

// Where the float16 scales of a block lie; IQ1_M has one in pieces, MXFP4 and plain formats none.
inline std::vector<int> scale_places(int format) {
  switch (format) {
    case kFormatQ4_1:
    case kFormatQ5_1:
    case kFormatQ4_K:
    case kFormatQ5_K:
      return {0, 2};
    case kFormatQ2_K:
      return {80, 82};
    case kFormatQ3_K:
      return {108};
    case kFormatQ6_K:
      return {208};
    case kFormatIQ1_M:
    case kFormatMXFP4:
      return {};
    default:
      return is_plain(format) ? std::vector<int>{} : std::vector<int>{0};
  }
}

inline uint32_t load_word(const uint8_t* at) {
  uint16_t word;
  std::memcpy(&word, at, sizeof(word));
  return word;
}

// Whether the scales of a block are numbers; for a plain format, whether its one value is.
inline bool scales_are_finite(int format, const uint8_t* block) {
  switch (format) {
    case kFormatF32:
      return (load_word(block + 2) & 0x7F80) != 0x7F80;
    case kFormatBF16:
      return (load_word(block) & 0x7F80) != 0x7F80;
    case kFormatF16:
      return (load_word(block) & 0x7C00) != 0x7C00;
    case kFormatMXFP4:
      return block[0] < 253;  // 12 * 2^(252 - 128) is the largest number
    case kFormatIQ1_M:
      return (load_word(block + 54) & 0x7000) != 0x7000 ||
             (load_word(block + 52) & 0xC000) != 0xC000;
  }
  for (const int at : scale_places(format)) {
    if ((load_word(block + at) & 0x7C00) == 0x7C00) {
      return false;
    }
  }
  return true;
}

inline void mutate_scales(Random& random, int format, uint8_t* block) {
  for (const int at : scale_places(format)) {
    const uint16_t bits = random.choice<uint16_t>(
        {0x0000, 0x8000, 0x0001, 0x83FF, 0x0400, 0x3C00, 0x7BFF, 0xFBFF, 0x7C00, 0xFE01});
    std::memcpy(block + at, &bits, sizeof(bits));
  }
  if (format == kFormatMXFP4) {
    block[0] = random.choice<uint8_t>({0, 1, 2, 127, 252, 253, 254, 255});
  }
  if (format == kFormatF32) {
    const uint32_t bits = random.choice<uint32_t>(
        {0, 0x80000000, 1, 0x007FFFFF, 0x00800000, 0x7F7FFFFF, 0x7F800000, 0xFFC00001});
    std::memcpy(block, &bits, sizeof(bits));
  }
}

// Rows of k values with blocks of every kind.
inline Bytes random_rows(Random& random, int format, int n_rows, int k) {
  Bytes rows(n_rows * row_bytes(format, k), random.one_in(2) ? 0 : random.below(64));
  const int n = block_bytes(format);
  // Of one call in four every scale is left a number, so that products are numbers too.
  const bool tame = random.one_in(4);
  for (int64_t at = 0; at < rows.size(); at += n) {
    uint8_t* block = rows.data() + at;
    const int all_alike = random.choice({0, 255, 128, -1, -1, -1, -1, -1});
    for (int i = 0; i < n; ++i) {
      block[i] = static_cast<uint8_t>(all_alike < 0 ? random.next() : all_alike);
    }
    if (tame) {
      while (!scales_are_finite(format, block)) {
        for (int i = 0; i < n; ++i) {
          block[i] = static_cast<uint8_t>(random.next());
        }
      }
    } else if (random.one_in(3)) {
      mutate_scales(random, format, block);
    }
  }
  return rows;
}

// Equal to the bit, one NaN being like another.
inline bool same(float a, float b) {
  return std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b) ||
         (std::isnan(a) && std::isnan(b));
}

}  // namespace fuzz
