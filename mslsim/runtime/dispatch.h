// One launch while it runs.
#pragma once

#include <atomic>
#include <vector>

#include "findings.h"
#include "memory.h"
#include "simulator.h"

namespace mslsim {

struct Dispatch {
  explicit Dispatch(const msl_launch& launch);

  const msl_launch& launch;
  uint32_t n_groups[3];
  std::vector<uint32_t> order;  // numbers of the threadgroups as they are to run
  std::atomic<uint32_t> next{0};
  std::atomic<bool> stop{false};
  Buffer buffers[MSL_MAX_BUFFERS];
  void* buffer_bases[MSL_MAX_BUFFERS] = {};
  Findings findings;
};

// One at a time in a process.
extern Dispatch* current_dispatch;

// Runs threadgroups of the current dispatch until none is left or one has failed.
void run_groups(msl_group& group);

}  // namespace mslsim
