// Fibres: their stacks, and the switch from one to another.
#include "threads.h"

#include <sys/mman.h>

#include <algorithm>

#include "dispatch.h"
#include "schedule.h"

// void msl_switch(void** from, void* to)
asm(R"(
.text
.globl msl_switch
.type msl_switch,@function
msl_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  popq %rax
  jmp *%rax
.size msl_switch,.-msl_switch
)");

__thread msl_thread* __msl_cur = nullptr;

namespace mslsim {

__thread msl_group* current_group = nullptr;

namespace {

constexpr size_t kStackBytes = 128 << 10;
constexpr size_t kStackStride = kStackBytes + kPage;  // with the guard page below it
constexpr int kSavedRegisters = 6;                    // by msl_switch

// The first code of every fibre.
void run_thread() {
  const msl_group& group = *current_group;
  group.kernel->entry(__msl_cur, &group.shape);
  end_thread(*__msl_cur);
}

// Makes msl_switch() to the thread's stack start run_thread().
void prepare_stack(msl_group& group, msl_thread& thread) {
  // Tops at different offsets, so that they do not all share the same cache sets.
  const size_t stagger = 64 + thread.tid % 61 * 64;
  char* top = group.stacks + (thread.tid + 1) * kStackStride - stagger;
  auto** sp = reinterpret_cast<void**>(reinterpret_cast<uintptr_t>(top) & ~uintptr_t{63});
  *--sp =
      nullptr;  // a return address: at its entry a function's stack is 8 off alignment
  *--sp = reinterpret_cast<void*>(run_thread);
  for (int i = 0; i < kSavedRegisters; ++i) {
    *--sp = nullptr;
  }
  thread.sp = sp;
}

void reset_shape(msl_group& group) {
  const Dispatch& dispatch = *current_dispatch;
  const msl_launch& launch = dispatch.launch;
  msl_shape& shape = group.shape;
  uint32_t rest = group.number;
  for (int i = 0; i < 3; ++i) {
    const uint32_t nominal = launch.threadgroup[i], n_groups = dispatch.n_groups[i];
    shape.tgid3[i] = rest % n_groups;
    rest /= n_groups;
    shape.tg_nominal[i] = nominal;
    shape.tgs[i] = n_groups;
    shape.grid[i] = launch.grid_is_threads ? launch.grid[i] : launch.grid[i] * nominal;
    shape.tg[i] = std::min(nominal, shape.grid[i] - shape.tgid3[i] * nominal);
  }
  group.n_threads = shape.tg[0] * shape.tg[1] * shape.tg[2];
  group.n_simdgroups = (group.n_threads + kLanes - 1) / kLanes;
  shape.nthreads = group.n_threads;
  shape.nsimd = group.n_simdgroups;
  shape.bufs = dispatch.buffer_bases;
  shape.tgbufs = group.memory_arguments;
}

void reset_simdgroups(msl_group& group) {
  for (uint32_t i = 0; i < group.n_simdgroups; ++i) {
    msl_simdgroup& simdgroup = group.simdgroups[i];
    const uint32_t n_lanes = std::min(kLanes, group.n_threads - i * kLanes);
    simdgroup.live = simdgroup.ready = ~0u >> (kLanes - n_lanes);
    simdgroup.at_operation = simdgroup.at_simdgroup_barrier = 0;
    simdgroup.at_threadgroup_barrier = simdgroup.active = 0;
    simdgroup.epochs = {};
    for (uint32_t l = 0; l < kLanes; ++l) {
      simdgroup.lanes[l] = l < n_lanes ? &group.threads[i * kLanes + l] : nullptr;
    }
  }
}

void reset_threads(msl_group& group) {
  const msl_shape& shape = group.shape;
  for (uint32_t i = 0; i < group.n_threads; ++i) {
    msl_thread& thread = group.threads[i];
    thread = {};
    thread.tid = i;
    thread.lane = i % kLanes;
    thread.sgi = i / kLanes;
    thread.state = kReady;
    thread.sg = &group.simdgroups[thread.sgi];
    thread.g = &group;
    uint32_t rest = i;
    for (int k = 0; k < 3; ++k) {
      thread.tid3[k] = rest % shape.tg[k];
      rest /= shape.tg[k];
      thread.gid3[k] = shape.tgid3[k] * shape.tg_nominal[k] + thread.tid3[k];
    }
    prepare_stack(group, thread);
  }
}

}  // namespace

msl_group* make_group() {
  auto* group = new msl_group;
  group->stacks = static_cast<char*>(mmap(
      nullptr,
      kStackStride * MSL_MAX_THREADS,
      PROT_READ | PROT_WRITE,
      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
      -1,
      0));
  for (uint32_t i = 0; i < MSL_MAX_THREADS; ++i) {
    mprotect(group->stacks + i * kStackStride, kPage, PROT_NONE);
  }
  group->memory = map_threadgroup_memory();
  return group;
}

bool is_in_stacks(const msl_group& group, uintptr_t address) {
  return address - reinterpret_cast<uintptr_t>(group.stacks) <
         kStackStride * MSL_MAX_THREADS;
}

void reset_group(msl_group& group, uint32_t number) {
  group.number = number;
  group.epochs = {};
  group.failed = false;
  group.random.seed(current_dispatch->launch.seed * 7919 + number);
  reset_shape(group);
  reset_simdgroups(group);
  reset_threads(group);
  reset_threadgroup_memory(group);
}

void run_group(msl_group& group) {
  msl_thread& first = first_thread(group);
  __msl_cur = &first;
  group.in_fibre = true;
  msl_switch(&group.caller, first.sp);
}

void leave_fibres(msl_group& group) {
  void* abandoned;
  msl_switch(&abandoned, group.caller);
  __builtin_unreachable();
}

}  // namespace mslsim
