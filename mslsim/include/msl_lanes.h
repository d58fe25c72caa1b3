// What lanes do together in the simulator: they meet, and the last to come computes for all.
#pragma once

#include "msl_abi.h"
#include "msl_vector_math.h"

namespace metal {
namespace _msl {

// Lanes deposit their operands here, and the function of an operation sees all of them at once;
// checks are off in it, because its memory is the simulator's.
#define MSL_UNCHECKED __attribute__((no_sanitize("thread", "alignment", "bounds")))
constexpr uint kSlotBytes = 64;

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

template <class T, class Operation>
MSL_INLINE T reduce_simdgroup(T value) {
  return all_lanes<T>(value, &reduce<T, Operation>);
}
template <class T, class Operation>
MSL_INLINE T reduce_quadgroup(T value) {
  return lanes<T>(value, kQuad, &reduce_quad<T, Operation>);
}
template <class T, class Operation, int kIdentity, bool kInclusive>
MSL_INLINE T prefix(T value, uint scope) {
  return lanes<T>(value, scope, &scan<T, Operation, kIdentity, kInclusive>);
}

}  // namespace _msl
}  // namespace metal
