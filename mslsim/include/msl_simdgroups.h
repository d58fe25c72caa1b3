// <metal_simdgroup> and <metal_quadgroup>: the lanes meet, the last to come computes for all.
#pragma once

#include "msl_synchronization.h"
#include "msl_vector_math.h"

namespace metal {
namespace _msl {

// Lanes deposit their operands here, and the function of an operation sees all of them at once;
// checks are off in it, because its memory is the simulator's.
#define MSL_UNCHECKED __attribute__((no_sanitize("thread", "alignment", "bounds")))
constexpr uint kSlotBytes = 64;
constexpr uint kLanes = 32;
constexpr uint kQuad = 4;
constexpr uint kKeepOwn = 64;

MSL_INLINE uint lane_id() { return __msl_cur->lane; }

template <class T>
MSL_INLINE T slot(const unsigned char* slots, uint lane) {
  static_assert(sizeof(T) <= kSlotBytes);
  T value;
  __builtin_memcpy((void*)&value, slots + lane * kSlotBytes, sizeof(T));
  return value;
}
template <class T>
MSL_INLINE void put(unsigned char* slots, uint lane, const T& value) {
  __builtin_memcpy(slots + lane * kSlotBytes, (const void*)&value, sizeof(T));
}
MSL_INLINE bool is_active(msl_u32 active, uint lane) { return (active >> lane) & 1; }

// Runs an operation that has one result per lane, or one for all.
template <class T>
MSL_INLINE T lanes(const T& value, uint scope, msl_fin operation) {
  msl_thread* thread = __msl_cur;
  return slot<T>(
      __msl_collective(thread, &value, sizeof(T), scope, operation, nullptr),
      thread->lane);
}
template <class T>
MSL_INLINE T all_lanes(const T& value, msl_fin operation) {
  return slot<T>(
      __msl_collective(__msl_cur, &value, sizeof(T), kLanes, operation, nullptr), 0);
}

// A point that all lanes must reach together, but that orders no memory.
MSL_INLINE void converge() {
  uint none = 0;
  __msl_collective(__msl_cur, &none, 0, kLanes, nullptr, nullptr);
}

#define MSL_OPERATION(Name, VALUE) \
  struct Name {                    \
    template <class T>             \
    static T apply(T a, T b) {     \
      return T(VALUE);             \
    }                              \
  };
MSL_OPERATION(Sum, a + b)
MSL_OPERATION(Product, a* b)
MSL_OPERATION(Min, min(a, b))
MSL_OPERATION(Max, max(a, b))
MSL_OPERATION(And, a& b)
MSL_OPERATION(Or, a | b)
MSL_OPERATION(Xor, a ^ b)
#undef MSL_OPERATION

// Lanes 16 apart, then 8, ...: floats add up alike in whatever order the lanes come.
template <class T, class Operation>
MSL_UNCHECKED void reduce(
    const unsigned char* slots, msl_u32 active, unsigned char* out, void*) {
  T values[kLanes];
  bool present[kLanes];
  for (uint lane = 0; lane < kLanes; lane++) {
    present[lane] = is_active(active, lane);
    if (present[lane]) {
      values[lane] = slot<T>(slots, lane);
    }
  }
  for (uint step = kLanes / 2; step > 0; step /= 2) {
    for (uint lane = 0; lane < step; lane++) {
      if (present[lane] && present[lane + step]) {
        values[lane] = Operation::apply(values[lane], values[lane + step]);
      } else if (present[lane + step]) {
        values[lane] = values[lane + step];
        present[lane] = true;
      }
    }
  }
  put<T>(out, 0, values[0]);
}

template <class T, class Operation>
MSL_UNCHECKED void reduce_quad(
    const unsigned char* slots, msl_u32 active, unsigned char* out, void*) {
  bool any = false;
  T total{};
  for (uint lane = 0; lane < kLanes; lane++) {
    if (is_active(active, lane)) {
      const T value = slot<T>(slots, lane);
      total = any ? Operation::apply(total, value) : value;
      any = true;
    }
  }
  for (uint lane = 0; lane < kLanes; lane++) {
    if (is_active(active, lane)) {
      put<T>(out, lane, total);
    }
  }
}

template <class T, class Operation, int kIdentity, bool kInclusive>
MSL_UNCHECKED void scan(
    const unsigned char* slots, msl_u32 active, unsigned char* out, void*) {
  T total = T(kIdentity);
  bool any = false;
  for (uint lane = 0; lane < kLanes; lane++) {
    if (is_active(active, lane)) {
      const T before = total, value = slot<T>(slots, lane);
      total = any || !kInclusive ? Operation::apply(total, value) : value;
      any = true;
      put<T>(out, lane, kInclusive ? total : before);
    }
  }
}

template <class T>
struct Shuffled {
  T value;
  uint source;  // lane, kKeepOwn, or any other number for an undefined result
};
template <class T>
MSL_UNCHECKED void shuffle_lanes(
    const unsigned char* slots, msl_u32 active, unsigned char* out, void*) {
  for (uint lane = 0; lane < kLanes; lane++) {
    if (!is_active(active, lane)) {
      continue;
    }
    Shuffled<T> mine = slot<Shuffled<T>>(slots, lane);
    if (mine.source < kLanes && is_active(active, mine.source)) {
      mine.value = slot<Shuffled<T>>(slots, mine.source).value;
    } else if (mine.source != kKeepOwn) {
      __builtin_memset((void*)&mine.value, 0xff, sizeof(T));
      __msl_note(
          "simd-shuffle",
          mine.source < kLanes ? "shuffle reads an inactive lane"
                               : "shuffle reads outside the SIMD-group");
    }
    put(out, lane, mine);
  }
}
template <class T>
MSL_INLINE T shuffle(const T& value, uint source, uint scope) {
  return lanes(Shuffled<T>{value, source}, scope, &shuffle_lanes<T>).value;
}

MSL_UNCHECKED inline void ballot_lanes(
    const unsigned char* slots, msl_u32 active, unsigned char* out, void*) {
  uint votes = 0;
  for (uint lane = 0; lane < kLanes; lane++) {
    votes |= uint(is_active(active, lane) && slot<uint>(slots, lane) != 0) << lane;
  }
  put(out, 0, votes);
}
MSL_UNCHECKED inline void active_lanes(
    const unsigned char*, msl_u32 active, unsigned char* out, void*) {
  put(out, 0, active);
}
MSL_INLINE uint ballot(bool vote) { return all_lanes<uint>(vote, &ballot_lanes); }
MSL_INLINE uint active() { return all_lanes<uint>(0, &active_lanes); }

// Vectors of the element types of MSL_EACH_LANE_TYPE.
template <class T>
struct crosses_lanes
    : bool_constant<is_arithmetic_v<T> && sizeof(T) <= 4 && !is_same_v<T, bool>> {};
template <class T, int N>
struct crosses_lanes<vec<T, N>> : crosses_lanes<T> {};

}  // namespace _msl

// As in MSL: no bool, no 64-bit integers and no bfloat scalars.
#define MSL_EACH_LANE_INTEGER(M) \
  M(char) M(int8_t) M(uchar) M(short) M(ushort) M(int) M(uint)
#define MSL_EACH_LANE_TYPE(M) M(half) M(float) MSL_EACH_LANE_INTEGER(M)
// What stands before a function, as macros: a comma of theirs would end a macro's argument.
#define MSL_SCALAR()
#define MSL_LANE_VECTOR()         \
  template <                      \
      class A,                    \
      class T = _msl::plain_t<A>, \
      enable_if_t<_msl::crosses_lanes<T>::value, int> = 0>

#define MSL_REDUCTION(PREFIX, T, A, name, Operation)                                   \
  PREFIX() MSL_INLINE T simd_##name(A value) {                                         \
    return _msl::all_lanes<T>(value, &_msl::reduce<T, _msl::Operation>);               \
  }                                                                                    \
  PREFIX() MSL_INLINE T quad_##name(A value) {                                         \
    return _msl::lanes<T>(value, _msl::kQuad, &_msl::reduce_quad<T, _msl::Operation>); \
  }
#define MSL_SCAN(T, group, scope, name, Operation, identity)             \
  MSL_INLINE T group##_prefix_inclusive_##name(T value) {                \
    return _msl::lanes<T>(                                               \
        value, scope, &_msl::scan<T, _msl::Operation, identity, true>);  \
  }                                                                      \
  MSL_INLINE T group##_prefix_exclusive_##name(T value) {                \
    return _msl::lanes<T>(                                               \
        value, scope, &_msl::scan<T, _msl::Operation, identity, false>); \
  }
#define MSL_ARITHMETIC(T)                              \
  MSL_REDUCTION(MSL_SCALAR, T, T, sum, Sum)            \
  MSL_REDUCTION(MSL_SCALAR, T, T, product, Product)    \
  MSL_REDUCTION(MSL_SCALAR, T, T, min, Min)            \
  MSL_REDUCTION(MSL_SCALAR, T, T, max, Max)            \
  MSL_SCAN(T, simd, _msl::kLanes, sum, Sum, 0)         \
  MSL_SCAN(T, simd, _msl::kLanes, product, Product, 1) \
  MSL_SCAN(T, quad, _msl::kQuad, sum, Sum, 0)          \
  MSL_SCAN(T, quad, _msl::kQuad, product, Product, 1)
#define MSL_LOGIC(T)                        \
  MSL_REDUCTION(MSL_SCALAR, T, T, and, And) \
  MSL_REDUCTION(MSL_SCALAR, T, T, or, Or)   \
  MSL_REDUCTION(MSL_SCALAR, T, T, xor, Xor)
MSL_EACH_LANE_TYPE(MSL_ARITHMETIC)
MSL_EACH_LANE_INTEGER(MSL_LOGIC)
MSL_REDUCTION(MSL_LANE_VECTOR, T, const A&, sum, Sum)
MSL_REDUCTION(MSL_LANE_VECTOR, T, const A&, product, Product)
MSL_REDUCTION(MSL_LANE_VECTOR, T, const A&, min, Min)
MSL_REDUCTION(MSL_LANE_VECTOR, T, const A&, max, Max)
#undef MSL_REDUCTION
#undef MSL_SCAN
#undef MSL_ARITHMETIC
#undef MSL_LOGIC

#define MSL_SHUFFLE(PREFIX, T, A, name, operand, SOURCE, scope) \
  PREFIX() MSL_INLINE T name(A value, ushort operand) {         \
    const uint lane = _msl::lane_id();                          \
    return _msl::shuffle<T>(value, SOURCE, scope);              \
  }
#define MSL_SHUFFLES(PREFIX, T, A)                                                       \
  MSL_SHUFFLE(PREFIX, T, A, simd_shuffle, source, source, 32)                            \
  MSL_SHUFFLE(PREFIX, T, A, simd_broadcast, source, source, 32)                          \
  MSL_SHUFFLE(PREFIX, T, A, simd_shuffle_xor, mask, lane ^ mask, 32)                     \
  MSL_SHUFFLE(PREFIX, T, A, simd_shuffle_down, d, lane + d < 32 ? lane + d : 64, 32)     \
  MSL_SHUFFLE(PREFIX, T, A, simd_shuffle_up, d, lane >= d ? lane - d : 64, 32)           \
  MSL_SHUFFLE(PREFIX, T, A, simd_shuffle_rotate_down, d, (lane + d) & 31, 32)            \
  MSL_SHUFFLE(PREFIX, T, A, simd_shuffle_rotate_up, d, (lane - d) & 31, 32)              \
  MSL_SHUFFLE(PREFIX, T, A, quad_shuffle, source, (lane & ~3u) | (source & 3), 4)        \
  MSL_SHUFFLE(PREFIX, T, A, quad_broadcast, source, (lane & ~3u) | (source & 3), 4)      \
  MSL_SHUFFLE(PREFIX, T, A, quad_shuffle_xor, mask, lane ^ (mask & 3), 4)                \
  MSL_SHUFFLE(PREFIX, T, A, quad_shuffle_down, d, (lane & 3) + d < 4 ? lane + d : 64, 4) \
  MSL_SHUFFLE(PREFIX, T, A, quad_shuffle_up, d, (lane & 3) >= d ? lane - d : 64, 4)      \
  PREFIX() MSL_INLINE T simd_broadcast_first(A value) {                                  \
    return _msl::shuffle<T>(value, __builtin_ctz(_msl::active()), 32);                   \
  }
#define MSL_SCALAR_SHUFFLES(T) MSL_SHUFFLES(MSL_SCALAR, T, T)
MSL_EACH_LANE_TYPE(MSL_SCALAR_SHUFFLES)
MSL_SHUFFLES(MSL_LANE_VECTOR, T, const A&)
#undef MSL_SHUFFLE
#undef MSL_SHUFFLES
#undef MSL_SCALAR_SHUFFLES

struct simd_vote {
  using vote_t = ulong;
  vote_t votes;

  explicit constexpr simd_vote(vote_t v = 0) : votes(v) {}
  explicit operator vote_t() const { return votes; }
  bool all() const { return votes == 0xffffffffu; }
  bool any() const { return votes != 0; }
};
MSL_INLINE bool simd_any(bool vote) { return _msl::ballot(vote) != 0; }
MSL_INLINE bool simd_all(bool vote) { return _msl::ballot(!vote) == 0; }
MSL_INLINE simd_vote simd_ballot(bool vote) { return simd_vote(_msl::ballot(vote)); }
MSL_INLINE simd_vote simd_active_threads_mask() { return simd_vote(_msl::active()); }
MSL_INLINE bool simd_is_first() {
  return uint(__builtin_ctz(_msl::active())) == _msl::lane_id();
}

}  // namespace metal
