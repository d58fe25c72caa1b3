// Barriers, memory orders and atomics.
#pragma once

#ifdef __CUDA__
#include "msl_cuda.h"
#define MSL_ATOMIC_ORDER __ATOMIC_RELAXED
#else
#include "msl_abi.h"
#define MSL_ATOMIC_ORDER __ATOMIC_SEQ_CST
#endif
#include "msl_type_traits.h"

namespace metal {

enum class mem_flags : uint {
  mem_none = 0,
  mem_device = 1,
  mem_threadgroup = 2,
  mem_texture = 4,
};
MSL_INLINE constexpr mem_flags operator|(mem_flags a, mem_flags b) {
  return mem_flags(uint(a) | uint(b));
}
MSL_INLINE constexpr mem_flags operator&(mem_flags a, mem_flags b) {
  return mem_flags(uint(a) & uint(b));
}
// For device memory, MSL 3.1 has no other.
enum memory_order { memory_order_relaxed = 0 };
enum thread_scope {
  thread_scope_thread,
  thread_scope_simdgroup,
  thread_scope_threadgroup,
  thread_scope_device
};

MSL_INLINE void threadgroup_barrier(
    mem_flags flags, thread_scope = thread_scope_threadgroup) {
  __msl_threadgroup_barrier(uint(flags));
}
MSL_INLINE void simdgroup_barrier(
    mem_flags flags, thread_scope = thread_scope_simdgroup) {
  __msl_simdgroup_barrier(uint(flags));
}

template <class T>
struct atomic {
  T value;

  atomic() = default;
  atomic(const atomic&) = delete;
  atomic& operator=(const atomic&) = delete;
};

namespace _msl {

template <class T>
MSL_INLINE T* address(const volatile atomic<T>* a) {
  return (T*)&a->value;
}
// The integer that is exchanged in place of a value.
template <class T>
using bits_of =
    conditional_t<sizeof(T) == 8, ulong, conditional_t<sizeof(T) == 1, uchar, uint>>;
template <class To, class From>
MSL_INLINE To same_bits(const From& from) {
  To to;
  static_assert(sizeof(To) == sizeof(From));
  __builtin_memcpy(&to, &from, sizeof(To));
  return to;
}

}  // namespace _msl

template <class T>
MSL_INLINE T atomic_load_explicit(const volatile atomic<T>* a, memory_order) {
  __msl_spin();
  T value;
  __atomic_load(_msl::address(a), &value, MSL_ATOMIC_ORDER);
  return value;
}
template <class T, class U>
MSL_INLINE void atomic_store_explicit(volatile atomic<T>* a, U stored, memory_order) {
  T value = stored;
  __atomic_store(_msl::address(a), &value, MSL_ATOMIC_ORDER);
}
template <class T, class U>
MSL_INLINE T atomic_exchange_explicit(volatile atomic<T>* a, U stored, memory_order) {
  T value = stored, before;
  __atomic_exchange(_msl::address(a), &value, &before, MSL_ATOMIC_ORDER);
  return before;
}
template <class T, class U>
MSL_INLINE bool atomic_compare_exchange_weak_explicit(
    volatile atomic<T>* a, T* expected, U desired, memory_order, memory_order) {
  using B = _msl::bits_of<T>;
  __msl_spin();
  B before = _msl::same_bits<B>(*expected);
  const bool exchanged = __atomic_compare_exchange_n(
      (B*)_msl::address(a),
      &before,
      _msl::same_bits<B>(T(desired)),
      false,
      MSL_ATOMIC_ORDER,
      MSL_ATOMIC_ORDER);
  *expected = _msl::same_bits<T>(before);
  return exchanged;
}

#define MSL_FETCH(name, VALUE)                                          \
  template <class T, class U>                                           \
  MSL_INLINE T atomic_fetch_##name##_explicit(                          \
      volatile atomic<T>* a, U operand, memory_order) {                 \
    using B = _msl::bits_of<T>;                                         \
    B* const p = (B*)_msl::address(a);                                  \
    const T y = operand;                                                \
    B before = __atomic_load_n(p, MSL_ATOMIC_ORDER), after;             \
    do {                                                                \
      const T x = _msl::same_bits<T>(before);                           \
      after = _msl::same_bits<B>(T(VALUE));                             \
    } while (!__atomic_compare_exchange_n(                              \
        p, &before, after, false, MSL_ATOMIC_ORDER, MSL_ATOMIC_ORDER)); \
    return _msl::same_bits<T>(before);                                  \
  }
MSL_FETCH(add, x + y)
MSL_FETCH(sub, x - y)
MSL_FETCH(min, y < x ? y : x)
MSL_FETCH(max, x < y ? y : x)
MSL_FETCH(and, x& y)
MSL_FETCH(or, x | y)
MSL_FETCH(xor, x ^ y)
#undef MSL_FETCH

}  // namespace metal

typedef metal::atomic<int> atomic_int;
typedef metal::atomic<uint> atomic_uint;
typedef metal::atomic<bool> atomic_bool;
typedef metal::atomic<float> atomic_float;
typedef metal::atomic<ulong> atomic_ulong;
namespace metal {
using ::atomic_bool;
using ::atomic_float;
using ::atomic_int;
using ::atomic_uint;
using ::atomic_ulong;
}  // namespace metal
