// What launches of Metal kernels share.
#pragma once

#include <utility>

#include "metal_library.h"
#include "mlx/backend/metal/device.h"
#include "primitive.h"

namespace mlx_dsv4 {

using Encoder = mx::metal::CommandEncoder;

// Memory that lives until the kernels encoded so far are done.
inline mx::array temporary(Encoder& encoder, mx::Shape shape, mx::Dtype dtype) {
  mx::array made(std::move(shape), dtype, nullptr, {});
  allocate(made);
  encoder.add_temporary(made);
  return made;
}

}  // namespace mlx_dsv4
