// Bytes of blocks and small integers four at a time, for the host's kernels and the GPU's alike.
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
#include <cstring>

#include "../csrc/half.h"
// The host compiles its kernels once per instruction set, each into a namespace of its own.
#define DSV4_BEGIN_KERNELS namespace mlx_dsv4::DSV4_ISA {
#define DSV4_END_KERNELS }
#endif

DSV4_BEGIN_KERNELS

// Eight integers from -128 to 127, the first in the lowest byte of `low`.
struct Codes8 {
  uint32_t low, high;
};

#ifdef __METAL_VERSION__
inline uint load_u16(const device uchar* at) { return *(const device ushort*)at; }
inline uint load_u32(const device uchar* at) {
  return as_type<uint>(ushort2(*(const device packed_ushort2*)at));
}
inline float load_scale(const device uchar* at) {
  return float(as_type<half>(*(const device ushort*)at));
}
inline float half_value(uint bits) { return float(as_type<half>(ushort(bits))); }
#else
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
inline float half_value(uint32_t bits) { return f16_to_f32(static_cast<uint16_t>(bits)); }
inline float load_scale(const uint8_t* at) { return half_value(load_u16(at)); }
#endif

template <typename Bytes>
inline Codes8 load_codes(Bytes at) {
  return {load_u32(at), load_u32(at + 4)};
}

// Each byte repeated in all four.
constexpr uint32_t four(uint32_t byte) { return byte * 0x01010101u; }

// Bits [shift, shift + n) of each byte, n given by the mask.
inline Codes8 bits_of(Codes8 bytes, int shift, uint32_t mask) {
  return {bytes.low >> shift & four(mask), bytes.high >> shift & four(mask)};
}

// Adds numbers whose bytes do not carry.
inline Codes8 plus(Codes8 a, Codes8 b) { return {a.low + b.low, a.high + b.high}; }

// Bytes of 0..127 less `offset`, of 0..127.
inline uint32_t four_less(uint32_t bytes, uint32_t offset) {
  return (bytes + four(128 - offset)) ^ four(128);
}
inline Codes8 less(Codes8 a, uint32_t offset) {
  return {four_less(a.low, offset), four_less(a.high, offset)};
}

// The lowest four bits, one in each byte.
inline uint32_t spread_bits(uint32_t bits) {
  return (bits & 15u) * 0x00204081u & 0x01010101u;
}
// The lowest eight bits, one in each byte.
inline Codes8 spread(uint32_t bits) {
  return {spread_bits(bits), spread_bits(bits >> 4)};
}

inline Codes8 times(Codes8 a, uint32_t factor) {
  return {a.low * factor, a.high * factor};
}

// Bytes of 1..127, negated where `bits` has a one.
inline uint32_t four_negated(uint32_t bytes, uint32_t ones) {
  return (bytes ^ ones * 255u) + ones;
}
inline Codes8 negated(Codes8 a, uint32_t bits) {
  const Codes8 ones = spread(bits);
  return {four_negated(a.low, ones.low), four_negated(a.high, ones.high)};
}

DSV4_END_KERNELS
