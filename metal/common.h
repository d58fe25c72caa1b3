// Index arithmetic and formats that the host and the kernels must agree on.
#pragma once

#ifdef __METAL_VERSION__
#include <metal_stdlib>
#define DSV4_CONST constant constexpr
#else
#include <cstdint>
#define DSV4_CONST inline constexpr
#endif

DSV4_CONST int kSimdWidth = 32;

// Compressed row r stands for the span [r * ratio, (r + 1) * ratio) and can be
// read from that span's last token on. Counts the rows readable at `pos`.
constexpr int visible_rows(int pos, int ratio) {
  return ratio == 0 ? 0 : (pos + 1) / ratio;
}

// What a row goes through after RoPE, before it is stored.
enum RoundTrip {
  kRoundTripNone = 0,
  kRoundTripFp8 = 1,          // E4M3 in blocks of 64, all but the rotated dims
  kRoundTripHadamardFp4 = 2,  // Hadamard transform, then E2M1 in blocks of 32
};
DSV4_CONST int kFp8Block = 64;
DSV4_CONST int kFp4Block = 32;
