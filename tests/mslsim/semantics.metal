// What the functions of MSL compute, for test_semantics.py: each kernel writes what NumPy checks.

#include <metal_simdgroup_matrix>

#include "row_math.h"

using namespace metal;

constant int number [[function_constant(3)]];
constant bool never_set [[function_constant(4)]];
constant int derived = number * 2 + 1;

kernel void facts(device int* out [[buffer(0)]]) {
  out[0] = number;
  out[1] = derived;
  out[2] = is_function_constant_defined(never_set) ? 1 : 0;
  out[3] = sizeof(float3);
  out[4] = sizeof(packed_float3);
  out[5] = sizeof(half3);
  out[6] = alignof(float4);
  out[7] = sizeof(1.0);
  out[8] = sizeof(1.0h);
  out[9] = sizeof(bool4);
  out[10] = sizeof(long);
}

struct Position {
  uint2 in_grid, in_threadgroup, group, size, nominal_size, grid, threadgroups;
  uint index, lane, simdgroup, simdgroups;
};
kernel void positions(
    device Position* out [[buffer(0)]],
    uint2 in_grid [[thread_position_in_grid]],
    uint2 in_threadgroup [[thread_position_in_threadgroup]],
    uint2 group [[threadgroup_position_in_grid]],
    uint2 size [[threads_per_threadgroup]],
    uint2 nominal_size [[dispatch_threads_per_threadgroup]],
    uint2 grid [[threads_per_grid]],
    uint2 threadgroups [[threadgroups_per_grid]],
    uint index [[thread_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint simdgroups [[simdgroups_per_threadgroup]]) {
  device Position& p = out[in_grid.y * grid.x + in_grid.x];
  p.in_grid = in_grid;
  p.in_threadgroup = in_threadgroup;
  p.group = group;
  p.size = size;
  p.nominal_size = nominal_size;
  p.grid = grid;
  p.threadgroups = threadgroups;
  p.index = index;
  p.lane = lane;
  p.simdgroup = simdgroup;
  p.simdgroups = simdgroups;
}

kernel void vectors(device float* out [[buffer(0)]]) {
  float4 a(1, 2, 3, 4);
  const float3 reversed = a.zyx;
  a.xw = a.wx;
  a.yz *= 10.0f;
  const half2 narrow = half2(a.xy);
  float4 mixed = float4(narrow.y, reversed);
  const uint4 counts = uint4(mixed) + 1;
  mixed.xy = mixed.yx;
  const uint4 braces = {1, 2, 3};
  const packed_float3 packed = packed_float3(1, 2, 3);
  const float3 unpacked = packed;
  int k = 0;
  out[k++] = a.x;
  out[k++] = a.y;
  out[k++] = a.z;
  out[k++] = a.w;
  out[k++] = mixed.x;
  out[k++] = mixed.y;
  out[k++] = mixed.w;
  out[k++] = counts.w;
  out[k++] = (int2(-7, 7) / 2).x;
  out[k++] = dot(reversed, reversed);
  out[k++] = all(a > 0.0f) ? 1 : 0;
  out[k++] = select(a, -a, a > 3.5f).x;
  out[k++] = as_type<uint2>(0x100000002ul).y;
  out[k++] = braces.w;
  out[k++] = unpacked.z;
  out[k++] = max(float2(1, 5), 3.0f).x;
  out[k++] = length(float2(3, 4));
  out[k++] = clamp(5.0f, 0.0f, 2.0f);
  out[k++] = mix(1.0f, 3.0f, 0.25f);
  out[k++] = fract(2.75f);
  out[k++] = 0.1 + 0.2 == 0.3f ? 1 : 0;  // literals are float
}

template <typename T>
kernel void integers(
    const device T* x [[buffer(0)]],
    const device T* y [[buffer(1)]],
    device T* out [[buffer(2)]],
    uint i [[thread_position_in_grid]],
    uint n [[threads_per_grid]]) {
  const T results[] = {
      popcount(x[i]),
      clz(x[i]),
      ctz(x[i]),
      reverse_bits(x[i]),
      rotate(x[i], y[i]),
      extract_bits(x[i], 3, 5),
      insert_bits(x[i], y[i], 3, 5),
      T(absdiff(x[i], y[i])),
      mulhi(x[i], y[i]),
      min(x[i], y[i]),
      T(x[i] >> 3),
      T(x[i] / (y[i] == 0 ? T(1) : y[i])),
  };
  for (int k = 0; k < 12; ++k) {
    out[k * n + i] = results[k];
  }
}

kernel void conversions(
    const device float* x [[buffer(0)]],
    device half* halves [[buffer(1)]],
    device bfloat* bfloats [[buffer(2)]],
    device float* e4m3 [[buffer(3)]],
    device int* integers [[buffer(4)]],
    uint i [[thread_position_in_grid]]) {
  halves[i] = half(x[i]);
  bfloats[i] = bfloat(x[i]);
  e4m3[i] = round_to_e4m3(clamp(x[i], -448.0f, 448.0f));
  integers[i] = int(rint(clamp(x[i], -1e9f, 1e9f)));
}

kernel void narrow(
    const device half* x [[buffer(0)]],
    device half* out [[buffer(1)]],
    device float* wide [[buffer(2)]]) {
  out[0] = x[0] * x[1] + x[2];  // rounds twice
  out[1] = fma(x[0], x[1], x[2]);
  out[2] = x[0] + x[1] + x[2];
  out[3] = x[0] / x[1];
  out[4] = exp(x[3]);
  out[5] = 1.0h / 3.0h;
  bfloat sum = bfloat(1.0f) + bfloat(0.00390625f);  // a tie, to even
  wide[0] = sum;
  sum += 1.0f;
  wide[1] = sum;
  wide[2] = bfloat(3.14159f);
  wide[3] = float(bfloat(1.0f) * 3);
  wide[4] = x[0] * 1.0f + x[1];
}

template <typename T>
kernel void lanes(
    const device T* x [[buffer(0)]],
    device T* out [[buffer(1)]],
    uint lane [[thread_index_in_simdgroup]]) {
  const T v = x[lane];
  const T results[] = {
      simd_sum(v),
      simd_product(v),
      simd_min(v),
      simd_max(v),
      simd_prefix_inclusive_sum(v),
      simd_prefix_exclusive_sum(v),
      simd_shuffle(v, ushort((lane * 7) & 31)),
      simd_broadcast(v, 5),
      simd_shuffle_xor(v, 3),
      simd_shuffle_down(v, 2),
      simd_shuffle_up(v, 2),
      simd_shuffle_rotate_down(v, 3),
      simd_shuffle_rotate_up(v, 3),
      quad_sum(v),
      quad_shuffle_xor(v, 1),
      quad_broadcast(v, 2),
      simd_broadcast_first(v),
      T(simd_any(lane == 3)),
      T(simd_all(lane < 31)),
      T(simd_vote::vote_t(simd_ballot(lane & 1)) >> 24),
      T(simd_is_first()),
      simd_sum(vec<T, 2>(v, v)).y,
  };
  for (int k = 0; k < 22; ++k) {
    out[k * 32 + lane] = results[k];
  }
}

kernel void matrices(
    const device float* x [[buffer(0)]],
    const device half* h [[buffer(1)]],
    device float* out [[buffer(2)]],
    uint lane [[thread_index_in_simdgroup]]) {
  simdgroup_float8x8 a, b, d;
  simdgroup_float8x8 identity(1.0f);
  simdgroup_load(a, x, 16);
  simdgroup_load(b, x, 16, ulong2(8, 0));
  simdgroup_multiply_accumulate(d, a, b, identity);
  simdgroup_store(d, out, 8);
  simdgroup_load(b, x, 16, ulong2(8, 0), true);
  simdgroup_multiply(d, a, b);
  simdgroup_store(d, out + 64, 8, ulong2(0, 0), true);
  d = make_filled_simdgroup_matrix<float, 8, 8>(3.0f);
  d.thread_elements()[0] = lane;
  simdgroup_store(d, out + 128, 8);
  simdgroup_half8x8 narrow_;
  simdgroup_load(narrow_, h, 8);
  simdgroup_multiply_accumulate(d, narrow_, narrow_, identity);
  simdgroup_store(d, out + 192, 8);
}

kernel void atomics(
    device atomic_int* sum [[buffer(0)]],
    device atomic_float* halves [[buffer(1)]],
    device atomic_uint* others [[buffer(2)]],
    uint i [[thread_position_in_grid]],
    uint in_threadgroup [[thread_index_in_threadgroup]]) {
  threadgroup atomic_uint threads;
  atomic_fetch_add_explicit(sum, int(i), memory_order_relaxed);
  atomic_fetch_add_explicit(halves, 0.5f, memory_order_relaxed);
  atomic_fetch_max_explicit(others, i * 7 % 101, memory_order_relaxed);
  atomic_fetch_or_explicit(others + 1, 1u << (i & 31), memory_order_relaxed);
  uint seen = 0;
  while (!atomic_compare_exchange_weak_explicit(
      others + 2, &seen, seen + 2, memory_order_relaxed, memory_order_relaxed)) {
  }
  if (in_threadgroup == 0) {
    atomic_store_explicit(&threads, 0u, memory_order_relaxed);
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  atomic_fetch_add_explicit(&threads, 1u, memory_order_relaxed);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (in_threadgroup == 0) {
    const uint n = atomic_load_explicit(&threads, memory_order_relaxed);
    atomic_fetch_add_explicit(others + 3, n, memory_order_relaxed);
  }
}

// All lanes of one simdgroup take the branch, of the other none; then 20 lanes stay.
kernel void branches(
    device int* out [[buffer(0)]],
    uint lane [[thread_index_in_simdgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]]) {
  int sum = 1;
  if (simdgroup == 1) {
    sum = simd_sum(1);
  }
  if (lane >= 20) {
    out[32 * simdgroup + lane] = sum;
    return;
  }
  out[32 * simdgroup + lane] = sum + simd_sum(1);
}

#define INSTANTIATE(name, ...) \
  template [[host_name(name)]] [[kernel]] decltype(__VA_ARGS__) __VA_ARGS__;
INSTANTIATE("integers_int", integers<int>)
INSTANTIATE("integers_uint", integers<uint>)
INSTANTIATE("integers_ushort", integers<ushort>)
INSTANTIATE("lanes_float", lanes<float>)
INSTANTIATE("lanes_int", lanes<int>)
INSTANTIATE("lanes_half", lanes<half>)
