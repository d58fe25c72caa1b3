// Memory that kernels see: buffers between guard pages, and threadgroup memory.
#pragma once

#include "threads.h"

namespace mslsim {

// One buffer of a dispatch, in a copy: guard region, slack, data, guard region. The data ends
// with the upper guard, up to the 16 bytes of its alignment.
struct Buffer {
  char* base = nullptr;
  size_t n_bytes = 0;
  char* map = nullptr;  // null where nothing is bound
  size_t map_bytes = 0;
  size_t body_bytes = 0;  // of the map, without the guards
  bool read_only = false;
  bool fresh = false;
  Cell* shadow = nullptr;  // null where accesses are not checked

  bool maps(uintptr_t address) const {
    return address - reinterpret_cast<uintptr_t>(map) < map_bytes;
  }
};

// A copy of the data that a launch binds at an index.
Buffer map_buffer(const msl_launch& launch, int index);

// Copies the data back, and reports what was written behind its end.
void unmap_buffer(const msl_launch& launch, int index, Buffer& buffer);

// Bytes of the address range of threadgroup memory: more than kernels may use, for gaps.
constexpr size_t kThreadgroupArena = 256 << 10;

char* map_threadgroup_memory();
void reset_threadgroup_memory(msl_group& group);

// Gives a threadgroup the lengths of the launch; false, with a report, if they do not fit.
bool allocate_arguments(msl_group& group);

}  // namespace mslsim
