// A threadgroup while it runs: one OS thread, and a fibre for each of its GPU threads.
#pragma once

#include <array>
#include <csetjmp>
#include <random>
#include <vector>

#include "simulator.h"

namespace mslsim {

constexpr uint32_t kLanes = 32, kQuads = kLanes / 4;
constexpr uint32_t kMaxSimdgroups = MSL_MAX_THREADS / kLanes;
constexpr uint32_t kSlotBytes = 64;  // of one lane, in an operation of a SIMD-group
constexpr size_t kPage = 4096;

enum ThreadState : uint32_t {
  kReady,
  kAtSimdgroupOperation,
  kAtQuadOperation,
  kAtSimdgroupBarrier,
  kAtThreadgroupBarrier,
  kDone,
};

// Metal's mem_flags, as far as they concern this simulator.
enum MemFlags : uint32_t { kMemDevice = 1, kMemThreadgroup = 2 };

// How many barriers have ordered each kind of memory.
struct Epochs {
  uint32_t device = 0;
  uint32_t threadgroup = 0;

  void pass_barrier(uint32_t flags) {
    device += (flags & kMemDevice) != 0;
    threadgroup += (flags & kMemThreadgroup) != 0;
  }
};

// A part of a threadgroup's memory that the kernel owns.
struct Allocation {
  uint32_t offset;
  uint32_t n_bytes;
};

struct Cell;  // of shadow memory

}  // namespace mslsim

// The names of these two are those of msl_abi.h. Sets of lanes are bit masks.
struct msl_simdgroup {
  using Slots = unsigned char[mslsim::kLanes][mslsim::kSlotBytes];

  alignas(64) Slots slots;    // what the lanes hand in
  alignas(64) Slots results;  // what the last operation made of it
  alignas(64) Slots quad_results[mslsim::kQuads];
  uint32_t live;  // have not returned
  uint32_t ready;
  uint32_t at_operation;
  uint32_t at_simdgroup_barrier;
  uint32_t at_threadgroup_barrier;
  uint32_t active;  // took part in the last operation
  mslsim::Epochs epochs;
  msl_thread* lanes[mslsim::kLanes];
};

struct msl_group {
  std::array<msl_thread, MSL_MAX_THREADS> threads{};
  std::array<msl_simdgroup, mslsim::kMaxSimdgroups> simdgroups{};
  char* stacks = nullptr;
  const msl_kernel* kernel = nullptr;
  msl_shape shape{};
  uint32_t number = 0;  // in the grid, x fastest
  uint32_t n_threads = 0;
  uint32_t n_simdgroups = 0;
  uint32_t current = 0;        // the SIMD-group that runs
  mslsim::Epochs epochs;       // of barriers of the whole threadgroup
  uint32_t barrier_flags = 0;  // of the barrier that threads wait at
  std::mt19937 random;

  char* memory = nullptr;        // threadgroup memory
  uint32_t memory_end = 0;       // with the gaps between allocations
  uint32_t memory_used = 0;      // without them
  std::vector<void*> variables;  // by their number in the kernel
  void* memory_arguments[MSL_MAX_THREADGROUP_BUFFERS] = {};
  std::vector<mslsim::Allocation> allocations;
  mslsim::Cell* shadow = nullptr;

  void* caller = nullptr;  // stack pointer of what started the first fibre
  bool in_fibre = false;
  bool failed = false;
  sigjmp_buf after_fault;
};

extern "C" {
// Saves the callee-saved registers and the stack pointer, and goes on where `to` was saved.
void msl_switch(void** from, void* to);
extern __attribute__((
    tls_model("initial-exec"), visibility("default"))) __thread msl_thread* __msl_cur;
}

namespace mslsim {

// The threadgroup that this OS thread runs, if it runs one.
extern __attribute__((tls_model("initial-exec"))) __thread msl_group* current_group;

inline uint32_t lane_bit(const msl_thread& thread) { return 1u << thread.lane; }

// Memory for the threads of any threadgroup. Never freed: a worker's next dispatch uses it.
msl_group* make_group();

// Puts the threads of the grid's threadgroup of that number at the kernel's beginning.
void reset_group(msl_group& group, uint32_t number);

// Runs a threadgroup from its beginning until all threads have returned, or one has failed.
void run_group(msl_group& group);

// Leaves all fibres for what called run_group().
[[noreturn]] void leave_fibres(msl_group& group);

bool is_in_stacks(const msl_group& group, uintptr_t address);

}  // namespace mslsim
