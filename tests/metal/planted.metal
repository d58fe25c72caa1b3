// Errors that the shader check must find: tests/metal/test_check_shaders.py expects one problem
// on each line that ends in a comment, with the text and under the versions given there.

#include <metal_stdlib>

#pragma METAL fp contract(of)  // unknown pragma

using namespace metal;

struct Sums {
  float of[4];
  thread float& at(short i) { return of[i]; }  // 4.1: changes address space
  float first() const { return of[0]; }
  float second() const threadgroup { return of[1]; }
};

template <typename T>
[[kernel]] void planted(
    const device T* x [[buffer(0)]],
    device T* y [[buffer(kNowhere)]],  // use of undeclared identifier 'kNowhere'
    constant uint& n [[buffer(2)]],
    uint i [[thread_positon_in_grid]],  // unknown attribute [[thread_positon_in_grid]]
    uint3 lane [[thread_index_in_simdgroup]],  // must not be of type uint3
    int3 group [[threadgroup_position_in_grid]]) {  // must not be of type int3
  threadgroup float s[32];
  threadgroup Sums sums;
  thread float* p = s;  // cannot initialize a variable of type '__private float
  float4 a = float4(1.0f, 2.0f, 3.0f);  // wrong number of components
  float m = max(x[i], 0);  // no matching function for call to 'max'
  y[i] = simd_sumx(x[i]);  // use of undeclared identifier 'simd_sumx'
  n = 3;  // cannot assign to variable 'n' with const-qualified type
  x[i] = 1;  // read-only variable is not assignable
  threadgroup_barrier(mem_flags::mem_threadgrop);  // no member named 'mem_threadgrop'
  y[i] = as_type<float>(half(1.0h));  // as_type between types of different sizes
  bfloat b = m;  // implicit conversion loses floating-point precision
  y[i] = sums.first();  // 3.1: cannot initialize object parameter
  y[i] = sums.second();
  auto [one, two] = float2(1.0f, 2.0f);  // 3.1: incompatible with C++ standards before C++17
  atomic_thread_fence(mem_flags::mem_device, memory_order_seq_cst);  // use of undeclared identifier
}

template <typename T>
[[kernel]] void unchecked(device T* y [[buffer(0)]]) {  // no instantiate_kernel line names
  y[0] = 0;
}

template [[host_name("planted_float")]] [[kernel]] decltype(planted<float>) planted<float>;
template [[host_name("k_half")]] [[kernel]] decltype(kk<half>) kk<half>;  // use of undeclared identifier 'kk'
