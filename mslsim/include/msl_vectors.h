// Vectors: vec<T, N>, the names float4, packed_float3, ..., and as_type.
#pragma once

#include "msl_swizzles.h"

namespace std {
// The compiler makes one of a list in braces.
template <class E>
class initializer_list {
  const E* begin_;
  size_t size_;

 public:
  constexpr size_t size() const { return size_; }
  constexpr const E* begin() const { return begin_; }
  constexpr const E* end() const { return begin_ + size_; }
};
}  // namespace std

namespace metal {

template <class T, int N>
struct packed_vec;

namespace _msl {

// What a vector, a swizzle or a packed vector is as a vector; nothing for other types.
template <class T>
struct plain {};
template <class T, int N>
struct plain<vec<T, N>> : type_identity<vec<T, N>> {};
template <class T, int N>
struct plain<packed_vec<T, N>> : type_identity<vec<T, N>> {};
template <class V, class T, int P, int... I>
struct plain<swizzle<V, T, P, I...>> : type_identity<V> {};
template <class T>
using plain_t = typename plain<T>::type;

// Components of a type; 1 for what is no vector.
template <class T, class = void>
struct n_components : integral_constant<int, 1> {};
template <class T>
struct n_components<T, enable_if_t<(sizeof(plain_t<T>) > 0)>>
    : integral_constant<int, plain_t<T>::kComponents> {};

template <class T, int N>
struct components;
template <class T>
struct alignas(sizeof(T) * 2) components<T, 2> {
  union {
    T s[2];
    struct {
      T x, y;
    };
    MSL_SWIZZLES_2(2)
  };
};
template <class T>
struct alignas(sizeof(T) * 4) components<T, 3> {
  union {
    T s[3];
    struct {
      T x, y, z;
    };
    MSL_SWIZZLES_3(3)
  };
};
template <class T>
struct alignas(sizeof(T) * 4) components<T, 4> {
  union {
    T s[4];
    struct {
      T x, y, z, w;
    };
    MSL_SWIZZLES_4
  };
};

}  // namespace _msl

#define MSL_EACH_COMPONENT for (int i = 0; i < N; i++)
#define MSL_BINARY(op)                                                      \
  friend MSL_INLINE constexpr vec operator op(const vec& a, const vec& b) { \
    vec r{};                                                                \
    MSL_EACH_COMPONENT r.s[i] = T(a.s[i] op b.s[i]);                        \
    return r;                                                               \
  }                                                                         \
  MSL_INLINE vec& operator op## = (const vec& b) {                          \
    MSL_EACH_COMPONENT s[i] = T(s[i] op b.s[i]);                            \
    return *this;                                                           \
  }
#define MSL_COMPARISON(op)                                                 \
  friend MSL_INLINE vec<bool, N> operator op(const vec& a, const vec& b) { \
    vec<bool, N> r{};                                                      \
    MSL_EACH_COMPONENT r.s[i] = a.s[i] op b.s[i];                          \
    return r;                                                              \
  }
#define MSL_UNARY(op)                               \
  friend MSL_INLINE vec operator op(const vec& a) { \
    vec r{};                                        \
    MSL_EACH_COMPONENT r.s[i] = T(op a.s[i]);       \
    return r;                                       \
  }

template <class T, int N>
struct vec : _msl::components<T, N> {
  using _msl::components<T, N>::s;
  using element = T;
  static constexpr int kComponents = N;

  vec() = default;
#if __has_feature(thread_sanitizer)
  // Not trivial where accesses are checked: a trivial copy of *p says nothing of p's alignment.
  MSL_INLINE constexpr vec(const vec& o) : vec() { MSL_EACH_COMPONENT s[i] = o.s[i]; }
#else
  vec(const vec&) = default;
#endif
  MSL_INLINE constexpr vec& operator=(const vec& o) {
    MSL_EACH_COMPONENT s[i] = o.s[i];
    return *this;
  }
  // A scalar stands for a vector without being asked.
  template <class U, enable_if_t<is_arithmetic_v<U> || __is_enum(U), int> = 0>
  MSL_INLINE constexpr vec(U value) : vec() {
    MSL_EACH_COMPONENT s[i] = T(value);
  }
  // Other elements convert only when asked.
  template <class U, enable_if_t<!is_same_v<U, T>, int> = 0>
  MSL_INLINE constexpr explicit vec(const vec<U, N>& o) : vec() {
    MSL_EACH_COMPONENT s[i] = T(o.s[i]);
  }
  template <
      class S,
      class P = _msl::plain_t<S>,
      enable_if_t<!is_same_v<S, P> && !is_same_v<P, vec> && P::kComponents == N, int> = 0>
  MSL_INLINE constexpr explicit vec(const S& o) : vec(P(o)) {}
  // Scalars and vectors that add up to N components.
  template <
      class A,
      class B,
      class... C,
      enable_if_t<
          _msl::n_components<A>::value + _msl::n_components<B>::value +
                  (0 + ... + _msl::n_components<C>::value) ==
              N,
          int> = 0>
  MSL_INLINE constexpr vec(const A& a, const B& b, const C&... c) : vec() {
    int k = 0;
    put(k, a);
    put(k, b);
    (put(k, c), ...);
  }
  // uint4 k = {a, b, c}: the rest is 0.
  MSL_INLINE constexpr vec(std::initializer_list<T> list) : vec() {
    MSL_EACH_COMPONENT s[i] = i < int(list.size()) ? list.begin()[i] : T(0);
  }

  MSL_INLINE constexpr T& operator[](size_t i) { return s[i]; }
  MSL_INLINE constexpr const T& operator[](size_t i) const { return s[i]; }
  MSL_INLINE vec& operator++() { return *this += vec(T(1)); }
  MSL_INLINE vec& operator--() { return *this -= vec(T(1)); }
  MSL_BINARY(+)
  MSL_BINARY(-)
  MSL_BINARY(*)
  MSL_BINARY(/)
  MSL_BINARY(%)
  MSL_BINARY(&)
  MSL_BINARY(|)
  MSL_BINARY(^)
  MSL_BINARY(<<)
  MSL_BINARY(>>)
  MSL_COMPARISON(<)
  MSL_COMPARISON(>)
  MSL_COMPARISON(<=)
  MSL_COMPARISON(>=)
  MSL_COMPARISON(==)
  MSL_COMPARISON(!=)
  MSL_COMPARISON(&&)
  MSL_COMPARISON(||)
  MSL_UNARY(-)
  MSL_UNARY(+)
  MSL_UNARY(~)
  friend MSL_INLINE vec<bool, N> operator!(const vec& a) {
    vec<bool, N> r{};
    MSL_EACH_COMPONENT r.s[i] = !a.s[i];
    return r;
  }

 private:
  template <class A>
  MSL_INLINE constexpr void put(int& k, const A& a) {
    if constexpr (_msl::n_components<A>::value == 1) {
      s[k++] = T(a);
    } else {
      const _msl::plain_t<A> v = a;
      for (int i = 0; i < v.kComponents; i++) {
        s[k++] = T(v.s[i]);
      }
    }
  }
};
#undef MSL_BINARY
#undef MSL_COMPARISON
#undef MSL_UNARY

namespace _msl {

template <class T, int N>
struct packed_components;
template <class T>
struct packed_components<T, 2> {
  union {
    T s[2];
    struct {
      T x, y;
    };
  };
};
template <class T>
struct packed_components<T, 3> {
  union {
    T s[3];
    struct {
      T x, y, z;
    };
  };
};
template <class T>
struct packed_components<T, 4> {
  union {
    T s[4];
    struct {
      T x, y, z, w;
    };
  };
};

}  // namespace _msl

// A vector with the alignment of its elements: it is loaded, then computed with.
template <class T, int N>
struct packed_vec : _msl::packed_components<T, N> {
  packed_vec() = default;
  packed_vec(const packed_vec&) = default;
  packed_vec& operator=(const packed_vec&) = default;
  MSL_INLINE packed_vec(const vec<T, N>& v) { MSL_EACH_COMPONENT this->s[i] = v.s[i]; }
  template <class... A, enable_if_t<(sizeof...(A) > 1), int> = 0>
  MSL_INLINE packed_vec(const A&... a) : packed_vec(vec<T, N>(a...)) {}
  template <class U, enable_if_t<is_arithmetic_v<U>, int> = 0>
  MSL_INLINE explicit packed_vec(U value) : packed_vec(vec<T, N>(value)) {}
  MSL_INLINE operator vec<T, N>() const {
    vec<T, N> v{};
    MSL_EACH_COMPONENT v.s[i] = this->s[i];
    return v;
  }
  MSL_INLINE T& operator[](size_t i) { return this->s[i]; }
  MSL_INLINE const T& operator[](size_t i) const { return this->s[i]; }
};

}  // namespace metal

// float2 and its like are global and in metal::. Their sizes are asked for here so that the
// precompiled header has them complete.
#define MSL_VECTORS(T)                                                             \
  typedef metal::vec<T, 2> T##2;                                                   \
  typedef metal::vec<T, 3> T##3;                                                   \
  typedef metal::vec<T, 4> T##4;                                                   \
  typedef metal::packed_vec<T, 2> packed_##T##2;                                   \
  typedef metal::packed_vec<T, 3> packed_##T##3;                                   \
  typedef metal::packed_vec<T, 4> packed_##T##4;                                   \
  static_assert(sizeof(T##2) * 2 == sizeof(T##4) && sizeof(T##3) == sizeof(T##4)); \
  namespace metal {                                                                \
  using ::T##2;                                                                    \
  using ::T##3;                                                                    \
  using ::T##4;                                                                    \
  using ::packed_##T##2;                                                           \
  using ::packed_##T##3;                                                           \
  using ::packed_##T##4;                                                           \
  }
MSL_EACH_SCALAR(MSL_VECTORS)
#undef MSL_VECTORS

namespace metal {
using ::bfloat;
using ::half;
}  // namespace metal

// The same bits as another type.
template <class To, class From>
MSL_INLINE To as_type(const From& from) {
  To to;
  if constexpr (metal::_msl::n_components<From>::value > 1) {
    const metal::_msl::plain_t<From> vector = from;
    static_assert(sizeof(To) == sizeof(vector), "as_type: sizes differ");
    __builtin_memcpy((void*)&to, (const void*)&vector, sizeof(To));
  } else {
    static_assert(sizeof(To) == sizeof(From), "as_type: sizes differ");
    __builtin_memcpy((void*)&to, (const void*)&from, sizeof(To));
  }
  return to;
}
