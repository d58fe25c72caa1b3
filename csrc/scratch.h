// Memory of one piece of work.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>

namespace mlx_dsv4 {

struct FreeFloats {
  void operator()(float* p) const { std::free(p); }
};
using Floats = std::unique_ptr<float[], FreeFloats>;

// Uninitialised floats on a cache line boundary.
inline Floats allocate_floats(int64_t n) {
  const size_t n_bytes = (static_cast<size_t>(n) * sizeof(float) + 64) / 64 * 64;
  Floats floats(static_cast<float*>(std::aligned_alloc(64, n_bytes)));
  if (!floats) {
    throw std::bad_alloc();
  }
  return floats;
}

}  // namespace mlx_dsv4
