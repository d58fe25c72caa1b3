// Scalar types of MSL. They are global, as in MSL.
#pragma once

// On a GPU, what the library does in a shader has the line of the shader that asked for it.
#ifdef __CUDA__
#define MSL_NO_LINES __attribute__((nodebug))
#else
#define MSL_NO_LINES
#endif
#define MSL_INLINE inline __attribute__((always_inline)) MSL_NO_LINES

typedef signed char int8_t;
typedef unsigned char uint8_t;
typedef short int16_t;
typedef unsigned short uint16_t;
typedef int int32_t;
typedef unsigned int uint32_t;
typedef long int64_t;
typedef unsigned long uint64_t;
typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long ulong;
typedef decltype(sizeof(0)) size_t;
typedef __PTRDIFF_TYPE__ ptrdiff_t;
typedef __UINTPTR_TYPE__ uintptr_t;
typedef __INTPTR_TYPE__ intptr_t;
typedef _Float16 half;  // every operation rounds: -ffloat16-excess-precision=none

// What is done for each type of a kind.
#define MSL_EACH_INTEGER(M) \
  M(char) M(int8_t) M(uchar) M(short) M(ushort) M(int) M(uint) M(long) M(ulong)
#define MSL_EACH_SCALAR(M) \
  M(bool)                  \
  M(char)                  \
  M(uchar) M(short) M(ushort) M(int) M(uint) M(long) M(ulong) M(half) M(bfloat) M(float)

namespace metal::_msl {
// Exists for integers alone.
#define MSL_DECLARE(I) void integers_only(I*);
MSL_EACH_INTEGER(MSL_DECLARE)
MSL_DECLARE(bool)
#undef MSL_DECLARE
}  // namespace metal::_msl

// A class, because MSL converts bfloat implicitly only to wider types: float and half become
// bfloat where the source says so. (clang's own type takes them silently.)
struct bfloat {
  unsigned short bits;

  bfloat() = default;
  MSL_NO_LINES constexpr explicit bfloat(float value) : bits(nearest_even(value)) {}
  MSL_NO_LINES constexpr explicit bfloat(half value) : bits(nearest_even(float(value))) {}
  template <class I, class = decltype(metal::_msl::integers_only((I*)0))>
  MSL_NO_LINES constexpr bfloat(I value) : bits(nearest_even(float(value))) {}
  MSL_NO_LINES constexpr operator float() const {
    return __builtin_bit_cast(float, unsigned(bits) << 16);
  }

  MSL_NO_LINES constexpr bfloat operator-() const { return bfloat(-float(*this)); }
  MSL_NO_LINES constexpr bfloat operator+() const { return *this; }
  MSL_NO_LINES bfloat& operator++() { return *this = bfloat(float(*this) + 1.0f); }

#define MSL_ARITHMETIC(op)                                                \
  MSL_NO_LINES friend constexpr bfloat operator op(bfloat a, bfloat b) {  \
    return bfloat(float(a) op float(b));                                  \
  }                                                                       \
  template <class I, class = decltype(metal::_msl::integers_only((I*)0))> \
  MSL_NO_LINES friend constexpr bfloat operator op(bfloat a, I b) {       \
    return bfloat(float(a) op float(bfloat(b)));                          \
  }                                                                       \
  template <class I, class = decltype(metal::_msl::integers_only((I*)0))> \
  MSL_NO_LINES friend constexpr bfloat operator op(I a, bfloat b) {       \
    return bfloat(float(bfloat(a)) op float(b));                          \
  }                                                                       \
  MSL_NO_LINES bfloat& operator op## = (float b) {                        \
    return *this = bfloat(float(*this) op b);                             \
  }
  MSL_ARITHMETIC(+)
  MSL_ARITHMETIC(-)
  MSL_ARITHMETIC(*)
  MSL_ARITHMETIC(/)
#undef MSL_ARITHMETIC

#define MSL_COMPARISON(op)                                                \
  MSL_NO_LINES friend constexpr bool operator op(bfloat a, bfloat b) {    \
    return float(a) op float(b);                                          \
  }                                                                       \
  template <class I, class = decltype(metal::_msl::integers_only((I*)0))> \
  MSL_NO_LINES friend constexpr bool operator op(bfloat a, I b) {         \
    return float(a) op float(b);                                          \
  }                                                                       \
  template <class I, class = decltype(metal::_msl::integers_only((I*)0))> \
  MSL_NO_LINES friend constexpr bool operator op(I a, bfloat b) {         \
    return float(a) op float(b);                                          \
  }
  MSL_COMPARISON(<)
  MSL_COMPARISON(>)
  MSL_COMPARISON(<=)
  MSL_COMPARISON(>=)
  MSL_COMPARISON(==)
  MSL_COMPARISON(!=)
#undef MSL_COMPARISON

 private:
  MSL_NO_LINES static constexpr unsigned short nearest_even(float value) {
    const unsigned u = __builtin_bit_cast(unsigned, value);
    if ((u & 0x7fffffffu) > 0x7f800000u) {
      return (unsigned short)((u >> 16) | 0x40);  // a quiet NaN
    }
    return (unsigned short)((u + 0x7fffu + ((u >> 16) & 1)) >> 16);
  }
};
