// Memory that kernels see, laid out so that what they do outside of it is noticed.
#include "memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <string>

#include "dispatch.h"
#include "findings.h"
#include "shadow.h"

namespace mslsim {
namespace {

constexpr size_t kGuardBytes = 1 << 20;
constexpr size_t kAlignment = 16;
constexpr uint32_t kThreadgroupLimit = 32768;  // of every Apple GPU
constexpr uint32_t kGapBytes = 64;             // between checked threadgroup variables
constexpr int kPoison = 0xff;                  // NaN, as any float

char* reserve(size_t n_bytes, int protection) {
  constexpr int kFlags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  return static_cast<char*>(mmap(nullptr, n_bytes, protection, kFlags, -1, 0));
}

uint32_t aligned(uint32_t offset, uint32_t alignment) {
  return (offset + alignment - 1) & ~(alignment - 1);
}

// Threadgroup memory for a variable, as the kernel finds it: with anything in it.
void* allocate(msl_group& group, uint32_t n_bytes, uint32_t alignment) {
  const uint32_t gap = current_dispatch->launch.check ? kGapBytes : 0;
  const uint32_t offset = aligned(group.memory_end + gap, alignment);
  group.memory_used = aligned(group.memory_used, alignment) + n_bytes;
  if (group.memory_used > kThreadgroupLimit) {
    fail(
        "threadgroup-memory",
        "kernel needs " + std::to_string(group.memory_used) +
            " bytes of threadgroup memory (limit 32768)");
  }
  group.memory_end = offset + n_bytes;
  group.allocations.push_back({offset, n_bytes});
  memset(group.memory + offset, kPoison, n_bytes);
  return group.memory + offset;
}

}  // namespace

Buffer map_buffer(const msl_launch& launch, int index) {
  const int flags = launch.buffer_flags[index];
  // The address keeps its low bits: kernels may only assume what the host's array has.
  const size_t begin = flags / MSL_BEGIN % kAlignment;
  Buffer buffer;
  buffer.n_bytes = launch.buffer_bytes[index];
  buffer.read_only = (flags & MSL_READ_ONLY) != 0;
  buffer.fresh = (flags & MSL_FRESH) != 0;
  const size_t n_pages = (buffer.n_bytes + begin + kPage - 1) / kPage;
  buffer.body_bytes = std::max<size_t>(n_pages, 1) * kPage;
  buffer.map_bytes = buffer.body_bytes + 2 * kGuardBytes;
  buffer.map = reserve(buffer.map_bytes, PROT_NONE);
  char* body = buffer.map + kGuardBytes;
  mprotect(body, buffer.body_bytes, PROT_READ | PROT_WRITE);
  const size_t slack = (buffer.body_bytes - buffer.n_bytes - begin) & ~(kAlignment - 1);
  buffer.base = body + slack + begin;
  memset(body, kPoison, buffer.body_bytes);
  if (!buffer.fresh) {
    memcpy(buffer.base, launch.buffer_data[index], buffer.n_bytes);
  }
  if (buffer.read_only) {
    mprotect(body, buffer.body_bytes, PROT_READ);
  } else if (launch.check) {
    buffer.shadow = map_cells(buffer.n_bytes);
  }
  return buffer;
}

void unmap_buffer(const msl_launch& launch, int index, Buffer& buffer) {
  if (!buffer.read_only) {
    memcpy(launch.buffer_data[index], buffer.base, buffer.n_bytes);
    const char* end = buffer.map + kGuardBytes + buffer.body_bytes;
    const bool untouched = std::all_of(
        static_cast<const char*>(buffer.base + buffer.n_bytes), end, [](char byte) {
          return static_cast<unsigned char>(byte) == kPoison;
        });
    if (!untouched) {
      report(
          "bounds",
          "write past the end of buffer " + std::to_string(index) +
              " (within its last 16 bytes)");
    }
  }
  if (buffer.shadow != nullptr) {
    unmap_cells(buffer.shadow, buffer.n_bytes);
  }
  munmap(buffer.map, buffer.map_bytes);
}

char* map_threadgroup_memory() {
  char* map = reserve(kThreadgroupArena + 2 * kPage, PROT_NONE);
  mprotect(map + kPage, kThreadgroupArena, PROT_READ | PROT_WRITE);
  return map + kPage;
}

void reset_threadgroup_memory(msl_group& group) {
  group.memory_end = group.memory_used = 0;
  group.allocations.clear();
  std::ranges::fill(group.variables, nullptr);
  std::ranges::fill(group.memory_arguments, nullptr);
}

bool allocate_arguments(msl_group& group) {
  for (int i = 0; i < MSL_MAX_THREADGROUP_BUFFERS; ++i) {
    const uint32_t n_bytes = current_dispatch->launch.threadgroup_bytes[i];
    if (n_bytes == 0) {
      continue;
    }
    if (group.memory_used + n_bytes > kThreadgroupLimit) {
      report("threadgroup-memory", "more than 32768 bytes of threadgroup memory");
      return false;
    }
    group.memory_arguments[i] = allocate(group, n_bytes, kAlignment);
  }
  return true;
}

}  // namespace mslsim

// The threadgroup variable of that number in the kernel, the same for all of its threads.
extern "C" void* __msl_tgvar(msl_u32 number, msl_u32 n_bytes, msl_u32 alignment) {
  constexpr msl_u32 kLeast = mslsim::kAlignment;
  msl_group& group = *mslsim::current_group;
  if (number >= group.variables.size()) {
    group.variables.resize(number + 1);
  }
  void*& variable = group.variables[number];
  if (variable == nullptr) {
    variable = mslsim::allocate(group, n_bytes, std::max(alignment, kLeast));
  }
  return variable;
}
