// Bytes of blocks and small integers eight at a time, for the host's kernels and the GPU's alike.
//
// Bytes is a pointer to uint8_t in whichever address space; blocks begin at even addresses, and so
// does everything that is loaded here as more than one byte.
#pragma once

#include "blocks.h"

#ifdef __METAL_VERSION__
using namespace metal;
#define DSV4_BEGIN_KERNELS
#define DSV4_END_KERNELS
#else
// The host includes csrc/simd.h first. It compiles its kernels once per instruction set, each into
// a namespace of its own.
#define DSV4_BEGIN_KERNELS namespace mlx_dsv4::DSV4_ISA {
#define DSV4_END_KERNELS }
#endif

DSV4_BEGIN_KERNELS

// Integers of one byte: eight in two words on the GPU; on the host eight in one or 16 in two.
// ScaleCodes are as many as are worth making at once: one on the GPU, eight on the host.
#ifdef __METAL_VERSION__
struct Codes8 {
  uint low, high;
};
struct ScaleCodes {
  uint byte;
};
constexpr Codes8 codes8(uint low, uint high) { return {low, high}; }

inline uint load_u16(const device uchar* at) { return *(const device ushort*)at; }
inline uint load_u32(const device uchar* at) {
  return as_type<uint>(ushort2(*(const device packed_ushort2*)at));
}
template <typename Codes>
inline Codes load_codes(const device uchar* at) {
  return {load_u32(at), load_u32(at + 4)};
}
template <>
inline ScaleCodes load_codes<ScaleCodes>(const device uchar* at) {
  return {*at};
}
inline float half_value(uint bits) { return float(as_type<half>(ushort(bits))); }
inline float load_scale(const device uchar* at) { return half_value(load_u16(at)); }

// The same byte in all.
constexpr uint four(uint byte) { return byte * 0x01010101u; }
template <typename Codes>
constexpr Codes all(uint byte) {
  return {four(byte), four(byte)};
}
template <>
constexpr ScaleCodes all<ScaleCodes>(uint byte) {
  return {byte};
}

constexpr Codes8 shifted(Codes8 a, int right) {
  return {a.low >> right, a.high >> right};
}
constexpr Codes8 raised(Codes8 a, int left) { return {a.low << left, a.high << left}; }
constexpr Codes8 both(Codes8 a, Codes8 b) { return {a.low & b.low, a.high & b.high}; }
constexpr Codes8 either(Codes8 a, Codes8 b) { return {a.low ^ b.low, a.high ^ b.high}; }
constexpr Codes8 plus(Codes8 a, Codes8 b) { return {a.low + b.low, a.high + b.high}; }
constexpr Codes8 times(Codes8 a, uint factor) {
  return {a.low * factor, a.high * factor};
}

constexpr ScaleCodes shifted(ScaleCodes a, int right) { return {a.byte >> right}; }
constexpr ScaleCodes raised(ScaleCodes a, int left) { return {a.byte << left}; }
constexpr ScaleCodes both(ScaleCodes a, ScaleCodes b) { return {a.byte & b.byte}; }
constexpr ScaleCodes either(ScaleCodes a, ScaleCodes b) { return {a.byte ^ b.byte}; }
constexpr ScaleCodes plus(ScaleCodes a, ScaleCodes b) { return {a.byte + b.byte}; }

// The lowest eight bits, one in each byte.
constexpr Codes8 spread_eight(uint bits) {
  return both(
      Codes8{(bits & 15u) * 0x00204081u, (bits >> 4 & 15u) * 0x00204081u},
      all<Codes8>(1));
}
template <typename Codes>
constexpr Codes spread(uint bits) {
  return spread_eight(bits);
}
#else
struct Codes8 {
  uint64_t bytes;
};
using ScaleCodes = Codes8;
struct Codes16 {
  simd::Bytes16 bytes;
};
constexpr Codes8 codes8(uint32_t low, uint32_t high) {
  return {low | static_cast<uint64_t>(high) << 32};
}

inline uint32_t load_u16(const uint8_t* at) {
  uint16_t value;
  std::memcpy(&value, at, sizeof(value));
  return value;
}
inline uint32_t load_u32(const uint8_t* at) {
  uint32_t value;
  std::memcpy(&value, at, sizeof(value));
  return value;
}
template <typename Codes>
inline Codes load_codes(const uint8_t* at) {
  Codes codes;
  std::memcpy(&codes, at, sizeof(codes));
  return codes;
}
inline float half_value(uint32_t bits) { return f16_to_f32(static_cast<uint16_t>(bits)); }
inline float load_scale(const uint8_t* at) { return half_value(load_u16(at)); }

constexpr uint32_t four(uint32_t byte) { return byte * 0x01010101u; }
template <typename Codes>
constexpr Codes all(uint64_t byte) {
  return {byte * 0x0101010101010101u + decltype(Codes::bytes){}};
}

template <typename Codes>
constexpr Codes shifted(Codes a, int right) {
  return {a.bytes >> right};
}
template <typename Codes>
constexpr Codes raised(Codes a, int left) {
  return {a.bytes << left};
}
template <typename Codes>
constexpr Codes both(Codes a, Codes b) {
  return {a.bytes & b.bytes};
}
template <typename Codes>
constexpr Codes either(Codes a, Codes b) {
  return {a.bytes ^ b.bytes};
}
template <typename Codes>
constexpr Codes plus(Codes a, Codes b) {
  return {a.bytes + b.bytes};
}
constexpr Codes8 times(Codes8 a, uint32_t factor) { return {a.bytes * factor}; }

constexpr Codes8 spread_eight(uint32_t bits) {
  const uint64_t low = (bits & 15u) * 0x00204081u, high = (bits >> 4 & 15u) * 0x00204081u;
  return both(Codes8{low | high << 32}, all<Codes8>(1));
}
template <typename Codes>
constexpr Codes spread(uint32_t bits) {
  return {simd::Bytes16{spread_eight(bits).bytes, spread_eight(bits >> 8).bytes}};
}
#endif

// Bits [right, right + n) of each byte, n given by the mask.
template <typename Codes>
inline Codes bits_of(Codes bytes, int right, uint32_t mask) {
  return both(shifted(bytes, right), all<Codes>(mask));
}

// Bytes of 0..127 less `offset`, of 0..127.
template <typename Codes>
inline Codes less(Codes a, uint32_t offset) {
  return either(plus(a, all<Codes>(128 - offset)), all<Codes>(128));
}

// Bytes of 1..127, negated where `signs` has ones.
inline Codes8 negated(Codes8 a, Codes8 signs) {
  return plus(either(a, signs), both(signs, all<Codes8>(1)));
}

#ifndef __METAL_VERSION__
// The same with byte arithmetic.
using Int8x16 = int8_t __attribute__((vector_size(16)));
inline Codes16 less(Codes16 a, int offset) {
  return {(simd::Bytes16)((Int8x16)a.bytes - static_cast<int8_t>(offset))};
}
inline Codes16 negated(Codes16 a, Codes16 signs) {
  return {(simd::Bytes16)((Int8x16)(a.bytes ^ signs.bytes) - (Int8x16)signs.bytes)};
}
#endif

DSV4_END_KERNELS
