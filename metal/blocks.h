// Block formats of GGUF weight matrices, shared by the host and the kernels.
//
// A row of K values is K / block_elements blocks of block_bytes each, without padding.
#pragma once

#include "common.h"

// The numbers are GGUF's type ids.
enum BlockFormat {
  kFormatF32 = 0,
  kFormatF16 = 1,
  kFormatQ8_0 = 8,  // f16 scale, 32 x int8
  kFormatBF16 = 30,
  kFormatMXFP4 =
      39,  // e8m0 scale, 16 bytes: byte i holds values i (low) and i + 16 (high)
};

constexpr int block_elements(int format) {
  return format == kFormatQ8_0 || format == kFormatMXFP4 ? 32 : 1;
}

constexpr int block_bytes(int format) {
  return format == kFormatF32     ? 4
         : format == kFormatQ8_0  ? 34
         : format == kFormatMXFP4 ? 17
                                  : 2;
}

// Where a block may begin: the size of its widest part.
constexpr int block_alignment(int format) {
  return format == kFormatF32 ? 4 : format == kFormatMXFP4 ? 1 : 2;
}

// k is a multiple of block_elements(format).
constexpr int64_t row_bytes(int format, int k) {
  return int64_t(k / block_elements(format)) * block_bytes(format);
}

// The kernels take rows in blocks of 32 values, whatever the format's own block is. A block has
// eight slots of four values, and four lanes decode it, two slots each.
DSV4_CONST int kBlockValues = 32;
DSV4_CONST int kSlotValues = 4;
DSV4_CONST int kLanesPerBlock = 4;
