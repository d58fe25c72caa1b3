// Checks of each access: bounds, races, reads of memory that nothing has written.
#include "shadow.h"

#include <sys/mman.h>

#include <algorithm>
#include <string>

#include "dispatch.h"
#include "findings.h"
#include "threads.h"

namespace mslsim {
namespace {

// The byte that an access begins with.
struct Place {
  bool in_threadgroup;
  int index;  // of the buffer or of the threadgroup variable
  size_t offset;
  Cell* cell;
  bool fresh;  // an output, which holds nothing until it is written

  const char* memory() const { return in_threadgroup ? "threadgroup" : "device"; }

  std::string spelled() const {
    return (in_threadgroup ? "variable #" : "buffer ") + std::to_string(index) + " +" +
           std::to_string(offset);
  }
};

Stamp stamp_of(const msl_thread& thread, const Place& place, uint64_t pc) {
  const msl_group& group = *current_group;
  const Epochs &all = group.epochs, &some = thread.sg->epochs;
  const uint32_t group_epoch = place.in_threadgroup ? all.threadgroup : all.device;
  return {
      group.number + 1,
      static_cast<uint16_t>(thread.tid),
      static_cast<uint16_t>(group_epoch),
      place.in_threadgroup ? some.threadgroup : some.device,
      static_cast<uint32_t>(pc)};
}

// Whether nothing orders a past access and one of now.
bool is_concurrent(const Stamp& past, const Stamp& now, const Place& place) {
  if (past.group == 0) {
    return false;
  }
  if (past.group != now.group) {
    return !place.in_threadgroup;
  }
  if (past.thread == now.thread || past.group_epoch != now.group_epoch) {
    return false;
  }
  const bool same_simdgroup = past.thread / kLanes == now.thread / kLanes;
  return !same_simdgroup || past.simdgroup_epoch == now.simdgroup_epoch;
}

void report_race(
    const char* what, const Place& place, const Stamp& past, const Access& access) {
  const bool same_group = past.group == current_group->number + 1;
  std::string text = std::string(what) + " race on " + place.memory() + " memory " +
                     place.spelled() + ": " + described(*__msl_cur) + " vs thread " +
                     std::to_string(past.thread);
  text += same_group ? " of the same threadgroup, no barrier in between"
                     : " of threadgroup #" + std::to_string(past.group - 1);
  const uint64_t past_pc = past.pc == 0 ? 0 : (access.pc & ~0xffffffffull) + past.pc;
  report("race", text, access.pc, past_pc);
}

void check_write(Cell& cell, const Stamp& now, const Place& place, const Access& access) {
  const bool atomic = access.is_atomic;
  const auto races = [&](const Stamp& past, bool past_atomic) {
    return is_concurrent(past, now, place) && !(atomic && past_atomic);
  };
  if (races(cell.write, cell.write_is_atomic)) {
    report_race("write/write", place, cell.write, access);
  }
  if (races(cell.read, cell.read_is_atomic)) {
    report_race("write-after-read", place, cell.read, access);
  } else if (races(cell.other_read, cell.other_read_is_atomic)) {
    report_race("write-after-read", place, cell.other_read, access);
  }
  cell.write = now;
  cell.write_is_atomic = atomic;
}

void check_read(Cell& cell, const Stamp& now, const Place& place, const Access& access) {
  const bool atomic = access.is_atomic;
  if (is_concurrent(cell.write, now, place) && !(atomic && cell.write_is_atomic)) {
    report_race("read-after-write", place, cell.write, access);
  }
  // Threadgroup memory holds nothing of an earlier threadgroup.
  const bool written =
      place.in_threadgroup ? cell.write.group == now.group : cell.write.group != 0;
  if (!written && (place.in_threadgroup || place.fresh)) {
    const char* memory = place.in_threadgroup ? "threadgroup" : "output";
    report(
        "uninitialised",
        std::string("read of never-written ") + memory + " memory " + place.spelled() +
            " by " + described(*__msl_cur),
        access.pc);
  }
  const bool replaces = cell.read.group != now.group || cell.read.thread == now.thread ||
                        !is_concurrent(cell.read, now, place);
  (replaces ? cell.read : cell.other_read) = now;
  (replaces ? cell.read_is_atomic : cell.other_read_is_atomic) = atomic;
}

void check_cells(const Place& place, const Access& access) {
  const Stamp now = stamp_of(*__msl_cur, place, access.pc);
  for (size_t i = 0; i < access.n_bytes; ++i) {
    if (access.writes) {
      check_write(place.cell[i], now, place, access);
    } else {
      check_read(place.cell[i], now, place, access);
    }
  }
}

void report_bounds(const Access& access, const std::string& where) {
  report(
      "bounds",
      std::string(access.writes ? "write" : "read") + " of " +
          std::to_string(access.n_bytes) + " bytes " + where + " by " +
          described(*__msl_cur),
      access.pc);
}

void check_threadgroup_access(const Access& access, size_t offset) {
  const msl_group& group = *current_group;
  const auto holds = [&](const Allocation& allocation) {
    return offset >= allocation.offset &&
           offset + access.n_bytes <= allocation.offset + allocation.n_bytes;
  };
  const auto found = std::ranges::find_if(group.allocations, holds);
  if (found == group.allocations.end()) {
    report_bounds(
        access,
        "outside every threadgroup array (offset " + std::to_string(offset) + ")");
    return;
  }
  const auto index = static_cast<int>(found - group.allocations.begin());
  check_cells({true, index, offset - found->offset, group.shadow + offset, true}, access);
}

void check_buffer_access(const Access& access, int index, const Buffer& buffer) {
  const auto offset = static_cast<int64_t>(
      reinterpret_cast<uintptr_t>(access.address) -
      reinterpret_cast<uintptr_t>(buffer.base));
  if (offset < 0 || offset + access.n_bytes > buffer.n_bytes) {
    report_bounds(
        access,
        "at offset " + std::to_string(offset) + " of buffer " + std::to_string(index) +
            " (" + std::to_string(buffer.n_bytes) + " bytes)");
  } else if (buffer.shadow != nullptr) {
    const auto at = static_cast<size_t>(offset);
    check_cells({false, index, at, buffer.shadow + at, buffer.fresh}, access);
  }
}

}  // namespace

Cell* map_cells(size_t n_bytes) {
  constexpr int kFlags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  const size_t length = std::max<size_t>(n_bytes, 1) * sizeof(Cell);
  return static_cast<Cell*>(mmap(nullptr, length, PROT_READ | PROT_WRITE, kFlags, -1, 0));
}

void unmap_cells(Cell* cells, size_t n_bytes) {
  munmap(cells, std::max<size_t>(n_bytes, 1) * sizeof(Cell));
}

void forget_accesses(Cell* cells, size_t n_bytes) {
  madvise(cells, n_bytes * sizeof(Cell), MADV_DONTNEED);
}

void check_access(const Access& access) {
  const msl_group* group = current_group;
  if (group == nullptr || !group->in_fibre || __msl_cur == nullptr) {
    return;
  }
  const auto address = reinterpret_cast<uintptr_t>(access.address);
  const size_t offset = address - reinterpret_cast<uintptr_t>(group->memory);
  if (offset < kThreadgroupArena) {
    check_threadgroup_access(access, offset);
    return;
  }
  // Almost always the buffer of the access before; memory in no buffer is the thread's own.
  static thread_local int last = 0;
  const Dispatch& dispatch = *current_dispatch;
  for (int i = 0; i < MSL_MAX_BUFFERS; ++i) {
    const int index = (last + i) % MSL_MAX_BUFFERS;
    if (dispatch.buffers[index].maps(address)) {
      last = index;
      check_buffer_access(access, index, dispatch.buffers[index]);
      return;
    }
  }
}

}  // namespace mslsim
