#include "pool.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace mlx_dsv4 {
namespace {

constexpr int kMostThreads = 256;

using Body = std::function<void(int64_t, int64_t)>;

void pause_briefly() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// One parallel loop. Workers take pieces until none is left; the first exception is kept.
class Loop {
 public:
  Loop(int64_t n, int64_t piece, const Body& body) : n_(n), piece_(piece), body_(body) {}

  void work() {
    for (int64_t begin = next_.fetch_add(piece_); begin < n_;
         begin = next_.fetch_add(piece_)) {
      try {
        body_(begin, std::min(n_, begin + piece_));
      } catch (...) {
        std::lock_guard lock(mutex_);
        error_ = error_ ? error_ : std::current_exception();
      }
    }
  }

  void rethrow() const {
    if (error_) {
      std::rethrow_exception(error_);
    }
  }

 private:
  const int64_t n_, piece_;
  const Body& body_;
  std::atomic<int64_t> next_{0};
  std::mutex mutex_;
  std::exception_ptr error_;
};

// Threads join a loop if they wake while it runs; a loop never waits for one that has not joined,
// so a busy machine costs parallelism and not latency.
class Pool {
 public:
  void run(Loop& loop, int helpers) {
    std::lock_guard one_loop_at_a_time(run_mutex_);
    grow(helpers);
    {
      std::lock_guard lock(mutex_);
      loop_ = &loop;
      wanted_ = helpers;
      generation_.fetch_add(1, std::memory_order_release);
    }
    wake_.notify_all();
    loop.work();
    {
      std::lock_guard lock(mutex_);
      loop_ = nullptr;
    }
    for (int spin = 0; joined_.load(std::memory_order_acquire) > 0; ++spin) {
      spin < kSpins ? pause_briefly() : std::this_thread::yield();
    }
  }

 private:
  void grow(int n) {
    while (static_cast<int>(threads_.size()) < n) {
      const int id = static_cast<int>(threads_.size());
      threads_.emplace_back([this, id, seen = generation_.load()] { serve(id, seen); });
    }
  }

  void serve(int id, uint64_t seen) {
    for (;;) {
      // Loops follow each other within microseconds in a decode step: spin before sleeping.
      for (int spin = 0; spin < kSpins && generation_.load() == seen; ++spin) {
        pause_briefly();
      }
      Loop* loop = nullptr;
      {
        std::unique_lock lock(mutex_);
        wake_.wait(lock, [&] { return generation_.load() != seen; });
        seen = generation_.load();
        if (loop_ && id < wanted_) {
          loop = loop_;
          joined_.fetch_add(1, std::memory_order_relaxed);
        }
      }
      if (loop) {
        loop->work();
        joined_.fetch_sub(1, std::memory_order_release);
      }
    }
  }

  static constexpr int kSpins = 2000;
  std::mutex run_mutex_, mutex_;
  std::condition_variable wake_;
  std::atomic<uint64_t> generation_{0};
  std::atomic<int> joined_{0};
  Loop* loop_ = nullptr;
  int wanted_ = 0;
  std::vector<std::thread> threads_;
};

Pool& pool() {
  static Pool* leaked =
      new Pool;  // threads are never joined: the process may exit at any time
  return *leaked;
}

std::atomic<int> thread_count{
    std::max(1, static_cast<int>(std::thread::hardware_concurrency()))};

}  // namespace

int num_threads() { return thread_count; }

void set_num_threads(int n) {
  if (n < 1 || n > kMostThreads) {
    throw std::invalid_argument(
        "[set_num_threads] n must be in 1.." + std::to_string(kMostThreads) + "; got " +
        std::to_string(n));
  }
  thread_count = n;
}

void parallel_for(int64_t n, int64_t grain, const Body& fn) {
  if (n <= 0) {
    return;
  }
  const int64_t pieces = (n + grain - 1) / grain;
  const int threads = static_cast<int>(std::min<int64_t>(num_threads(), pieces));
  if (threads <= 1) {
    fn(0, n);
    return;
  }
  const int64_t per_thread = (n + 4 * threads - 1) / (4 * threads);
  Loop loop(n, std::max(grain, per_thread), fn);
  pool().run(loop, threads - 1);
  loop.rethrow();
}

}  // namespace mlx_dsv4
