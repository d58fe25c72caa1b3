// <metal_limits>.
#pragma once

#include "msl_types.h"

namespace metal {

template <class T>
struct numeric_limits;

#define MSL_INTEGER_LIMITS(T, MIN, MAX)                           \
  template <>                                                     \
  struct numeric_limits<T> {                                      \
    static constexpr bool is_specialized = true;                  \
    static constexpr bool is_signed = (MIN) != 0;                 \
    static constexpr bool is_integer = true;                      \
    static constexpr bool has_infinity = false;                   \
    static constexpr int digits = int(sizeof(T) * 8) - is_signed; \
    static constexpr T min() { return T(MIN); }                   \
    static constexpr T max() { return T(MAX); }                   \
    static constexpr T lowest() { return T(MIN); }                \
  };
MSL_INTEGER_LIMITS(bool, 0, 1)
MSL_INTEGER_LIMITS(char, -128, 127)
MSL_INTEGER_LIMITS(int8_t, -128, 127)
MSL_INTEGER_LIMITS(uchar, 0, 255)
MSL_INTEGER_LIMITS(short, -32768, 32767)
MSL_INTEGER_LIMITS(ushort, 0, 65535)
MSL_INTEGER_LIMITS(int, -__INT_MAX__ - 1, __INT_MAX__)
MSL_INTEGER_LIMITS(uint, 0, ~0u)
MSL_INTEGER_LIMITS(long, -__LONG_MAX__ - 1, __LONG_MAX__)
MSL_INTEGER_LIMITS(ulong, 0, ~0ul)
#undef MSL_INTEGER_LIMITS

#define MSL_FLOAT_LIMITS(T, MIN, MAX, EPSILON, DIGITS, DENORMAL)     \
  template <>                                                        \
  struct numeric_limits<T> {                                         \
    static constexpr bool is_specialized = true;                     \
    static constexpr bool is_signed = true;                          \
    static constexpr bool is_integer = false;                        \
    static constexpr bool has_infinity = true;                       \
    static constexpr int digits = DIGITS;                            \
    static constexpr T min() { return T(MIN); }                      \
    static constexpr T max() { return T(MAX); }                      \
    static constexpr T lowest() { return T(-MAX); }                  \
    static constexpr T epsilon() { return T(EPSILON); }              \
    static constexpr T infinity() { return T(__builtin_inff()); }    \
    static constexpr T quiet_NaN() { return T(__builtin_nanf("")); } \
    static constexpr T denorm_min() { return T(DENORMAL); }          \
  };
MSL_FLOAT_LIMITS(float, 0x1p-126f, 0x1.fffffep127f, 0x1p-23f, 24, 0x1p-149f)
MSL_FLOAT_LIMITS(half, 0x1p-14f, 65504.0f, 0x1p-10f, 11, 0x1p-24f)
MSL_FLOAT_LIMITS(bfloat, 0x1p-126f, 0x1.fep127f, 0x1p-7f, 8, 0x1p-133f)
#undef MSL_FLOAT_LIMITS

}  // namespace metal
