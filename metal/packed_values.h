// Device only: four neighbouring values of an array. Arrays may begin at any element, so they are
// read and written as packed vectors, which need no more alignment than one element has.
#pragma once

#include "common.h"

using namespace metal;

// How four values lie in memory and in registers, and what they are in f32.
template <typename T>
struct FourValues;

template <>
struct FourValues<float> {
  using Packed = packed_float4;
  using Aligned = float4;
  static float4 widen(float4 stored) { return stored; }
  static float4 round(float4 x) { return x; }
};

template <>
struct FourValues<half> {
  using Packed = packed_half4;
  using Aligned = half4;
  static float4 widen(half4 stored) { return float4(stored); }
};

template <>
struct FourValues<bfloat> {
  using Packed = packed_ushort4;
  using Aligned = ushort4;
  static float4 widen(ushort4 stored) { return as_type<float4>(uint4(stored) << 16); }
  static ushort4 round(float4 x) { return as_type<ushort4>(bfloat4(x)); }
};

template <typename T>
inline typename FourValues<T>::Aligned stored_four(const device T* from) {
  using Four = FourValues<T>;
  return typename Four::Aligned(*(const device typename Four::Packed*)from);
}

template <typename T>
inline float4 load_four(const device T* from) {
  return FourValues<T>::widen(stored_four(from));
}

template <typename T>
inline void store_four(device T* to, float4 x) {
  using Four = FourValues<T>;
  *(device typename Four::Packed*)to = typename Four::Packed(Four::round(x));
}
