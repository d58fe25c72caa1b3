// Compiled shaders: where they come from, and the pipeline of one kernel.
#pragma once

#include <string>
#include <vector>

#include "mlx/mlx.h"

namespace MTL {
class ComputePipelineState;
}

namespace mlx_dsv4 {
namespace mx = mlx::core;

// The kernel `function` of metal/<family>.metal for these template arguments, spelled as in
// Metal ({"bfloat", "512"}); its host name is they joined with "_". Compiled on first use
// unless the library that was built ahead of time has it. Throws std::runtime_error with the
// compiler's message where the shader does not compile.
MTL::ComputePipelineState* metal_kernel(
    mx::Stream stream,
    const std::string& family,
    const std::string& function,
    const std::vector<std::string>& arguments);

// How Metal spells the element type.
std::string metal_type(mx::Dtype dtype);

// Whether this build can evaluate ops on a GPU.
bool has_gpu_kernels();

// For people: which of the two it is in this build and on this machine.
std::string shader_origin();

}  // namespace mlx_dsv4
