// Shadow memory: who touched each byte last, to find races and reads of what nobody wrote.
#pragma once

#include <cstddef>
#include <cstdint>

namespace mslsim {

// One access.
struct Stamp {
  uint32_t group;  // number of the threadgroup, from 1; 0 where there was no access
  uint16_t thread;
  uint16_t group_epoch;
  uint32_t simdgroup_epoch;
  uint32_t pc;  // its low half
};

// The accesses to one byte that a later one can race with.
struct Cell {
  Stamp write;
  Stamp read;
  Stamp other_read;  // by another thread than `read`
  bool write_is_atomic;
  bool read_is_atomic;
  bool other_read_is_atomic;
};

// Cells of that many bytes, none touched yet.
Cell* map_cells(size_t n_bytes);
void unmap_cells(Cell* cells, size_t n_bytes);
void forget_accesses(Cell* cells, size_t n_bytes);

struct Access {
  const volatile void* address;
  size_t n_bytes;
  bool writes;
  bool is_atomic;
  uint64_t pc;
};

// Checks an access of the current thread: its bounds, and what others did there.
void check_access(const Access& access);

}  // namespace mslsim
