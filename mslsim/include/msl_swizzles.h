// Swizzles, `v.xw`: members that overlay the components of a vector.
#pragma once

#include "msl_type_traits.h"

namespace metal {

template <class T, int N>
struct vec;

namespace _msl {

// The components I... of a vector of P components, as a vector V. Every vector type has dozens
// of them as members, so that each member function here costs compile time.
template <class V, class T, int P, int... I>
struct swizzle {
  T components[P];

  swizzle() = default;
  swizzle(const swizzle&) = default;
  MSL_INLINE constexpr operator V() const { return V(components[I]...); }
  MSL_INLINE constexpr swizzle& operator=(const V& v) {
    int k = 0;
    ((components[I] = v.s[k++]), ...);
    return *this;
  }
  // v.xy = w.xy: these two components, not all P.
  MSL_INLINE constexpr swizzle& operator=(const swizzle& other) {
    return *this = V(other);
  }
};

#define MSL_COMPOUND(op)                                \
  template <class V, class T, int P, int... I, class B> \
  MSL_INLINE swizzle<V, T, P, I...>& operator op## =    \
      (swizzle<V, T, P, I...> & a, const B& b) {        \
    return a = V(V(a) op b);                            \
  }
MSL_COMPOUND(+)
MSL_COMPOUND(-)
MSL_COMPOUND(*)
MSL_COMPOUND(/)
#undef MSL_COMPOUND

}  // namespace _msl

// The members. Pairs come with all components; names of three and four with each component
// once, because the others would triple the time to compile a kernel.
#define MSL_PAIR(P, A, a, B, b) _msl::swizzle<vec<T, 2>, T, P, a, b> A##B;
#define MSL_TRIPLE(P, A, a, B, b, C, c) _msl::swizzle<vec<T, 3>, T, P, a, b, c> A##B##C;
#define MSL_QUADRUPLE(A, a, B, b, C, c, D, d) \
  _msl::swizzle<vec<T, 4>, T, 4, a, b, c, d> A##B##C##D;

#define MSL_PAIRS_OF_TWO(P, A, a, B, b) MSL_PAIR(P, A, a, B, b) MSL_PAIR(P, B, b, A, a)
#define MSL_TRIPLES_OF_THREE(P, A, a, B, b, C, c) \
  MSL_TRIPLE(P, A, a, B, b, C, c)                 \
  MSL_TRIPLE(P, A, a, C, c, B, b)                 \
  MSL_TRIPLE(P, B, b, A, a, C, c)                 \
  MSL_TRIPLE(P, B, b, C, c, A, a)                 \
  MSL_TRIPLE(P, C, c, A, a, B, b) MSL_TRIPLE(P, C, c, B, b, A, a)
#define MSL_QUADRUPLES_FROM(A, a, B, b, C, c, D, d) \
  MSL_QUADRUPLE(A, a, B, b, C, c, D, d)             \
  MSL_QUADRUPLE(A, a, B, b, D, d, C, c)             \
  MSL_QUADRUPLE(A, a, C, c, B, b, D, d)             \
  MSL_QUADRUPLE(A, a, C, c, D, d, B, b)             \
  MSL_QUADRUPLE(A, a, D, d, B, b, C, c) MSL_QUADRUPLE(A, a, D, d, C, c, B, b)

#define MSL_SWIZZLES_2(P) \
  MSL_PAIR(P, x, 0, x, 0) MSL_PAIR(P, y, 1, y, 1) MSL_PAIRS_OF_TWO(P, x, 0, y, 1)
#define MSL_SWIZZLES_3(P)         \
  MSL_SWIZZLES_2(P)               \
  MSL_PAIR(P, z, 2, z, 2)         \
  MSL_PAIRS_OF_TWO(P, x, 0, z, 2) \
  MSL_PAIRS_OF_TWO(P, y, 1, z, 2) MSL_TRIPLES_OF_THREE(P, x, 0, y, 1, z, 2)
#define MSL_TRIPLES_WITH_W                  \
  MSL_TRIPLES_OF_THREE(4, x, 0, y, 1, w, 3) \
  MSL_TRIPLES_OF_THREE(4, x, 0, z, 2, w, 3) \
  MSL_TRIPLES_OF_THREE(4, y, 1, z, 2, w, 3)
#define MSL_QUADRUPLES                        \
  MSL_QUADRUPLES_FROM(x, 0, y, 1, z, 2, w, 3) \
  MSL_QUADRUPLES_FROM(y, 1, x, 0, z, 2, w, 3) \
  MSL_QUADRUPLES_FROM(z, 2, x, 0, y, 1, w, 3) \
  MSL_QUADRUPLES_FROM(w, 3, x, 0, y, 1, z, 2)
#define MSL_SWIZZLES_4            \
  MSL_SWIZZLES_3(4)               \
  MSL_PAIR(4, w, 3, w, 3)         \
  MSL_PAIRS_OF_TWO(4, x, 0, w, 3) \
  MSL_PAIRS_OF_TWO(4, y, 1, w, 3) \
  MSL_PAIRS_OF_TWO(4, z, 2, w, 3) MSL_TRIPLES_WITH_W MSL_QUADRUPLES

}  // namespace metal
