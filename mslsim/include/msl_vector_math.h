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
namespace precise {
using metal::abs, metal::acos, metal::asin, metal::atan, metal::atan2, metal::ceil;
using metal::clamp, metal::copysign, metal::cos, metal::cosh, metal::cospi, metal::divide;
using metal::exp, metal::exp10, metal::exp2, metal::fabs, metal::floor, metal::fmax;
using metal::fmin, metal::fmod, metal::fract, metal::log, metal::log10, metal::log2;
using metal::max, metal::min, metal::mix, metal::pow, metal::powr, metal::rint;
using metal::round, metal::rsqrt, metal::saturate, metal::sign, metal::sin, metal::sinh;
using metal::sinpi, metal::sqrt, metal::tan, metal::tanh, metal::trunc;
}  // namespace precise
namespace fast {
using namespace precise;
}

}  // namespace metal
