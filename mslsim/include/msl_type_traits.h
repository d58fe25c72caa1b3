// <metal_type_traits>.
#pragma once

#include "msl_types.h"

namespace metal {

template <class T, T v>
struct integral_constant {
  static constexpr T value = v;
  using value_type = T;
  using type = integral_constant;
  constexpr operator T() const noexcept { return v; }
  constexpr T operator()() const noexcept { return v; }
};
template <bool B>
using bool_constant = integral_constant<bool, B>;
using true_type = bool_constant<true>;
using false_type = bool_constant<false>;

template <class A, class B>
struct is_same : false_type {};
template <class A>
struct is_same<A, A> : true_type {};

template <bool B, class T = void>
struct enable_if {};
template <class T>
struct enable_if<true, T> {
  using type = T;
};
template <bool B, class T = void>
using enable_if_t = typename enable_if<B, T>::type;

template <bool B, class T, class F>
struct conditional {
  using type = T;
};
template <class T, class F>
struct conditional<false, T, F> {
  using type = F;
};
template <bool B, class T, class F>
using conditional_t = typename conditional<B, T, F>::type;

template <class T>
struct type_identity {
  using type = T;
};
template <class T>
struct remove_const : type_identity<T> {};
template <class T>
struct remove_const<const T> : type_identity<T> {};
template <class T>
struct remove_volatile : type_identity<T> {};
template <class T>
struct remove_volatile<volatile T> : type_identity<T> {};
template <class T>
struct remove_cv : remove_const<typename remove_volatile<T>::type> {};
template <class T>
struct remove_reference : type_identity<T> {};
template <class T>
struct remove_reference<T&> : type_identity<T> {};
template <class T>
struct remove_reference<T&&> : type_identity<T> {};
template <class T>
struct remove_pointer : type_identity<T> {};
template <class T>
struct remove_pointer<T*> : type_identity<T> {};
template <class T>
struct remove_cvref : remove_cv<typename remove_reference<T>::type> {};
template <class T>
struct decay : remove_cvref<T> {};
// Address spaces are gone; `constant T` has become `const T`.
template <class T>
struct remove_addrspace : remove_cv<T> {};

template <class T>
using remove_const_t = typename remove_const<T>::type;
template <class T>
using remove_cv_t = typename remove_cv<T>::type;
template <class T>
using remove_reference_t = typename remove_reference<T>::type;
template <class T>
using remove_pointer_t = typename remove_pointer<T>::type;
template <class T>
using remove_cvref_t = typename remove_cvref<T>::type;
template <class T>
using remove_addrspace_t = typename remove_addrspace<T>::type;
template <class T>
using decay_t = typename decay<T>::type;

template <class... B>
struct conjunction : bool_constant<(... && bool(B::value))> {};
template <class... B>
struct disjunction : bool_constant<(... || bool(B::value))> {};
template <class B>
struct negation : bool_constant<!bool(B::value)> {};

template <class T>
struct is_integral : bool_constant<__is_integral(T)> {};
template <class T>
struct is_floating_point
    : bool_constant<
          is_same<remove_cv_t<T>, float>::value || is_same<remove_cv_t<T>, half>::value ||
          is_same<remove_cv_t<T>, bfloat>::value> {};
template <class T>
struct is_arithmetic
    : bool_constant<is_integral<T>::value || is_floating_point<T>::value> {};
template <class T>
struct is_scalar : is_arithmetic<T> {};
template <class T>
struct is_signed
    : bool_constant<is_floating_point<T>::value || (__is_integral(T) && T(-1) < T(0))> {};
template <class T>
struct is_unsigned : bool_constant<__is_integral(T) && !is_signed<T>::value> {};
template <class T>
struct is_pointer : false_type {};
template <class T>
struct is_pointer<T*> : true_type {};
template <class T>
struct is_void : bool_constant<__is_void(T)> {};
template <class T>
struct is_enum : bool_constant<__is_enum(T)> {};
template <class T>
struct is_class : bool_constant<__is_class(T)> {};
template <class From, class To>
struct is_convertible : bool_constant<__is_convertible_to(From, To)> {};
template <class T, class... A>
struct is_constructible : bool_constant<__is_constructible(T, A...)> {};
template <class Base, class Derived>
struct is_base_of : bool_constant<__is_base_of(Base, Derived)> {};

template <class A, class B>
inline constexpr bool is_same_v = is_same<A, B>::value;
template <class T>
inline constexpr bool is_integral_v = is_integral<T>::value;
template <class T>
inline constexpr bool is_floating_point_v = is_floating_point<T>::value;
template <class T>
inline constexpr bool is_arithmetic_v = is_arithmetic<T>::value;
template <class T>
inline constexpr bool is_scalar_v = is_scalar<T>::value;
template <class T>
inline constexpr bool is_signed_v = is_signed<T>::value;
template <class T>
inline constexpr bool is_unsigned_v = is_unsigned<T>::value;
template <class T>
inline constexpr bool is_pointer_v = is_pointer<T>::value;
template <class From, class To>
inline constexpr bool is_convertible_v = is_convertible<From, To>::value;
template <class T, class... A>
inline constexpr bool is_constructible_v = is_constructible<T, A...>::value;
template <class Base, class Derived>
inline constexpr bool is_base_of_v = is_base_of<Base, Derived>::value;

template <class T>
struct make_unsigned;
#define MSL_UNSIGNED(T, U) \
  template <>              \
  struct make_unsigned<T> : type_identity<U> {};
MSL_UNSIGNED(char, uchar)
MSL_UNSIGNED(int8_t, uchar)
MSL_UNSIGNED(uchar, uchar)
MSL_UNSIGNED(short, ushort)
MSL_UNSIGNED(ushort, ushort)
MSL_UNSIGNED(int, uint)
MSL_UNSIGNED(uint, uint)
MSL_UNSIGNED(long, ulong)
MSL_UNSIGNED(ulong, ulong)
#undef MSL_UNSIGNED
template <class T>
using make_unsigned_t = typename make_unsigned<T>::type;

template <class T>
T&& declval() noexcept;

template <class T>
constexpr void swap(T& a, T& b) {
  const T t = a;
  a = b;
  b = t;
}

}  // namespace metal
