// Functions of vectors: the scalar ones by component, <metal_geometric>, <metal_relational>.
#pragma once

#include "msl_integers.h"
#include "msl_math.h"

namespace metal {
namespace _msl {

// The vector type of an operation on two vectors of a type, or on a vector and a scalar.
template <class A, class B, class = void>
struct common {};
template <class A, class B>
struct common<
    A,
    B,
    enable_if_t<
        (n_components<A>::value > 1) && (n_components<B>::value > 1) &&
        is_same_v<plain_t<A>, plain_t<B>>>> : type_identity<plain_t<A>> {};
template <class A, class B>
struct common<A, B, enable_if_t<(n_components<A>::value > 1) && is_arithmetic_v<B>>>
    : type_identity<plain_t<A>> {};
template <class A, class B>
struct common<A, B, enable_if_t<(n_components<B>::value > 1) && is_arithmetic_v<A>>>
    : type_identity<plain_t<B>> {};
template <class A, class B>
using common_t = typename common<A, B>::type;
template <class V>
using mask = vec<bool, V::kComponents>;

}  // namespace _msl

#define MSL_EACH_OF(V) for (int i = 0; i < V::kComponents; i++)
#define MSL_UNARY(name)                          \
  template <class A, class V = _msl::plain_t<A>> \
  MSL_INLINE V name(const A& a_) {               \
    V a = a_, r{};                               \
    MSL_EACH_OF(V) r.s[i] = name(a.s[i]);        \
    return r;                                    \
  }
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
MSL_UNARY(floor)
MSL_UNARY(ceil)
MSL_UNARY(trunc)
MSL_UNARY(round)
MSL_UNARY(rint)
MSL_UNARY(sqrt)
MSL_UNARY(rsqrt)
MSL_UNARY(fract)
MSL_UNARY(fabs)
MSL_UNARY(abs)
MSL_UNARY(sign)
MSL_UNARY(saturate)
MSL_UNARY(popcount)
MSL_UNARY(clz)
MSL_UNARY(ctz)
#undef MSL_UNARY

#define MSL_RELATIONAL(name)                     \
  template <class A, class V = _msl::plain_t<A>> \
  MSL_INLINE _msl::mask<V> name(const A& a_) {   \
    const V a = a_;                              \
    _msl::mask<V> r{};                           \
    MSL_EACH_OF(V) r.s[i] = name(a.s[i]);        \
    return r;                                    \
  }
MSL_RELATIONAL(isnan)
MSL_RELATIONAL(isinf)
MSL_RELATIONAL(isfinite)
#undef MSL_RELATIONAL

#define MSL_BINARY(name)                                      \
  template <class A, class B, class V = _msl::common_t<A, B>> \
  MSL_INLINE V name(const A& a_, const B& b_) {               \
    V a = a_, b = b_, r{};                                    \
    MSL_EACH_OF(V) r.s[i] = name(a.s[i], b.s[i]);             \
    return r;                                                 \
  }
MSL_BINARY(pow)
MSL_BINARY(powr)
MSL_BINARY(fmod)
MSL_BINARY(atan2)
MSL_BINARY(fmax)
MSL_BINARY(fmin)
MSL_BINARY(max)
MSL_BINARY(min)
MSL_BINARY(copysign)
MSL_BINARY(step)
MSL_BINARY(divide)
#undef MSL_BINARY

#define MSL_TERNARY(name)                                          \
  template <class A, class B, class C, class V = _msl::plain_t<A>> \
  MSL_INLINE V name(const A& a_, const B& b_, const C& c_) {       \
    V a = a_, b = b_, c = c_, r{};                                 \
    MSL_EACH_OF(V) r.s[i] = name(a.s[i], b.s[i], c.s[i]);          \
    return r;                                                      \
  }
MSL_TERNARY(fma)
MSL_TERNARY(clamp)
MSL_TERNARY(mix)
#undef MSL_TERNARY

template <
    class A,
    class B,
    class C,
    class V = _msl::common_t<A, B>,
    class = _msl::plain_t<C>>
MSL_INLINE V select(const A& a_, const B& b_, const C& second_) {
  V a = a_, b = b_, r{};
  const _msl::mask<V> second = second_;
  MSL_EACH_OF(V) r.s[i] = second.s[i] ? b.s[i] : a.s[i];
  return r;
}

// The products are added in order, each sum rounded.
template <class A, class B, class V = _msl::common_t<A, B>>
MSL_INLINE typename V::element dot(const A& a_, const B& b_) {
  using T = typename V::element;
  const V a = a_, b = b_;
  T sum = a.s[0] * b.s[0];
  for (int i = 1; i < V::kComponents; i++) {
    sum = T(sum + a.s[i] * b.s[i]);
  }
  return sum;
}
template <class A, class V = _msl::plain_t<A>>
MSL_INLINE typename V::element length_squared(const A& a) {
  return dot(a, a);
}
template <class A, class V = _msl::plain_t<A>>
MSL_INLINE typename V::element length(const A& a) {
  return sqrt(dot(a, a));
}
template <class A, class B, class V = _msl::common_t<A, B>>
MSL_INLINE typename V::element distance(const A& a, const B& b) {
  return length(V(a) - V(b));
}
template <class A, class V = _msl::plain_t<A>>
MSL_INLINE V normalize(const A& a) {
  return V(a) * rsqrt(dot(a, a));
}
template <class T>
MSL_INLINE vec<T, 3> cross(const vec<T, 3>& a, const vec<T, 3>& b) {
  return {a.y * b.z - a.z * b.y, a.z * b.x - a.x * b.z, a.x * b.y - a.y * b.x};
}

template <int N>
MSL_INLINE bool any(const vec<bool, N>& v) {
  bool found = false;
  MSL_EACH_COMPONENT found |= v.s[i];
  return found;
}
template <int N>
MSL_INLINE bool all(const vec<bool, N>& v) {
  bool found = true;
  MSL_EACH_COMPONENT found &= v.s[i];
  return found;
}
MSL_INLINE bool any(bool v) { return v; }
MSL_INLINE bool all(bool v) { return v; }

// Nothing is fast here: both namespaces round like the host's library.
#define MSL_USING(f) using metal::f;
#define MSL_PRECISION                                                                    \
  MSL_USING(exp)                                                                         \
  MSL_USING(exp2)                                                                        \
  MSL_USING(exp10)                                                                       \
  MSL_USING(log)                                                                         \
  MSL_USING(log2) MSL_USING(log10) MSL_USING(sin) MSL_USING(cos) MSL_USING(tan)          \
      MSL_USING(asin) MSL_USING(acos) MSL_USING(atan) MSL_USING(sinh) MSL_USING(cosh)    \
          MSL_USING(tanh) MSL_USING(floor) MSL_USING(ceil) MSL_USING(trunc)              \
              MSL_USING(round) MSL_USING(rint) MSL_USING(sqrt) MSL_USING(rsqrt)          \
                  MSL_USING(fract) MSL_USING(fabs) MSL_USING(abs) MSL_USING(sign)        \
                      MSL_USING(saturate) MSL_USING(pow) MSL_USING(powr) MSL_USING(fmod) \
                          MSL_USING(atan2) MSL_USING(fmax) MSL_USING(fmin)               \
                              MSL_USING(max) MSL_USING(min) MSL_USING(clamp)             \
                                  MSL_USING(mix) MSL_USING(copysign) MSL_USING(divide)   \
                                      MSL_USING(sinpi) MSL_USING(cospi)
namespace fast {
MSL_PRECISION
}
namespace precise {
MSL_PRECISION
}
#undef MSL_PRECISION
#undef MSL_USING

}  // namespace metal
