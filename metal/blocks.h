// Block formats of GGUF weight matrices, shared by the host and the kernels.
//
// A row of K values is K / block_elements blocks of block_bytes each, without padding. What lies in
// a block, and what its values are, is in block_codes.h and grid_codes.h.
#pragma once

#include "common.h"

// The numbers are GGUF's type ids.
enum BlockFormat {
  kFormatF32 = 0,
  kFormatF16 = 1,
  kFormatQ4_0 = 2,
  kFormatQ4_1 = 3,
  kFormatQ5_0 = 6,
  kFormatQ5_1 = 7,
  kFormatQ8_0 = 8,
  kFormatQ2_K = 10,
  kFormatQ3_K = 11,
  kFormatQ4_K = 12,
  kFormatQ5_K = 13,
  kFormatQ6_K = 14,
  kFormatIQ2_XXS = 16,
  kFormatIQ2_XS = 17,
  kFormatIQ3_XXS = 18,
  kFormatIQ1_S = 19,
  kFormatIQ4_NL = 20,
  kFormatIQ3_S = 21,
  kFormatIQ2_S = 22,
  kFormatIQ4_XS = 23,
  kFormatIQ1_M = 29,
  kFormatBF16 = 30,
  kFormatMXFP4 = 39,
};

// Those whose values are small integers times scales, as block_codes.h and grid_codes.h have them.
#define DSV4_EACH_CODED_FORMAT(X) \
  X(kFormatQ4_0)                  \
  X(kFormatQ4_1)                  \
  X(kFormatQ5_0)                  \
  X(kFormatQ5_1)                  \
  X(kFormatQ2_K)                  \
  X(kFormatQ3_K)                  \
  X(kFormatQ4_K)                  \
  X(kFormatQ5_K)                  \
  X(kFormatQ6_K)                  \
  X(kFormatIQ1_S)                 \
  X(kFormatIQ1_M)                 \
  X(kFormatIQ2_XXS)               \
  X(kFormatIQ2_XS)                \
  X(kFormatIQ2_S)                 \
  X(kFormatIQ3_XXS)               \
  X(kFormatIQ3_S)                 \
  X(kFormatIQ4_NL)                \
  X(kFormatIQ4_XS)

struct BlockShape {
  int elements, bytes;
};

constexpr BlockShape block_shape(int format) {
  switch (format) {
    case kFormatF32:
      return {1, 4};
    case kFormatF16:
    case kFormatBF16:
      return {1, 2};
    case kFormatMXFP4:
      return {32, 17};
    case kFormatQ4_0:
    case kFormatIQ4_NL:
      return {32, 18};
    case kFormatQ4_1:
      return {32, 20};
    case kFormatQ5_0:
      return {32, 22};
    case kFormatQ5_1:
      return {32, 24};
    case kFormatQ8_0:
      return {32, 34};
    case kFormatIQ1_S:
      return {256, 50};
    case kFormatIQ1_M:
      return {256, 56};
    case kFormatIQ2_XXS:
      return {256, 66};
    case kFormatIQ2_XS:
      return {256, 74};
    case kFormatIQ2_S:
      return {256, 82};
    case kFormatQ2_K:
      return {256, 84};
    case kFormatIQ3_XXS:
      return {256, 98};
    case kFormatQ3_K:
    case kFormatIQ3_S:
      return {256, 110};
    case kFormatIQ4_XS:
      return {256, 136};
    case kFormatQ4_K:
      return {256, 144};
    case kFormatQ5_K:
      return {256, 176};
    case kFormatQ6_K:
      return {256, 210};
    default:
      return {1, 0};
  }
}

constexpr int block_elements(int format) { return block_shape(format).elements; }

constexpr int block_bytes(int format) { return block_shape(format).bytes; }

// Where a block may begin: the size of its widest part.
constexpr int block_alignment(int format) {
  return format == kFormatF32 ? 4 : format == kFormatMXFP4 ? 1 : 2;
}

// k is a multiple of block_elements(format).
constexpr int64_t row_bytes(int format, int k) {
  return int64_t(k / block_elements(format)) * block_bytes(format);
}

// The kernels take rows in pieces of 32 values, whatever the format's own block is: a block of 256
// values has eight. A piece has eight slots of four values, and four lanes decode it, two slots each.
DSV4_CONST int kBlockValues = 32;
DSV4_CONST int kSlotValues = 4;
DSV4_CONST int kLanesPerBlock = 4;
