// <metal_math>: functions of float and half. There are none of bfloat, as in Metal.
#pragma once

#include "msl_vectors.h"

// The name of a float function of the compiler's library.
#ifdef __CUDA__
#include "msl_cuda_math.h"
#else
#define MSL_FLOAT_FUNCTION(name) __builtin_##name##f
#endif

namespace metal {

// A half function is the float function, rounded once more.
#define MSL_UNARY(name, VALUE)                     \
  MSL_INLINE float name(float x) { return VALUE; } \
  MSL_INLINE half name(half h) {                   \
    const float x = h;                             \
    return half(VALUE);                            \
  }
#define MSL_LIBRARY(name) MSL_UNARY(name, MSL_FLOAT_FUNCTION(name)(x))
MSL_LIBRARY(exp)
MSL_LIBRARY(exp2)
MSL_LIBRARY(exp10)
MSL_LIBRARY(log)
MSL_LIBRARY(log2)
MSL_LIBRARY(log10)
MSL_LIBRARY(sin)
MSL_LIBRARY(cos)
MSL_LIBRARY(tan)
MSL_LIBRARY(asin)
MSL_LIBRARY(acos)
MSL_LIBRARY(atan)
MSL_LIBRARY(sinh)
MSL_LIBRARY(cosh)
MSL_LIBRARY(tanh)
MSL_LIBRARY(asinh)
MSL_LIBRARY(acosh)
MSL_LIBRARY(atanh)
MSL_LIBRARY(floor)
MSL_LIBRARY(ceil)
MSL_LIBRARY(trunc)
MSL_LIBRARY(round)
MSL_LIBRARY(rint)
MSL_LIBRARY(fabs)
#undef MSL_LIBRARY
MSL_UNARY(abs, __builtin_fabsf(x))
MSL_UNARY(sqrt, __builtin_sqrtf(x))  // libdevice has one that is not exact
MSL_UNARY(rsqrt, 1.0f / __builtin_sqrtf(x))
MSL_UNARY(fract, x - MSL_FLOAT_FUNCTION(floor)(x))
MSL_UNARY(sign, x > 0 ? 1.0f : x < 0 ? -1.0f : x == 0 ? x : 0.0f)
MSL_UNARY(saturate, x != x || x < 0 ? 0.0f : x > 1 ? 1.0f : x)
MSL_UNARY(sinpi, MSL_FLOAT_FUNCTION(sin)(x * 3.14159265358979f))
MSL_UNARY(cospi, MSL_FLOAT_FUNCTION(cos)(x * 3.14159265358979f))
#undef MSL_UNARY

#define MSL_BINARY(name, VALUE)                             \
  MSL_INLINE float name(float x, float y) { return VALUE; } \
  MSL_INLINE half name(half a, half b) {                    \
    const float x = a, y = b;                               \
    return half(VALUE);                                     \
  }
MSL_BINARY(pow, MSL_FLOAT_FUNCTION(pow)(x, y))
MSL_BINARY(powr, MSL_FLOAT_FUNCTION(pow)(x, y))
MSL_BINARY(fmod, MSL_FLOAT_FUNCTION(fmod)(x, y))
MSL_BINARY(atan2, MSL_FLOAT_FUNCTION(atan2)(x, y))
MSL_BINARY(fmax, MSL_FLOAT_FUNCTION(fmax)(x, y))
MSL_BINARY(fmin, MSL_FLOAT_FUNCTION(fmin)(x, y))
MSL_BINARY(max, MSL_FLOAT_FUNCTION(fmax)(x, y))
MSL_BINARY(min, MSL_FLOAT_FUNCTION(fmin)(x, y))
MSL_BINARY(copysign, MSL_FLOAT_FUNCTION(copysign)(x, y))
MSL_BINARY(fdim, x > y ? x - y : 0.0f)
MSL_BINARY(step, y < x ? 0.0f : 1.0f)
MSL_BINARY(divide, x / y)
#undef MSL_BINARY

#define MSL_FLOATING(T)                                                                \
  MSL_INLINE T fma(T a, T b, T c) {                                                    \
    return T(__builtin_fmaf(float(a), float(b), float(c)));                            \
  }                                                                                    \
  MSL_INLINE T clamp(T x, T low, T high) { return min(max(x, low), high); }            \
  MSL_INLINE T mix(T a, T b, T t) { return T(a + T(T(b - a) * t)); }                   \
  MSL_INLINE T ldexp(T x, int e) { return T(MSL_FLOAT_FUNCTION(ldexp)(float(x), e)); } \
  MSL_INLINE T select(T a, T b, bool second) { return second ? b : a; }                \
  MSL_INLINE T min3(T a, T b, T c) { return min(a, min(b, c)); }                       \
  MSL_INLINE T max3(T a, T b, T c) { return max(a, max(b, c)); }                       \
  MSL_INLINE T median3(T a, T b, T c) { return max(min(a, b), min(max(a, b), c)); }    \
  MSL_INLINE bool isnan(T x) { return x != x; }                                        \
  MSL_INLINE bool isinf(T x) { return __builtin_isinf(float(x)); }                     \
  MSL_INLINE bool isfinite(T x) { return __builtin_isfinite(float(x)); }               \
  MSL_INLINE bool isnormal(T x) { return __builtin_isnormal(float(x)); }               \
  MSL_INLINE bool signbit(T x) { return __builtin_signbit(float(x)) != 0; }
MSL_FLOATING(float)
MSL_FLOATING(half)
#undef MSL_FLOATING

MSL_INLINE float nextafter(float x, float y) {
  return MSL_FLOAT_FUNCTION(nextafter)(x, y);
}
MSL_INLINE float frexp(float x, int& e) { return MSL_FLOAT_FUNCTION(frexp)(x, &e); }
MSL_INLINE float modf(float x, float& whole) {
  return MSL_FLOAT_FUNCTION(modf)(x, &whole);
}
MSL_INLINE int ilogb(float x) { return MSL_FLOAT_FUNCTION(ilogb)(x); }
MSL_INLINE float sincos(float x, float& cosine) {
  cosine = MSL_FLOAT_FUNCTION(cos)(x);
  return MSL_FLOAT_FUNCTION(sin)(x);
}

}  // namespace metal
