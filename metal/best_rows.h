// Device only: a threadgroup finds the k best of a token's candidate rows, exactly. Candidates
// come in ascending order, and so do the selected; of equal scores the lower row is the better,
// and NaN is the worst. Only integers are counted, so no order of threads shows.
#pragma once

#include "common.h"

using namespace metal;

DSV4_CONST int kDigitBits = 8;
DSV4_CONST int kDigits = 1 << kDigitBits;
// Scores are alike, so many lanes count the same digit: they use different copies of counters.
DSV4_CONST int kCopies = 16;

struct TopkMemory {
  atomic_uint counts[kDigits * kCopies];
  uint totals[kDigits];
  uint digit;      // of the k-th key
  uint remaining;  // how many of the keys that share the digits found so far are selected
  uint before[kSimdWidth],
      equal[kSimdWidth];  // rows of each simdgroup: above, at the k-th key
};
static_assert(sizeof(TopkMemory) <= 32768, "threadgroup memory");

// Who a thread is among the threads that select for one token.
struct Place {
  uint thread_index;
  uint n_threads;
  uint simdgroup;
  uint n_simdgroups;
  uint lane;
};

// Rows [first, ...) as candidates.
struct SliceRows {
  int first;
  int operator()(int i) const { return first + i; }
};

// Rows that a list names as candidates, ascending.
struct ListedRows {
  const device int* ids;
  int operator()(int i) const { return ids[i]; }
};

// Higher scores have lower keys, both zeros the same one, and NaN the highest.
inline uint order_key(float score) {
  const uint bits = as_type<uint>(score);
  const uint magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) {
    return UINT_MAX;
  }
  return bits > 0x80000000u ? bits : 0x7fffffffu - magnitude;
}

// One simdgroup finds the digit of the k-th key in the totals.
inline void find_digit(threadgroup TopkMemory& memory, uint lane) {
  constexpr int kLaneDigits = kDigits / kSimdWidth;
  const uint k = memory.remaining;
  const int first = int(lane) * kLaneDigits;
  uint count = 0;
  for (int i = 0; i < kLaneDigits; ++i) {
    count += memory.totals[first + i];
  }
  uint before = simd_prefix_exclusive_sum(count);
  simdgroup_barrier(mem_flags::mem_threadgroup);
  if (before < k && k <= before + count) {
    int digit = first;
    while (before + memory.totals[digit] < k) {
      before += memory.totals[digit];
      ++digit;
    }
    memory.digit = uint(digit);
    memory.remaining = k - before;
  }
}

// The k-th key of n candidates, 1 <= k <= n, digit by digit; memory.remaining becomes the
// number of the selected that have it.
template <typename Rows>
inline uint find_kth_key(
    threadgroup TopkMemory& memory,
    const device float* scores,
    Rows rows,
    int n,
    int k,
    Place place) {
  uint prefix = 0, mask = 0;
  for (int shift = 32 - kDigitBits; shift >= 0; shift -= kDigitBits) {
    for (uint i = place.thread_index; i < kDigits * kCopies; i += place.n_threads) {
      atomic_store_explicit(&memory.counts[i], 0u, memory_order_relaxed);
    }
    if (place.thread_index == 0 && mask == 0) {
      memory.remaining = uint(k);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (int i = int(place.thread_index); i < n; i += int(place.n_threads)) {
      const uint key = order_key(scores[rows(i)]);
      if ((key & mask) == prefix) {
        const uint digit = (key >> shift) & uint(kDigits - 1);
        atomic_fetch_add_explicit(
            &memory.counts[digit * kCopies + place.lane % kCopies],
            1u,
            memory_order_relaxed);
      }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint digit = place.thread_index; digit < kDigits; digit += place.n_threads) {
      uint total = 0;
      for (int i = 0; i < kCopies; ++i) {
        total += atomic_load_explicit(
            &memory.counts[digit * kCopies + i], memory_order_relaxed);
      }
      memory.totals[digit] = total;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (place.simdgroup == 0) {
      find_digit(memory, place.lane);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    prefix |= memory.digit << shift;
    mask |= uint(kDigits - 1) << shift;
  }
  return prefix;
}

// Writes the candidates below the k-th key and the first `remaining` of those at it, in order:
// every simdgroup takes a run of candidates, and first counts what the runs before it give.
template <typename Rows>
inline void write_selected(
    threadgroup TopkMemory& memory,
    const device float* scores,
    Rows rows,
    int n,
    uint kth,
    device int* selected,
    Place place) {
  const int lane = int(place.lane), n_simdgroups = int(place.n_simdgroups);
  const int steps = ceil_div(n, kSimdWidth * n_simdgroups);
  const int begin = min(n, int(place.simdgroup) * steps * kSimdWidth);
  const int end = min(n, begin + steps * kSimdWidth);
  uint before = 0, equal = 0;
  for (int i = begin + lane; i < end; i += kSimdWidth) {
    const uint key = order_key(scores[rows(i)]);
    before += key < kth ? 1 : 0;
    equal += key == kth ? 1 : 0;
  }
  before = simd_sum(before);
  equal = simd_sum(equal);
  if (lane == 0) {
    memory.before[place.simdgroup] = before;
    memory.equal[place.simdgroup] = equal;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  const bool earlier = place.lane < place.simdgroup;
  before = simd_sum(earlier ? memory.before[lane] : 0u);
  equal = simd_sum(earlier ? memory.equal[lane] : 0u);
  uint remaining = memory.remaining - min(memory.remaining, equal);
  uint at = before + memory.remaining - remaining;
  const uint lower_lanes = (1u << lane) - 1;
  for (int i = begin; i < end; i += kSimdWidth) {
    const bool exists = i + lane < end;
    const int row = exists ? rows(i + lane) : 0;
    const uint key = exists ? order_key(scores[row]) : UINT_MAX;
    const bool is_equal = exists && key == kth;
    const uint all_before = uint(simd_vote::vote_t(simd_ballot(key < kth)));
    const uint all_equal = uint(simd_vote::vote_t(simd_ballot(is_equal)));
    const uint equal_rank = popcount(all_equal & lower_lanes);
    if (key < kth || (is_equal && equal_rank < remaining)) {
      selected[at + popcount(all_before & lower_lanes) + min(equal_rank, remaining)] =
          row;
    }
    const uint taken = min(remaining, popcount(all_equal));
    at += popcount(all_before) + taken;
    remaining -= taken;
  }
}

// The k best of n candidates.
template <typename Rows>
inline void take_best(
    threadgroup TopkMemory& memory,
    const device float* scores,
    Rows rows,
    int n,
    int k,
    device int* selected,
    Place place) {
  if (n <= k) {
    for (int i = int(place.thread_index); i < k; i += int(place.n_threads)) {
      selected[i] = i < n ? rows(i) : -1;
    }
    return;
  }
  const uint kth = find_kth_key(memory, scores, rows, n, k, place);
  write_selected(memory, scores, rows, n, kth, selected, place);
}
