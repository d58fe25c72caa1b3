// <metal_integer>.
#pragma once

#include "msl_type_traits.h"

namespace metal {

namespace _msl {

template <class T>
inline constexpr int kBits = int(sizeof(T)) * 8;
template <class T>
constexpr ulong zero_extended(T x) {
  return ulong(make_unsigned_t<T>(x));
}

}  // namespace _msl

#define MSL_INTEGER(T)                                                                  \
  MSL_INLINE constexpr T min(T a, T b) { return b < a ? b : a; }                        \
  MSL_INLINE constexpr T max(T a, T b) { return a < b ? b : a; }                        \
  MSL_INLINE constexpr T clamp(T x, T low, T high) { return min(max(x, low), high); }   \
  MSL_INLINE constexpr T abs(T x) { return x < T(0) ? T(-x) : x; }                      \
  MSL_INLINE T select(T a, T b, bool second) { return second ? b : a; }                 \
  MSL_INLINE make_unsigned_t<T> absdiff(T a, T b) {                                     \
    const make_unsigned_t<T> ua = a, ub = b;                                            \
    return a > b ? ua - ub : ub - ua;                                                   \
  }                                                                                     \
  MSL_INLINE T popcount(T x) { return T(__builtin_popcountl(_msl::zero_extended(x))); } \
  MSL_INLINE T clz(T x) {                                                               \
    const ulong u = _msl::zero_extended(x);                                             \
    return T(u == 0 ? _msl::kBits<T> : __builtin_clzl(u) - (64 - _msl::kBits<T>));      \
  }                                                                                     \
  MSL_INLINE T ctz(T x) {                                                               \
    const ulong u = _msl::zero_extended(x);                                             \
    return T(u == 0 ? _msl::kBits<T> : __builtin_ctzl(u));                              \
  }                                                                                     \
  MSL_INLINE T reverse_bits(T x) {                                                      \
    return T(__builtin_bitreverse64(_msl::zero_extended(x)) >> (64 - _msl::kBits<T>));  \
  }                                                                                     \
  MSL_INLINE T rotate(T x, T n) {                                                       \
    const ulong u = _msl::zero_extended(x);                                             \
    const uint k = uint(n) % _msl::kBits<T>;                                            \
    return k == 0 ? x : T(u << k | u >> (_msl::kBits<T> - k));                          \
  }                                                                                     \
  MSL_INLINE T extract_bits(T x, uint offset, uint bits) {                              \
    if (bits == 0) {                                                                    \
      return 0;                                                                         \
    }                                                                                   \
    const auto top =                                                                    \
        make_unsigned_t<T>(make_unsigned_t<T>(x) << (_msl::kBits<T> - offset - bits));  \
    return T(T(top) >> (_msl::kBits<T> - bits));                                        \
  }                                                                                     \
  MSL_INLINE T insert_bits(T base, T inserted, uint offset, uint bits) {                \
    const ulong ones = bits >= 64 ? ~0ul : (1ul << bits) - 1;                           \
    const T mask = T(ones << offset);                                                   \
    return T((base & ~mask) | (T(ulong(inserted) << offset) & mask));                   \
  }
MSL_EACH_INTEGER(MSL_INTEGER)
#undef MSL_INTEGER

MSL_INLINE bool select(bool a, bool b, bool second) { return second ? b : a; }
MSL_INLINE ushort mulhi(ushort a, ushort b) { return ushort((uint(a) * uint(b)) >> 16); }
MSL_INLINE int mulhi(int a, int b) { return int((long(a) * long(b)) >> 32); }
MSL_INLINE uint mulhi(uint a, uint b) { return uint((ulong(a) * ulong(b)) >> 32); }
MSL_INLINE long mulhi(long a, long b) { return long(((__int128)a * b) >> 64); }
MSL_INLINE ulong mulhi(ulong a, ulong b) {
  return ulong(((unsigned __int128)a * b) >> 64);
}

}  // namespace metal
