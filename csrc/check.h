// The error spelling of every op: "[op] argument must be ...; got ...".
#pragma once

#include <sstream>
#include <stdexcept>

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

// Ids in 0..n - 1, checked where they are already known. Those that are still being computed
// cannot be: an error from a queued kernel would reach whoever waits for the stream next.
inline void check_known_ids(
    const char* op, const char* name, const mx::array& ids, int n) {
  if (ids.status() != mx::array::Status::available || !ids.flags().row_contiguous) {
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
