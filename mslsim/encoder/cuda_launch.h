// Kernels of cubins on the first NVIDIA GPU of this machine.
#pragma once

#include <string>

#include "../runtime/simulator.h"

namespace mslsim::cuda {

// The kernel of that name in a cubin, with the binding table that the cubin holds; null if it has
// none. It is run by dispatch() alone.
const msl_kernel* kernel(const std::string& cubin, const std::string& name);

// Copies the buffers to the GPU, runs a kernel to its end, and copies back what it may write; throws
// errors with the kernel's name and CUDA's text. Microseconds of one run, the mean of `repeats`
// further ones; 0 for none.
double dispatch(const std::string& cubin, const msl_launch& launch, int repeats);

}  // namespace mslsim::cuda
