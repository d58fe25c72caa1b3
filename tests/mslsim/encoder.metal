// Small kernels that test_encoder.py launches, rightly and wrongly.

#include <metal_stdlib>

using namespace metal;

kernel void copy_values(
    const device float* in [[buffer(0)]],
    device float* out [[buffer(1)]],
    constant int& n [[buffer(2)]],
    uint i [[thread_position_in_grid]]) {
  if (int(i) < n) {
    out[i] = in[i];
  }
}

kernel void reverse_values(
    const device float* in [[buffer(0)]],
    device float* out [[buffer(1)]],
    threadgroup float* values [[threadgroup(0)]],
    uint i [[thread_position_in_grid]],
    uint n [[threads_per_grid]]) {
  values[i] = in[i];
  threadgroup_barrier(mem_flags::mem_threadgroup);
  out[i] = values[n - 1 - i];
}
