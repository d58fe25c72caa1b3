// Index arithmetic and formats that the host and the kernels must agree on.
#pragma once

#ifdef __METAL_VERSION__
#include <metal_stdlib>
// Rounding is part of the result: multiply-adds are fused only where the source says so.
#pragma METAL fp contract(off)
#define DSV4_CONST constant constexpr
#define DSV4_MEMBER static constant constexpr  // of a struct
// A line of the ahead-of-time library: the kernel `function_suffix`. Compilation at run time
// appends the same line for the one kernel that is asked for.
#define instantiate_kernel(function, suffix, ...)          \
  template [[host_name(#function "_" #suffix)]] [[kernel]] \
  decltype(function<__VA_ARGS__>) function<__VA_ARGS__>;
#else
#include <cstdint>
#define DSV4_CONST inline constexpr
#define DSV4_MEMBER static constexpr
#endif

DSV4_CONST int kSimdWidth = 32;
DSV4_CONST int kMatrixDim = 8;  // of a simdgroup_matrix

// How many pieces of d cover n.
constexpr int ceil_div(int n, int d) { return n / d + (n % d > 0 ? 1 : 0); }

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
