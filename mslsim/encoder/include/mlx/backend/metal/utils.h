// Stands in for MLX's header: the exported part and the header-only part of it.
#pragma once

#include <sstream>
#include <stdexcept>
#include <string>

#include "mlx/array.h"
#include "mlx/backend/metal/device.h"
#include "mlx/primitives.h"

namespace mlx::core {

// The MSL spelling of an element type.
std::string type_to_name(const Dtype& t);
std::string type_to_name(const array& a);

inline size_t ceildiv(size_t n, size_t m) { return (n + m - 1) / m; }

inline void check_kernel_threadgroup_size(
    const MTL::ComputePipelineState* kernel,
    MTL::Size group_dims,
    const std::string& name) {
  const auto max_size = kernel->maxTotalThreadsPerThreadgroup();
  const auto requested_size = group_dims.width * group_dims.height * group_dims.depth;
  if (max_size < requested_size) {
    std::ostringstream message;
    message << "Maximum threads per threadgroup is " << max_size << " but requested "
            << requested_size << " for kernel " << name << ".";
    throw std::runtime_error(message.str());
  }
}

}  // namespace mlx::core
