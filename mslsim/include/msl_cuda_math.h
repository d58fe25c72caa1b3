// The float functions of libdevice, NVIDIA's mathematics in LLVM's bitcode.
#pragma once

#define MSL_FLOAT_FUNCTION(name) __nv_##name##f

#define MSL_UNARY(name) __attribute__((device)) float __nv_##name##f(float);
#define MSL_BINARY(name) __attribute__((device)) float __nv_##name##f(float, float);
extern "C" {
MSL_UNARY(exp)
MSL_UNARY(exp2)
MSL_UNARY(exp10)
MSL_UNARY(log)
MSL_UNARY(log2)
MSL_UNARY(log10)
MSL_UNARY(sin)
MSL_UNARY(cos)
MSL_UNARY(tan)
MSL_UNARY(asin)
MSL_UNARY(acos)
MSL_UNARY(atan)
MSL_UNARY(sinh)
MSL_UNARY(cosh)
MSL_UNARY(tanh)
MSL_UNARY(asinh)
MSL_UNARY(acosh)
MSL_UNARY(atanh)
MSL_UNARY(floor)
MSL_UNARY(ceil)
MSL_UNARY(trunc)
MSL_UNARY(round)
MSL_UNARY(rint)
MSL_UNARY(fabs)
MSL_BINARY(pow)
MSL_BINARY(fmod)
MSL_BINARY(atan2)
MSL_BINARY(fmax)
MSL_BINARY(fmin)
MSL_BINARY(copysign)
MSL_BINARY(nextafter)
__attribute__((device)) float __nv_ldexpf(float, int);
__attribute__((device)) float __nv_frexpf(float, int*);
__attribute__((device)) float __nv_modff(float, float*);
__attribute__((device)) int __nv_ilogbf(float);
}
#undef MSL_UNARY
#undef MSL_BINARY
