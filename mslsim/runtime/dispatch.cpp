// A dispatch: copies the buffers, runs the threadgroups on worker threads, copies back.
#include "dispatch.h"

#include <pthread.h>
#include <time.h>

#include <algorithm>
#include <csignal>
#include <mutex>
#include <numeric>
#include <random>

#include "faults.h"

namespace mslsim {

Dispatch* current_dispatch = nullptr;

Dispatch::Dispatch(const msl_launch& the_launch) : launch(the_launch) {
  uint32_t total = 1;
  for (int i = 0; i < 3; ++i) {
    const uint32_t size = launch.grid[i], nominal = launch.threadgroup[i];
    n_groups[i] = launch.grid_is_threads ? (size + nominal - 1) / nominal : size;
    total *= n_groups[i];
  }
  order.resize(total);
  std::iota(order.begin(), order.end(), 0);
  if (launch.order == MSL_REVERSE) {
    std::ranges::reverse(order);
  } else if (launch.order == MSL_RANDOM) {
    std::shuffle(order.begin(), order.end(), std::mt19937(launch.seed));
  }
}

namespace {

constexpr int kMostWorkers = 64;

double seconds_now() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// Whether the thread ends within a short while.
bool joins_soon(pthread_t thread) {
  constexpr long kWaitNs = 50'000'000, kSecondNs = 1'000'000'000;
  timespec until;
  clock_gettime(CLOCK_REALTIME, &until);
  until.tv_nsec += kWaitNs;
  if (until.tv_nsec >= kSecondNs) {
    until.tv_nsec -= kSecondNs;
    ++until.tv_sec;
  }
  return pthread_timedjoin_np(thread, nullptr, &until) == 0;
}

void* run_worker(void* group) {
  run_groups(*static_cast<msl_group*>(group));
  return nullptr;
}

int worker_count(const Dispatch& dispatch) {
  // Shadow memory is not synchronised.
  const int asked =
      dispatch.launch.check ? 1 : std::clamp(dispatch.launch.workers, 1, kMostWorkers);
  const auto useful = std::max<size_t>(dispatch.order.size(), 1);
  return static_cast<int>(std::min<size_t>(asked, useful));
}

void run_workers(const Dispatch& dispatch) {
  static msl_group* groups[kMostWorkers];
  const double start = seconds_now();
  const int n_workers = worker_count(dispatch);
  pthread_t workers[kMostWorkers];
  for (int i = 0; i < n_workers; ++i) {
    if (groups[i] == nullptr) {
      groups[i] = make_group();
    }
    pthread_create(&workers[i], nullptr, run_worker, groups[i]);
  }
  const double limit_s = dispatch.launch.timeout_s;
  for (int i = 0; i < n_workers; ++i) {
    while (!joins_soon(workers[i])) {
      if (limit_s > 0 && seconds_now() - start > limit_s) {
        for (int j = i; j < n_workers; ++j) {
          pthread_kill(workers[j], kTimeoutSignal);
        }
      }
    }
  }
}

}  // namespace
}  // namespace mslsim

extern "C" void msl_dispatch(msl_launch* launch) {
  using namespace mslsim;
  static std::mutex one_at_a_time;
  const std::lock_guard lock(one_at_a_time);
  Dispatch dispatch(*launch);
  current_dispatch = &dispatch;
  const double start = seconds_now();
  for (int i = 0; i < MSL_MAX_BUFFERS; ++i) {
    if (launch->buffer_data[i] != nullptr) {
      dispatch.buffers[i] = map_buffer(*launch, i);
      dispatch.buffer_bases[i] = dispatch.buffers[i].base;
    }
  }
  const double run_start = seconds_now();
  {
    const FaultHandlers handlers;
    run_workers(dispatch);
  }
  const double run_end = seconds_now();
  for (int i = 0; i < MSL_MAX_BUFFERS; ++i) {
    if (dispatch.buffers[i].map != nullptr) {
      unmap_buffer(*launch, i, dispatch.buffers[i]);
    }
  }
  launch->run_s = run_end - run_start;
  launch->copy_s = run_start - start + seconds_now() - run_end;
  launch->failed = dispatch.stop;
  launch->findings = new msl_findings{dispatch.findings.all()};
  current_dispatch = nullptr;
}
