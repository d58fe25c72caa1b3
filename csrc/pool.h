// A small thread pool: parallel loops on the CPU, the caller takes part.
#pragma once

#include <cstdint>
#include <functional>

namespace mlx_dsv4 {

int num_threads();
void set_num_threads(int n);

// Runs fn(begin, end) over [0, n) in pieces of at least `grain`. Pieces are taken in any order
// by any thread: fn must give the same result however the range is cut.
void parallel_for(
    int64_t n, int64_t grain, const std::function<void(int64_t, int64_t)>& fn);

}  // namespace mlx_dsv4
