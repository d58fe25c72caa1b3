// <metal_simdgroup> and <metal_quadgroup>, over what msl_lanes.h or msl_cuda_lanes.h says of lanes.
#pragma once

#include "msl_synchronization.h"
#include "msl_vector_math.h"

namespace metal {
namespace _msl {

// The lanes of a simdgroup and of a quadgroup.
constexpr uint kLanes = 32;
constexpr uint kQuad = 4;
constexpr uint kKeepOwn = 64;  // the source of a shuffle that moves nothing

#define MSL_OPERATION(Name, VALUE)          \
  struct Name {                             \
    template <class T>                      \
    MSL_NO_LINES static T apply(T a, T b) { \
      return T(VALUE);                      \
    }                                       \
  };
MSL_OPERATION(Sum, a + b)
MSL_OPERATION(Product, a* b)
MSL_OPERATION(Min, min(a, b))
MSL_OPERATION(Max, max(a, b))
MSL_OPERATION(And, a& b)
MSL_OPERATION(Or, a | b)
MSL_OPERATION(Xor, a ^ b)
#undef MSL_OPERATION

}  // namespace _msl
}  // namespace metal

#ifdef __CUDA__
#include "msl_cuda_lanes.h"
#else
#include "msl_lanes.h"
#endif

namespace metal {
namespace _msl {

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

#define MSL_REDUCTION(PREFIX, T, A, name, Operation)          \
  PREFIX() MSL_INLINE T simd_##name(A value) {                \
    return _msl::reduce_simdgroup<T, _msl::Operation>(value); \
  }                                                           \
  PREFIX() MSL_INLINE T quad_##name(A value) {                \
    return _msl::reduce_quadgroup<T, _msl::Operation>(value); \
  }
#define MSL_SCAN(T, group, scope, name, Operation, identity)                \
  MSL_INLINE T group##_prefix_inclusive_##name(T value) {                   \
    return _msl::prefix<T, _msl::Operation, identity, true>(value, scope);  \
  }                                                                         \
  MSL_INLINE T group##_prefix_exclusive_##name(T value) {                   \
    return _msl::prefix<T, _msl::Operation, identity, false>(value, scope); \
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
