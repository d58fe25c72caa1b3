// Kernels with one mistake each, for test_detect.py. `repaired` takes the mistake away.

#include <metal_stdlib>

using namespace metal;

constant bool repaired [[function_constant(0)]];
constant int offset [[function_constant(1)]];

// Threads write their slot, then read another's.
kernel void no_barrier(
    device float* out [[buffer(0)]],
    uint t [[thread_position_in_threadgroup]],
    uint n [[threads_per_threadgroup]]) {
  threadgroup float slots[256];
  slots[t] = t;
  if (repaired) {
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
  out[t] = slots[(t + 33) % n];
}

// Lanes run together, but only a barrier orders their memory.
kernel void no_memory_in_simdgroup_barrier(
    device float* out [[buffer(0)]], uint t [[thread_index_in_simdgroup]]) {
  threadgroup float slots[32];
  slots[t] = t;
  if (repaired) {
    simdgroup_barrier(mem_flags::mem_threadgroup);
  } else {
    simdgroup_barrier(mem_flags::mem_none);
  }
  out[t] = slots[31 - t];
}

kernel void wrong_barrier_flag(
    device float* out [[buffer(0)]],
    uint t [[thread_position_in_threadgroup]],
    uint n [[threads_per_threadgroup]]) {
  threadgroup float slots[256];
  slots[t] = t;
  threadgroup_barrier(repaired ? mem_flags::mem_threadgroup : mem_flags::mem_device);
  out[t] = slots[(t + 40) % n];
}

kernel void wrong_barrier_flag_for_device(
    device float* out [[buffer(0)]],
    uint t [[thread_position_in_threadgroup]],
    uint n [[threads_per_threadgroup]]) {
  out[t] = t;
  threadgroup_barrier(repaired ? mem_flags::mem_device : mem_flags::mem_threadgroup);
  out[n + t] = out[(t + 40) % n];
}

// Slots are written again while others still read them.
kernel void no_barrier_before_reuse(
    device float* out [[buffer(0)]],
    uint t [[thread_position_in_threadgroup]],
    uint n [[threads_per_threadgroup]]) {
  threadgroup float slots[256];
  float sum = 0;
  for (int i = 0; i < 4; i++) {
    slots[t] = t * i;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    sum += slots[n - 1 - t];
    if (repaired) {
      threadgroup_barrier(mem_flags::mem_threadgroup);
    }
  }
  out[t] = sum;
}

kernel void threadgroups_write_one_place(
    device float* out [[buffer(0)]],
    device atomic_uint* count [[buffer(1)]],
    uint group [[threadgroup_position_in_grid]],
    uint t [[thread_position_in_threadgroup]]) {
  if (repaired) {
    atomic_fetch_add_explicit(count, 1u, memory_order_relaxed);
  } else {
    out[t] = group;
  }
}

kernel void two_barriers(
    device float* out [[buffer(0)]], uint t [[thread_position_in_threadgroup]]) {
  if (repaired || t < 32) {
    threadgroup_barrier(mem_flags::mem_threadgroup);
  } else {
    out[t] = 1;
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
  out[t] = 2;
}

kernel void barrier_after_return(
    device float* out [[buffer(0)]], uint t [[thread_position_in_threadgroup]]) {
  if (!repaired && t >= 48) {
    return;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  out[t] = 2;
}

kernel void divergent_simd_sum(
    device float* out [[buffer(0)]], uint t [[thread_position_in_threadgroup]]) {
  float v = t;
  if (repaired) {
    v = simd_sum(v);
  } else if (t & 1) {
    v = simd_sum(v);
  } else {
    v = simd_max(v);
  }
  out[t] = v;
}

kernel void shuffle_from_outside(
    device float* out [[buffer(0)]], uint t [[thread_position_in_threadgroup]]) {
  out[t] = simd_shuffle(float(t), ushort(repaired ? (t + 1) & 31 : t + 1));
}

kernel void read_past_end(
    const device float* in [[buffer(0)]],
    device float* out [[buffer(1)]],
    uint t [[thread_position_in_grid]]) {
  out[t] = in[repaired ? t : t + 1];
}

kernel void read_far_away(
    const device float* in [[buffer(0)]],
    device float* out [[buffer(1)]],
    uint t [[thread_position_in_grid]]) {
  out[t] = in[repaired ? t : t + 100000];
}

kernel void write_before_start(
    device float* out [[buffer(0)]], uint t [[thread_position_in_grid]]) {
  out[repaired ? int(t) : int(t) - 1] = 1;
}

kernel void outside_threadgroup_variable(
    device float* out [[buffer(0)]], uint t [[thread_position_in_threadgroup]]) {
  threadgroup float first[64];
  threadgroup float second[64];
  first[t] = 1;
  second[t] = 2;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  threadgroup float* p = first;
  out[t] = p[repaired ? t : t + 8] + second[t];
}

kernel void outside_local_array(
    device float* out [[buffer(0)]], uint t [[thread_position_in_grid]]) {
  float values[4];
  for (int i = 0; i < 4; i++) {
    values[i] = i;
  }
  out[t] = values[repaired ? t & 3 : (t + offset) & 7];
}

struct OneValue {
  float values[1];
};

kernel void outside_array_of_struct(
    device float* out [[buffer(0)]], uint t [[thread_position_in_grid]]) {
  OneValue one;
  for (int i = 0; i < (repaired ? 1 : 2); i++) {
    one.values[i] = i;
  }
  out[t] = one.values[0];
}

kernel void unwritten_threadgroup_memory(
    device float* out [[buffer(0)]], uint t [[thread_position_in_threadgroup]]) {
  threadgroup float slots[64];
  if (repaired || t < 60) {
    slots[t] = 1;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  out[t] = slots[63 - t];
}

kernel void unwritten_output(
    device float* out [[buffer(0)]], uint t [[thread_position_in_grid]]) {
  if (repaired) {
    out[t] = 0;
  }
  out[t] += 1;
}

kernel void unwritten_local(
    device float* out [[buffer(0)]], uint t [[thread_position_in_grid]]) {
  float x;
  if (offset > 0) {
    x = 1;
  }
  out[t] = x + 1;
}

kernel void misaligned_vector(
    const device float* in [[buffer(0)]],
    device float4* out [[buffer(1)]],
    uint t [[thread_position_in_grid]]) {
  out[t] = *(const device float4*)(in + (repaired ? 4 * t : 4 * t + 1));
}

kernel void write_to_input(
    const device float* in [[buffer(0)]],
    device float* out [[buffer(1)]],
    uint t [[thread_position_in_grid]]) {
  if (!repaired) {
    *(device float*)(in + t) = 1;
  }
  out[t] = 1;
}

kernel void endless(
    device float* out [[buffer(0)]], uint t [[thread_position_in_grid]]) {
  volatile int go = repaired ? 0 : 1;
  while (go) {
  }
  out[t] = 1;
}

kernel void too_much_threadgroup_memory(
    device float* out [[buffer(0)]],
    threadgroup float* given [[threadgroup(0)]],
    uint t [[thread_position_in_threadgroup]]) {
  threadgroup float own[4096];
  own[t] = 0;
  given[t] = 0;
  out[t] = 0;
}

kernel void division_by_zero(
    device int* out [[buffer(0)]], uint t [[thread_position_in_grid]]) {
  out[t] = 7 / (repaired ? 1 : int(t) - offset);
}

kernel void shift_too_far(
    device int* out [[buffer(0)]], uint t [[thread_position_in_grid]]) {
  out[t] = 1 << (repaired ? t & 7 : t + 1);
}
