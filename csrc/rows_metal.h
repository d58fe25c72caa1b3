// Launches of kernels that make rows: which of them, and what they bind.
#pragma once

#include "../metal/row_slices.h"
#include "check.h"
#include "metal_launch.h"

namespace mlx_dsv4 {

// Slices of a kernel for rows of `dim` dims: a power of two, so that few kernels serve all.
constexpr int row_slices(int dim) {
  int slices = 1;
  while (slices * kRowSliceDims < dim) {
    slices *= 2;
  }
  return slices;
}

// The kernel `function` for rows of this dtype and `dim` dims. Called before anything is bound.
inline MTL::ComputePipelineState* row_kernel(
    mx::Stream stream,
    const char* family,
    const char* function,
    mx::Dtype dtype,
    int dim) {
  if (dim > kRowMaxDim) {
    std::ostringstream message;
    message << "[" << function << "] D must be at most " << kRowMaxDim
            << " on the GPU; got " << dim;
    throw std::runtime_error(message.str());
  }
  return metal_kernel(
      stream, family, function, {metal_type(dtype), std::to_string(row_slices(dim))});
}

// An empty array has no buffer to bind, and its kernel reads nothing of it.
inline const mx::array& bindable(const mx::array& wanted, const mx::array& instead) {
  return wanted.size() > 0 ? wanted : instead;
}

// One simdgroup per row: n_rows of each of n_tokens tokens.
inline void dispatch_rows(Encoder& encoder, int n_rows, int n_tokens) {
  encoder.dispatch_threadgroups(
      MTL::Size(ceil_div(n_rows, kRowsPerGroup), n_tokens, 1),
      MTL::Size(kSimdWidth * kRowsPerGroup, 1, 1));
}

}  // namespace mlx_dsv4
