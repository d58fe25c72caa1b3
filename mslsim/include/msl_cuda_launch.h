// What rewritten shaders call on an NVIDIA GPU: threadgroup variables, kernel arguments, entries.
#pragma once

#include "msl_cuda.h"
#include "msl_vectors.h"

namespace metal {
namespace _msl {

template <class T>
struct unsupported : false_type {};

// A cubin holds no place for values that are given when it is loaded.
template <class T>
T fc(int, const char*, const T*) {
  static_assert(unsupported<T>::value, "function constants are not compiled for CUDA");
}

// The memory of a threadgroup variable; `site` tells the variables of a library apart.
template <class T, uint site>
MSL_INLINE T& tgvar() {
  static __attribute__((shared, aligned(16))) unsigned char memory[sizeof(T)];
  return *(T*)memory;
}
extern __attribute__((shared, aligned(16))) unsigned char msl_dynamic_memory[];

template <class T>
MSL_INLINE T from_uints(uint x, uint y, uint z) {
  const uint values[3] = {x, y, z};
  if constexpr (n_components<T>::value == 1) {
    return T(x);
  } else {
    T vector{};
    for (int i = 0; i < T::kComponents; i++) {
      vector.s[i] = (typename T::element)values[i];
    }
    return vector;
  }
}

#define MSL_REGISTERS(name)                                             \
  __nvvm_read_ptx_sreg_##name##_x(), __nvvm_read_ptx_sreg_##name##_y(), \
      __nvvm_read_ptx_sreg_##name##_z()

MSL_INLINE uint n_threads() {
  return __nvvm_read_ptx_sreg_ntid_x() * __nvvm_read_ptx_sreg_ntid_y() *
         __nvvm_read_ptx_sreg_ntid_z();
}
MSL_INLINE uint thread_index() {
  return (__nvvm_read_ptx_sreg_tid_z() * __nvvm_read_ptx_sreg_ntid_y() +
          __nvvm_read_ptx_sreg_tid_y()) *
             __nvvm_read_ptx_sreg_ntid_x() +
         __nvvm_read_ptx_sreg_tid_x();
}

template <class T, msl_kind kind>
MSL_INLINE T position() {
  const uint group[3] = {MSL_REGISTERS(ctaid)}, groups[3] = {MSL_REGISTERS(nctaid)};
  const uint size[3] = {MSL_REGISTERS(ntid)}, thread[3] = {MSL_REGISTERS(tid)};
  uint at[3];
  for (int i = 0; i < 3; i++) {
    at[i] = kind == MSL_THREAD_POSITION_IN_GRID          ? group[i] * size[i] + thread[i]
            : kind == MSL_THREAD_POSITION_IN_THREADGROUP ? thread[i]
            : kind == MSL_THREADGROUP_POSITION_IN_GRID   ? group[i]
            : kind == MSL_THREADS_PER_GRID               ? groups[i] * size[i]
            : kind == MSL_THREADGROUPS_PER_GRID          ? groups[i]
                                                         : size[i];
  }
  return from_uints<T>(at[0], at[1], at[2]);
}

template <class T, msl_kind kind>
MSL_INLINE T builtin() {
  switch (kind) {
    case MSL_THREAD_INDEX_IN_THREADGROUP:
      return from_uints<T>(thread_index(), 0, 0);
    case MSL_THREAD_INDEX_IN_SIMDGROUP:
      return from_uints<T>(thread_index() % 32, 0, 0);
    case MSL_SIMDGROUP_INDEX_IN_THREADGROUP:
      return from_uints<T>(thread_index() / 32, 0, 0);
    case MSL_SIMDGROUPS_PER_THREADGROUP:
      return from_uints<T>((n_threads() + 31) / 32, 0, 0);
    case MSL_THREADS_PER_SIMDGROUP:
      return from_uints<T>(32, 0, 0);
    case MSL_THREAD_INDEX_IN_QUADGROUP:
      return from_uints<T>(thread_index() % 4, 0, 0);
    case MSL_QUADGROUP_INDEX_IN_THREADGROUP:
      return from_uints<T>(thread_index() / 4, 0, 0);
    case MSL_QUADGROUPS_PER_THREADGROUP:
      return from_uints<T>((n_threads() + 3) / 4, 0, 0);
    case MSL_GRID_ORIGIN:
      return from_uints<T>(0, 0, 0);
    default:
      return position<T, kind>();
  }
}

template <class T, msl_kind kind, int index>
MSL_INLINE T argument(const msl_cuda_launch& launch) {
  if constexpr (kind == MSL_BUFFER || kind == MSL_THREADGROUP) {
    void* memory;
    if constexpr (kind == MSL_BUFFER) {
      memory = launch.buffers[index];
    } else {
      memory = msl_dynamic_memory + launch.threadgroup_at[index];
    }
    if constexpr (is_pointer_v<T>) {
      return (T)memory;
    } else {
      return *(remove_reference_t<T>*)memory;
    }
  } else {
    return builtin<T, kind>();
  }
}

template <class F, F kernel, const msl_param* kParams>
struct Entry;
template <class... A, void (*kernel)(A...), const msl_param* kParams>
struct Entry<void (*)(A...), kernel, kParams> {
  static MSL_INLINE void run(const msl_cuda_launch& launch) {
    call(launch, __make_integer_seq<Indices, int, sizeof...(A)>{});
  }

 private:
  template <class Int, Int...>
  struct Indices {};
  template <int... I>
  static MSL_INLINE void call(const msl_cuda_launch& launch, Indices<int, I...>) {
    kernel(argument<A, kParams[I].kind, kParams[I].index>(launch)...);
  }
};

template <int N>
struct Table {
  msl_cuda_header header;
  msl_cuda_param params[N];

  constexpr Table(const msl_param (&from)[N], int max_threads)
      : header{MSL_CUDA_ABI, N, msl_u32(max_threads)}, params{} {
    for (int i = 0; i < N; i++) {
      params[i].kind = from[i].kind;
      params[i].readonly = from[i].readonly;
      params[i].index = from[i].index;
      for (int c = 0; c + 1 < MSL_CUDA_NAME_BYTES && from[i].name[c]; c++) {
        params[i].name[c] = from[i].name[c];
      }
    }
  }
};

}  // namespace _msl
}  // namespace metal

// Code for 1024 threads spills registers; a kernel that needs so many says it.
#define MSL_THREADS(max_threads) ((max_threads) ? (max_threads) : 512)

#define MSL_REGISTER(id, symbol, name, params, max_threads, where, ...)            \
  extern "C" __attribute__((global, launch_bounds(MSL_THREADS(max_threads)))) void \
  msl_kernel_##symbol(const msl_cuda_launch launch) {                              \
    ::metal::_msl::Entry<decltype(__VA_ARGS__), __VA_ARGS__, params>::run(launch); \
  }                                                                                \
  extern "C" __attribute__((                                                       \
      device, used)) ::metal::_msl::Table<sizeof(params) / sizeof(params[0])>      \
      msl_table_##symbol{params, MSL_THREADS(max_threads)};
