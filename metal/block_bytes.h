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

// Eight integers of one byte: two words on the GPU, one on the host.
#ifdef __METAL_VERSION__
struct Codes8 {
  uint low, high;
};
constexpr Codes8 codes8(uint low, uint high) { return {low, high}; }

inline uint load_u16(const device uchar* at) { return *(const device ushort*)at; }
inline uint load_u32(const device uchar* at) {
  return as_type<uint>(ushort2(*(const device packed_ushort2*)at));
}
inline Codes8 load_codes(const device uchar* at) {
  return {load_u32(at), load_u32(at + 4)};
}
inline float half_value(uint bits) { return float(as_type<half>(ushort(bits))); }
inline float load_scale(const device uchar* at) { return half_value(load_u16(at)); }

// Each byte repeated in all.
constexpr uint four(uint byte) { return byte * 0x01010101u; }
constexpr Codes8 eight(uint byte) { return {four(byte), four(byte)}; }

constexpr Codes8 shifted(Codes8 a, int right) {
  return {a.low >> right, a.high >> right};
}
constexpr Codes8 both(Codes8 a, Codes8 b) { return {a.low & b.low, a.high & b.high}; }
constexpr Codes8 either(Codes8 a, Codes8 b) { return {a.low ^ b.low, a.high ^ b.high}; }
constexpr Codes8 plus(Codes8 a, Codes8 b) { return {a.low + b.low, a.high + b.high}; }
constexpr Codes8 times(Codes8 a, uint factor) {
  return {a.low * factor, a.high * factor};
}

// The lowest eight bits, one in each byte.
constexpr Codes8 spread(uint bits) {
  return both(
      Codes8{(bits & 15u) * 0x00204081u, (bits >> 4 & 15u) * 0x00204081u}, eight(1));
}
#else
struct Codes8 {
  uint64_t bytes;
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
inline Codes8 load_codes(const uint8_t* at) {
  Codes8 codes;
  std::memcpy(&codes, at, sizeof(codes));
  return codes;
}
inline float half_value(uint32_t bits) { return f16_to_f32(static_cast<uint16_t>(bits)); }
inline float load_scale(const uint8_t* at) { return half_value(load_u16(at)); }

constexpr uint32_t four(uint32_t byte) { return byte * 0x01010101u; }
constexpr Codes8 eight(uint64_t byte) { return {byte * 0x0101010101010101u}; }

constexpr Codes8 shifted(Codes8 a, int right) { return {a.bytes >> right}; }
constexpr Codes8 both(Codes8 a, Codes8 b) { return {a.bytes & b.bytes}; }
constexpr Codes8 either(Codes8 a, Codes8 b) { return {a.bytes ^ b.bytes}; }
constexpr Codes8 plus(Codes8 a, Codes8 b) { return {a.bytes + b.bytes}; }
constexpr Codes8 times(Codes8 a, uint32_t factor) { return {a.bytes * factor}; }

constexpr Codes8 spread(uint32_t bits) {
  const uint64_t low = (bits & 15u) * 0x00204081u, high = (bits >> 4 & 15u) * 0x00204081u;
  return both(Codes8{low | high << 32}, eight(1));
}
#endif

// Bits [right, right + n) of each byte, n given by the mask.
inline Codes8 bits_of(Codes8 bytes, int right, uint32_t mask) {
  return both(shifted(bytes, right), eight(mask));
}

// Bytes of 0..127 less `offset`, of 0..127.
inline Codes8 less(Codes8 a, uint32_t offset) {
  return either(plus(a, eight(128 - offset)), eight(128));
}

DSV4_END_KERNELS
