// What the instrumentation of checked kernels calls: the entry points of the thread sanitizer and
// of the undefined-behaviour sanitizer, whose own runtimes are not linked.
#include <cstring>
#include <string>
#include <utility>

#include "findings.h"
#include "shadow.h"
#include "threads.h"

namespace {

using mslsim::check_access;

// A return address lies behind its call.
#define CALLER reinterpret_cast<uint64_t>(__builtin_return_address(0))

void read(const volatile void* address, size_t n_bytes, uint64_t pc) {
  check_access({address, n_bytes, false, false, pc});
}

void write(const volatile void* address, size_t n_bytes, uint64_t pc) {
  check_access({address, n_bytes, true, false, pc});
}

template <typename T>
void atomic_read(const volatile T* address, uint64_t pc) {
  check_access({address, sizeof(T), false, true, pc});
}

template <typename T>
void atomic_write(const volatile T* address, uint64_t pc) {
  check_access({address, sizeof(T), true, true, pc});
}

}  // namespace

extern "C" {

void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_vptr_update(void**, void*) {}
void __tsan_vptr_read(void**) {}
void __tsan_atomic_thread_fence(int) {}
void __tsan_atomic_signal_fence(int) {}

#define PLAIN_ACCESSES(prefix, n)                                  \
  void __tsan_##prefix##read##n(void* p) { read(p, n, CALLER); }   \
  void __tsan_##prefix##write##n(void* p) { write(p, n, CALLER); } \
  void __tsan_##prefix##read_write##n(void* p) {                   \
    read(p, n, CALLER);                                            \
    write(p, n, CALLER);                                           \
  }
// Metal's atomics are volatile: a compiler keeps each access of theirs.
#define ACCESSES(n)                                                                    \
  PLAIN_ACCESSES(, n)                                                                  \
  PLAIN_ACCESSES(unaligned_, n)                                                        \
  void __tsan_volatile_read##n(void* p) { check_access({p, n, false, true, CALLER}); } \
  void __tsan_volatile_write##n(void* p) { check_access({p, n, true, true, CALLER}); }
ACCESSES(1)
ACCESSES(2)
ACCESSES(4)
ACCESSES(8)
ACCESSES(16)

void __tsan_read_range(void* p, size_t n) { read(p, n, CALLER); }
void __tsan_write_range(void* p, size_t n) { write(p, n, CALLER); }

void* __tsan_memcpy(void* to, const void* from, size_t n) {
  read(from, n, CALLER);
  write(to, n, CALLER);
  return memcpy(to, from, n);
}

void* __tsan_memmove(void* to, const void* from, size_t n) {
  read(from, n, CALLER);
  write(to, n, CALLER);
  return memmove(to, from, n);
}

void* __tsan_memset(void* to, int value, size_t n) {
  write(to, n, CALLER);
  return memset(to, value, n);
}

// The order that the kernel asks for is ignored: the strongest is right for each.
#define ATOMIC_UPDATE(T, n, operation, builtin)                   \
  T __tsan_atomic##n##_##operation(volatile T* p, T value, int) { \
    atomic_write(p, CALLER);                                      \
    return builtin(p, value, __ATOMIC_SEQ_CST);                   \
  }
#define ATOMIC_EXCHANGE(T, n, strength, weak)                                     \
  int __tsan_atomic##n##_compare_exchange_##strength(                             \
      volatile T* p, T* expected, T value, int, int) {                            \
    atomic_write(p, CALLER);                                                      \
    constexpr int kOrder = __ATOMIC_SEQ_CST;                                      \
    return __atomic_compare_exchange_n(p, expected, value, weak, kOrder, kOrder); \
  }
#define ATOMICS(T, n)                                                        \
  T __tsan_atomic##n##_load(const volatile T* p, int) {                      \
    atomic_read(p, CALLER);                                                  \
    return __atomic_load_n(p, __ATOMIC_SEQ_CST);                             \
  }                                                                          \
  void __tsan_atomic##n##_store(volatile T* p, T value, int) {               \
    atomic_write(p, CALLER);                                                 \
    __atomic_store_n(p, value, __ATOMIC_SEQ_CST);                            \
  }                                                                          \
  ATOMIC_UPDATE(T, n, exchange, __atomic_exchange_n)                         \
  ATOMIC_UPDATE(T, n, fetch_add, __atomic_fetch_add)                         \
  ATOMIC_UPDATE(T, n, fetch_sub, __atomic_fetch_sub)                         \
  ATOMIC_UPDATE(T, n, fetch_and, __atomic_fetch_and)                         \
  ATOMIC_UPDATE(T, n, fetch_or, __atomic_fetch_or)                           \
  ATOMIC_UPDATE(T, n, fetch_xor, __atomic_fetch_xor)                         \
  ATOMIC_EXCHANGE(T, n, strong, false)                                       \
  ATOMIC_EXCHANGE(T, n, weak, true)                                          \
  T __tsan_atomic##n##_compare_exchange_val(                                 \
      volatile T* p, T expected, T value, int, int) {                        \
    atomic_write(p, CALLER);                                                 \
    constexpr int kOrder = __ATOMIC_SEQ_CST;                                 \
    __atomic_compare_exchange_n(p, &expected, value, false, kOrder, kOrder); \
    return expected;                                                         \
  }
ATOMICS(uint8_t, 8)
ATOMICS(uint16_t, 16)
ATOMICS(uint32_t, 32)
ATOMICS(uint64_t, 64)

}  // extern "C"

namespace {

// What each record of the undefined-behaviour sanitizer begins with.
struct SourceLocation {
  const char* file;
  uint32_t line;
  uint32_t column;
};

void report_undefined(const std::string& what, const void* record, uint64_t pc) {
  if (mslsim::current_group == nullptr || !mslsim::current_group->in_fibre) {
    return;
  }
  const auto& at = *static_cast<const SourceLocation*>(record);
  mslsim::report(
      "ub",
      what + " at " + (at.file == nullptr ? "?" : at.file) + ":" +
          std::to_string(at.line) + ":" + std::to_string(at.column) + " by " +
          mslsim::described(*__msl_cur),
      pc);
}

// Operands are passed in 64 bits: an int of 32 has zeros above it.
int64_t as_index(uintptr_t operand) {
  return operand >> 32 != 0 ? static_cast<int64_t>(operand)
                            : static_cast<int32_t>(operand);
}

}  // namespace

extern "C" {

void __ubsan_handle_out_of_bounds(void* record, uintptr_t index) {
  const std::string spelled = std::to_string(as_index(index));
  report_undefined("array index out of bounds (index " + spelled + ")", record, CALLER);
}

void __ubsan_handle_divrem_overflow(void* record, uintptr_t, uintptr_t) {
  report_undefined("integer division by zero or overflow", record, CALLER);
}

void __ubsan_handle_shift_out_of_bounds(void* record, uintptr_t, uintptr_t amount) {
  const std::string spelled = std::to_string(static_cast<int64_t>(amount));
  report_undefined("shift amount out of range (" + spelled + ")", record, CALLER);
}

void __ubsan_handle_float_cast_overflow(void* record, uintptr_t) {
  report_undefined("float to integer conversion out of range", record, CALLER);
}

void __ubsan_handle_type_mismatch_v1(void* record, uintptr_t pointer) {
  report_undefined(pointer != 0 ? "misaligned access" : "null access", record, CALLER);
}

void __ubsan_handle_missing_return(void* record) {
  report_undefined("missing return", record, CALLER);
}

void __ubsan_handle_builtin_unreachable(void* record) {
  report_undefined("unreachable", record, CALLER);
}

}  // extern "C"
