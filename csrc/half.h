// Single values of the half-precision format.
#pragma once

#include <stdint.h>

#include <cstring>
#ifdef __F16C__
#include <immintrin.h>
#endif

namespace mlx_dsv4::DSV4_ISA {

#if defined(__F16C__)
inline float f16_to_f32(uint16_t half) { return _cvtsh_ss(half); }
#elif defined(__ARM_FP16_FORMAT_IEEE)
inline float f16_to_f32(uint16_t half) {
  __fp16 x;
  std::memcpy(&x, &half, sizeof(x));
  return x;
}
#else
inline float f16_to_f32(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000) << 16;
  const uint32_t rest = half & 0x7FFF;
  float x;
  if (rest < 0x0400) {
    x = static_cast<float>(rest) * 0x1p-24f;  // subnormal or zero
  } else {
    const uint32_t bits = (rest << 13) + (rest >= 0x7C00 ? 0x70000000 : 0x38000000);
    std::memcpy(&x, &bits, 4);
  }
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  bits |= sign;
  std::memcpy(&x, &bits, 4);
  return x;
}
#endif

}  // namespace mlx_dsv4::DSV4_ISA
