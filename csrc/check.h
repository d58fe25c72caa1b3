// The error spelling of every op: "[op] argument must be ...; got ...".
#pragma once

#include <sstream>
#include <stdexcept>
#include <vector>

#include "mlx/mlx.h"

namespace mlx_dsv4 {
namespace mx = mlx::core;

template <typename... Parts>
[[noreturn]] void reject(const char* op, const Parts&... parts) {
  std::ostringstream message;
  message << "[" << op << "] ";
  (message << ... << parts);
  throw std::invalid_argument(message.str());
}

inline void check_dtype(
    const char* op, const char* name, const mx::array& a, mx::Dtype expected) {
  if (a.dtype() != expected) {
    reject(op, name, " must be ", expected, "; got ", a.dtype());
  }
}

// `layout` spells the expected shape in shape letters, e.g. "[T, D] with T = 3".
template <typename Layout>
void check_shape(
    const char* op,
    const char* name,
    const mx::array& a,
    const mx::Shape& expected,
    const Layout& layout) {
  if (a.shape() != expected) {
    reject(op, name, " must be ", layout, " = ", expected, "; got ", a.shape());
  }
}

// Bytes of an array of this shape; refuses negative dims and what no machine can address.
inline size_t checked_bytes(
    const char* op, const std::vector<int>& shape, size_t item_bytes) {
  constexpr size_t kMostBytes = size_t{1} << 48;
  size_t n_bytes = item_bytes;
  for (const int dim : shape) {
    if (dim < 0 || (dim > 0 && n_bytes > kMostBytes / static_cast<size_t>(dim))) {
      reject(
          op,
          "shape must have dims >= 0 and at most 2^48 bytes; got ",
          mx::Shape(shape.begin(), shape.end()));
    }
    n_bytes *= static_cast<size_t>(dim);
  }
  return n_bytes;
}

// Ids in 0..n - 1, checked where they are already known. Those that are still being computed
// cannot be: an error from a queued kernel would reach whoever waits for the stream next.
inline void check_known_ids(
    const char* op, const char* name, const mx::array& ids, int n) {
  if (!ids.is_available() || !ids.flags().row_contiguous) {
    return;
  }
  const int32_t* values = ids.data<int32_t>();
  for (size_t i = 0; i < ids.size(); ++i) {
    if (values[i] < 0 || values[i] >= n) {
      reject(op, name, " must be in 0..", n - 1, "; got ", values[i], " at index ", i);
    }
  }
}

}  // namespace mlx_dsv4
