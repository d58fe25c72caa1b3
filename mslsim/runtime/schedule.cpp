// Scheduling: a thread runs until it waits for others, then the launch's order picks another.
#include "schedule.h"

#include <bit>
#include <cstring>
#include <string>

#include "dispatch.h"
#include "findings.h"

namespace mslsim {
namespace {

uint64_t address_of(const void* site) { return reinterpret_cast<uint64_t>(site); }

std::string spelled(uint32_t lanes) {
  char text[16];
  snprintf(text, sizeof text, "0x%08x", lanes);
  return text;
}

template <typename F>
void for_each_lane(const msl_simdgroup& simdgroup, uint32_t lanes, F f) {
  for (; lanes != 0; lanes &= lanes - 1) {
    f(*simdgroup.lanes[std::countr_zero(lanes)]);
  }
}

msl_thread& first_of(const msl_simdgroup& simdgroup, uint32_t lanes) {
  return *simdgroup.lanes[std::countr_zero(lanes)];
}

// Those of some lanes that wait at a call site.
uint32_t lanes_at(const msl_simdgroup& simdgroup, uint32_t lanes, const void* site) {
  uint32_t found = 0;
  for_each_lane(simdgroup, lanes, [&](const msl_thread& thread) {
    found |= thread.site == site ? lane_bit(thread) : 0;
  });
  return found;
}

uint32_t pick_lane(msl_group& group, uint32_t lanes) {
  switch (current_dispatch->launch.order) {
    case MSL_FORWARD:
      return std::countr_zero(lanes);
    case MSL_REVERSE:
      return kLanes - 1 - std::countl_zero(lanes);
    default: {
      const uint32_t from = lanes & (~0u << group.random() % kLanes);
      return std::countr_zero(from != 0 ? from : lanes);
    }
  }
}

void switch_threads(msl_thread& from, msl_thread& to) {
  if (&from != &to) {
    __msl_cur = &to;
    msl_switch(&from.sp, to.sp);
  }
}

// Some lanes wait for an operation of the SIMD-group, others elsewhere.
[[noreturn]] void fail_divergent(
    const msl_simdgroup& simdgroup, uint32_t waiting, uint32_t here) {
  const msl_thread& first = first_of(simdgroup, here);
  const msl_thread* elsewhere = nullptr;
  uint32_t others = waiting & ~here;
  for_each_lane(
      simdgroup, others, [&](const msl_thread& thread) { elsewhere = &thread; });
  const char* where = " at another operation";
  if (simdgroup.at_threadgroup_barrier != 0) {
    elsewhere = &first_of(simdgroup, simdgroup.at_threadgroup_barrier);
    others |= simdgroup.at_threadgroup_barrier;
    where = " at a threadgroup_barrier";
  }
  fail(
      "divergence",
      "divergent SIMD-group operation in SIMD-group " + std::to_string(first.sgi) +
          ": lanes " + spelled(here) + " wait here, lanes " + spelled(others) + where,
      address_of(first.site),
      elsewhere == nullptr ? 0 : address_of(elsewhere->site));
}

// The lanes that go on together: those at the lowest call address, which is earlier code, as a
// GPU that reconverges would choose.
uint32_t lanes_at_lowest_site(const msl_simdgroup& simdgroup, uint32_t waiting) {
  const msl_thread* lowest = &first_of(simdgroup, waiting);
  for_each_lane(simdgroup, waiting, [&](const msl_thread& thread) {
    lowest = thread.site < lowest->site ? &thread : lowest;
  });
  const uint32_t lanes = lanes_at(simdgroup, waiting, lowest->site);
  if (current_dispatch->launch.divergence == MSL_DIVERGENCE_NOTE) {
    report(
        "divergence-note",
        "SIMD-group operation with only lanes " + spelled(lanes) + " of live " +
            spelled(simdgroup.live),
        address_of(lowest->site));
  }
  return lanes;
}

// Nobody in the SIMD-group is ready. Completes what its lanes wait for, if they do not wait for
// other SIMD-groups; returns whether lanes became ready.
bool complete_operation(msl_simdgroup& simdgroup) {
  const uint32_t waiting = simdgroup.at_operation | simdgroup.at_simdgroup_barrier;
  if (waiting == 0) {
    return false;
  }
  uint32_t lanes = lanes_at(simdgroup, waiting, first_of(simdgroup, waiting).site);
  if (lanes != waiting || simdgroup.at_threadgroup_barrier != 0) {
    if (current_dispatch->launch.divergence == MSL_DIVERGENCE_ERROR) {
      fail_divergent(simdgroup, waiting, lanes);
    }
    lanes = lanes_at_lowest_site(simdgroup, waiting);
  }
  const msl_thread& first = first_of(simdgroup, lanes);
  if (first.state == kAtSimdgroupBarrier) {
    simdgroup.epochs.pass_barrier(first.op_size);
  } else {
    simdgroup.active = lanes;
    if (first.op_fin != nullptr) {
      const auto finish = reinterpret_cast<msl_fin>(const_cast<void*>(first.op_fin));
      finish(simdgroup.slots[0], lanes, simdgroup.results[0], first.op_ctx);
    }
    if (current_dispatch->launch.simd_ops_order_memory) {
      simdgroup.epochs.pass_barrier(kMemDevice | kMemThreadgroup);
    }
  }
  for_each_lane(simdgroup, lanes, [](msl_thread& thread) { thread.state = kReady; });
  simdgroup.at_operation &= ~lanes;
  simdgroup.at_simdgroup_barrier &= ~lanes;
  simdgroup.ready |= lanes;
  return true;
}

// The current SIMD-group has nobody to run. Makes one current that has; false if none has.
bool enter_another_simdgroup(msl_group& group) {
  const int order = current_dispatch->launch.order;
  const uint32_t n = group.n_simdgroups;
  const uint32_t start = order == MSL_RANDOM ? group.random() % n : 0;
  for (uint32_t i = 0; i < n; ++i) {
    const uint32_t candidate = order == MSL_REVERSE ? n - 1 - i : (start + i) % n;
    msl_simdgroup& simdgroup = group.simdgroups[candidate];
    if (simdgroup.ready != 0 || complete_operation(simdgroup)) {
      group.current = candidate;
      return true;
    }
  }
  return false;
}

// Nobody can run: every live thread must wait at the same barrier of the threadgroup.
void check_threadgroup_barrier(const msl_group& group) {
  uint32_t n_live = 0, n_waiting = 0;
  const void* site = nullptr;
  const void* other_site = nullptr;
  for (uint32_t i = 0; i < group.n_simdgroups; ++i) {
    const msl_simdgroup& simdgroup = group.simdgroups[i];
    n_live += std::popcount(simdgroup.live);
    n_waiting += std::popcount(simdgroup.at_threadgroup_barrier);
    for_each_lane(
        simdgroup, simdgroup.at_threadgroup_barrier, [&](const msl_thread& thread) {
          site = site == nullptr ? thread.site : site;
          other_site = thread.site != site ? thread.site : other_site;
        });
  }
  if (n_waiting != n_live) {
    fail(
        "deadlock",
        "no thread can run: " + std::to_string(n_waiting) + " at a barrier, " +
            std::to_string(n_live) + " alive");
  }
  if (other_site != nullptr) {
    fail(
        "barrier-divergence",
        "threads of one threadgroup wait at different threadgroup_barrier calls",
        address_of(site),
        address_of(other_site));
  }
  if (n_live != 0 && n_live != group.n_threads) {
    report(
        "barrier-exited",
        std::to_string(group.n_threads - n_live) + " of " +
            std::to_string(group.n_threads) +
            " threads returned before a threadgroup_barrier the others reach",
        address_of(site));
  }
}

// Lets every thread pass the barrier of the threadgroup; false if all have returned.
bool open_threadgroup_barrier(msl_group& group) {
  check_threadgroup_barrier(group);
  bool any = false;
  for (uint32_t i = 0; i < group.n_simdgroups; ++i) {
    msl_simdgroup& simdgroup = group.simdgroups[i];
    const uint32_t lanes = simdgroup.at_threadgroup_barrier;
    for_each_lane(simdgroup, lanes, [](msl_thread& thread) { thread.state = kReady; });
    simdgroup.ready |= lanes;
    simdgroup.at_threadgroup_barrier = 0;
    any |= lanes != 0;
  }
  if (any) {
    group.epochs.pass_barrier(group.barrier_flags);
    const int order = current_dispatch->launch.order;
    const uint32_t n = group.n_simdgroups;
    group.current = order == MSL_REVERSE  ? n - 1
                    : order == MSL_RANDOM ? group.random() % n
                                          : 0;
    while (group.simdgroups[group.current].ready == 0) {
      group.current = (group.current + 1) % n;
    }
  }
  return any;
}

// Runs other threads; returns when the one that waits can go on.
void wait_for_others(msl_thread& thread) {
  msl_group& group = *current_group;
  for (;;) {
    msl_simdgroup& simdgroup = group.simdgroups[group.current];
    if (simdgroup.ready != 0) {
      switch_threads(thread, *simdgroup.lanes[pick_lane(group, simdgroup.ready)]);
      return;
    }
    if (!complete_operation(simdgroup) && !enter_another_simdgroup(group) &&
        !open_threadgroup_barrier(group)) {
      __msl_cur = nullptr;
      leave_fibres(group);
    }
  }
}

// Sizes known to the compiler: almost all operations are on 4 or 8 bytes.
void hand_in(unsigned char* slot, const void* value, uint32_t n_bytes) {
  switch (n_bytes) {
    case 0:
      break;
    case 4:
      memcpy(slot, value, 4);
      break;
    case 8:
      memcpy(slot, value, 8);
      break;
    default:
      memcpy(slot, value, n_bytes);
  }
}

// A quad goes on as soon as its live lanes are at one call; the last to come computes.
unsigned char* quad_operation(msl_thread& thread, msl_fin finish, void* context) {
  msl_simdgroup& simdgroup = *thread.sg;
  const uint32_t quad = thread.lane / 4;
  const uint32_t members = (0xfu << (quad * 4)) & simdgroup.live;
  thread.state = kAtQuadOperation;
  bool complete = true;
  for_each_lane(simdgroup, members, [&](const msl_thread& member) {
    complete &= member.state == kAtQuadOperation && member.site == thread.site;
  });
  unsigned char* results = simdgroup.quad_results[quad][0];
  if (!complete) {
    wait_for_others(thread);
    return results;
  }
  if (finish != nullptr) {
    finish(simdgroup.slots[0], members, results, context);
  }
  for_each_lane(simdgroup, members, [](msl_thread& member) { member.state = kReady; });
  simdgroup.ready |= members;
  return results;
}

}  // namespace

msl_thread& first_thread(msl_group& group) {
  group.current =
      current_dispatch->launch.order == MSL_REVERSE ? group.n_simdgroups - 1 : 0;
  const msl_simdgroup& simdgroup = group.simdgroups[group.current];
  return *simdgroup.lanes[pick_lane(group, simdgroup.ready)];
}

void end_thread(msl_thread& thread) {
  thread.state = kDone;
  thread.sg->live &= ~lane_bit(thread);
  thread.sg->ready &= ~lane_bit(thread);
  wait_for_others(thread);
  __builtin_unreachable();
}

}  // namespace mslsim

using namespace mslsim;

// What the code of kernels calls; msl_abi.h says what each does. The return address is the
// identity of a call.
extern "C" {

unsigned char* __msl_collective(
    msl_thread* thread,
    const void* value,
    msl_u32 n_bytes,
    msl_u32 scope,
    msl_fin finish,
    void* context) {
  msl_simdgroup& simdgroup = *thread->sg;
  thread->site = __builtin_return_address(0);
  thread->op_fin = reinterpret_cast<const void*>(finish);
  thread->op_ctx = context;
  hand_in(simdgroup.slots[thread->lane], value, n_bytes);
  simdgroup.ready &= ~lane_bit(*thread);
  if (scope == 4) {
    return quad_operation(*thread, finish, context);
  }
  thread->state = kAtSimdgroupOperation;
  simdgroup.at_operation |= lane_bit(*thread);
  wait_for_others(*thread);
  return simdgroup.results[0];
}

msl_u32 __msl_active(msl_thread* thread) { return thread->sg->active; }

void __msl_threadgroup_barrier(msl_u32 flags) {
  msl_thread& thread = *__msl_cur;
  thread.site = __builtin_return_address(0);
  thread.state = kAtThreadgroupBarrier;
  thread.sg->ready &= ~lane_bit(thread);
  thread.sg->at_threadgroup_barrier |= lane_bit(thread);
  current_group->barrier_flags = flags;
  wait_for_others(thread);
}

void __msl_simdgroup_barrier(msl_u32 flags) {
  msl_thread& thread = *__msl_cur;
  thread.site = __builtin_return_address(0);
  thread.state = kAtSimdgroupBarrier;
  thread.op_size = flags;
  thread.sg->ready &= ~lane_bit(thread);
  thread.sg->at_simdgroup_barrier |= lane_bit(thread);
  wait_for_others(thread);
}

// Kernels that wait for another thread's atomic would never end if nobody else ran.
void __msl_spin() {
  constexpr uint32_t kCallsPerSwitch = 64;
  static thread_local uint32_t n_calls = 0;
  msl_thread& thread = *__msl_cur;
  msl_group& group = *current_group;
  if (current_dispatch->stop) {
    fail("stopped", "dispatch stopped");
  }
  if (++n_calls % kCallsPerSwitch != 0) {
    return;
  }
  if (const uint32_t others = thread.sg->ready & ~lane_bit(thread)) {
    const uint32_t after = others & (~0u << thread.lane);
    switch_threads(thread, first_of(*thread.sg, after != 0 ? after : others));
    return;
  }
  for (uint32_t i = 1; i < group.n_simdgroups; ++i) {
    const uint32_t candidate = (group.current + i) % group.n_simdgroups;
    msl_simdgroup& simdgroup = group.simdgroups[candidate];
    if (simdgroup.ready != 0) {
      group.current = candidate;
      switch_threads(thread, first_of(simdgroup, simdgroup.ready));
      return;
    }
  }
}

void __msl_note(const char* kind, const char* message) {
  const msl_thread& thread = *__msl_cur;
  report(kind, std::string(message) + ": " + described(thread), address_of(thread.site));
}

}  // extern "C"
