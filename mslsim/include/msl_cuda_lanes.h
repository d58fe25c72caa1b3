// What lanes do together on an NVIDIA GPU, where a simdgroup is a warp. The results are those of the
// simulator to the bit. Shuffles name every lane: the ones that returned are not waited for.
#pragma once

#include "msl_vector_math.h"

namespace metal {
namespace _msl {

constexpr uint kEveryLane = 0xffffffffu;

MSL_INLINE uint lane_id() { return __nvvm_read_ptx_sreg_laneid(); }
// Lanes need not meet for what each does alone.
MSL_INLINE void converge() {}

// A lane's value; all lanes call it.
template <class T>
MSL_INLINE T from_lane(const T& value, uint source) {
  constexpr int kWords = (sizeof(T) + 3) / 4;
  int words[kWords] = {};
  __builtin_memcpy(words, (const void*)&value, sizeof(T));
#pragma clang loop unroll(full)
  for (int i = 0; i < kWords; i++) {
    words[i] = __nvvm_shfl_sync_idx_i32(kEveryLane, words[i], int(source), 31);
  }
  T result;
  __builtin_memcpy((void*)&result, words, sizeof(T));
  return result;
}

template <class T>
MSL_INLINE T shuffle(const T& value, uint source, uint) {
  return from_lane(value, source < kLanes ? source : lane_id());
}

// Lanes 16 apart, then 8, ...: the lower lane's value comes first.
template <class T, class Operation>
MSL_INLINE T reduce_simdgroup(T value) {
#pragma clang loop unroll(full)
  for (uint step = kLanes / 2; step > 0; step /= 2) {
    const T other = from_lane(value, lane_id() ^ step);
    value = lane_id() & step ? Operation::apply(other, value)
                             : Operation::apply(value, other);
  }
  return value;
}

template <class T, class Operation>
MSL_INLINE T reduce_quadgroup(T value) {
  const uint first = lane_id() & ~(kQuad - 1);
  T total = from_lane(value, first);
  for (uint i = 1; i < kQuad; i++) {
    total = Operation::apply(total, from_lane(value, first + i));
  }
  return total;
}

template <class T, class Operation, int kIdentity, bool kInclusive>
MSL_INLINE T prefix(T value, uint scope) {
  const uint first = lane_id() & ~(scope - 1);
  T total = T(kIdentity), result = total;
  for (uint lane = first; lane < first + scope; lane++) {
    const T before = total, next = from_lane(value, lane);
    total = lane > first || !kInclusive ? Operation::apply(total, next) : next;
    if (lane == lane_id()) {
      result = kInclusive ? total : before;
    }
  }
  return result;
}

MSL_INLINE uint ballot(bool vote) { return __nvvm_vote_ballot_sync(kEveryLane, vote); }
MSL_INLINE uint active() { return kEveryLane; }

}  // namespace _msl
}  // namespace metal
