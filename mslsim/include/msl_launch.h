// What rewritten shaders call: function constants, threadgroup variables, kernel arguments.
#pragma once

#include "msl_abi.h"
#include "msl_vectors.h"

namespace metal {

template <class T>
bool is_function_constant_defined(const T& constant) {
  return __msl_fc_defined(&constant);
}

namespace _msl {

// The value of a function constant; a shader asks for it when it is loaded.
template <class T>
T fc(int index, const char* name, const T* address) {
  msl_u64 integer = 0;
  double real = 0;
  if (!__msl_fc_get(index, name, address, &integer, &real)) {
    return T{};
  }
  if constexpr (is_floating_point_v<T>) {
    return T(real);
  } else {
    return T(integer);
  }
}

// The memory of a threadgroup variable; `site` tells the variables of a library apart.
template <class T, uint site>
MSL_INLINE T& tgvar() {
  return *(T*)__msl_tgvar(site, sizeof(T), alignof(T));
}

template <class T>
MSL_INLINE T from_uint3(const msl_u32* values) {
  if constexpr (n_components<T>::value == 1) {
    return T(values[0]);
  } else {
    T vector{};
    for (int i = 0; i < T::kComponents; i++) {
      vector.s[i] = (typename T::element)values[i];
    }
    return vector;
  }
}

// Stands for an argument that a function constant switches off: the compiler may load through
// a reference before the kernel decides not to. NaN in every format.
alignas(16) static const uint unbound[256] = {
#define MSL_8 ~0u, ~0u, ~0u, ~0u, ~0u, ~0u, ~0u, ~0u,
#define MSL_64 MSL_8 MSL_8 MSL_8 MSL_8 MSL_8 MSL_8 MSL_8 MSL_8
    MSL_64 MSL_64 MSL_64 MSL_64
#undef MSL_64
#undef MSL_8
};

MSL_INLINE void* memory(const msl_param& param, const msl_shape* shape) {
  if (param.fc && !*param.fc) {
    return (void*)unbound;
  }
  return param.kind == MSL_THREADGROUP ? shape->tgbufs[param.index]
                                       : shape->bufs[param.index];
}

template <class T>
MSL_INLINE T builtin(msl_kind kind, const msl_thread* thread, const msl_shape* shape) {
  switch (kind) {
    case MSL_THREAD_POSITION_IN_GRID:
      return from_uint3<T>(thread->gid3);
    case MSL_THREAD_POSITION_IN_THREADGROUP:
      return from_uint3<T>(thread->tid3);
    case MSL_THREADGROUP_POSITION_IN_GRID:
      return from_uint3<T>(shape->tgid3);
    case MSL_THREADS_PER_GRID:
      return from_uint3<T>(shape->grid);
    case MSL_THREADGROUPS_PER_GRID:
      return from_uint3<T>(shape->tgs);
    case MSL_THREADS_PER_THREADGROUP:
      return from_uint3<T>(shape->tg);
    case MSL_DISPATCH_THREADS_PER_THREADGROUP:
      return from_uint3<T>(shape->tg_nominal);
    default:
      break;
  }
  msl_u32 value[3] = {0, 0, 0};
  switch (kind) {
    case MSL_THREAD_INDEX_IN_THREADGROUP:
      value[0] = thread->tid;
      break;
    case MSL_THREAD_INDEX_IN_SIMDGROUP:
      value[0] = thread->lane;
      break;
    case MSL_SIMDGROUP_INDEX_IN_THREADGROUP:
      value[0] = thread->sgi;
      break;
    case MSL_SIMDGROUPS_PER_THREADGROUP:
      value[0] = shape->nsimd;
      break;
    case MSL_THREADS_PER_SIMDGROUP:
      value[0] = 32;
      break;
    case MSL_THREAD_INDEX_IN_QUADGROUP:
      value[0] = thread->lane & 3;
      break;
    case MSL_QUADGROUP_INDEX_IN_THREADGROUP:
      value[0] = thread->tid / 4;
      break;
    case MSL_QUADGROUPS_PER_THREADGROUP:
      value[0] = (shape->nthreads + 3) / 4;
      break;
    default:
      break;
  }
  return from_uint3<T>(value);
}

template <class T>
MSL_INLINE T
argument(const msl_param& param, const msl_thread* thread, const msl_shape* shape) {
  if constexpr (is_pointer_v<T>) {
    return (T)memory(param, shape);
  } else if constexpr (!is_same_v<T, remove_reference_t<T>>) {
    return *(remove_reference_t<T>*)memory(param, shape);
  } else {
    return builtin<T>(param.kind, thread, shape);
  }
}

template <class F, F kernel, const msl_param* kParams>
struct Entry;
template <class... A, void (*kernel)(A...), const msl_param* kParams>
struct Entry<void (*)(A...), kernel, kParams> {
  static void run(const msl_thread* thread, const msl_shape* shape) {
    call(thread, shape, __make_integer_seq<Indices, int, sizeof...(A)>{});
  }

 private:
  template <class Int, Int...>
  struct Indices {};
  template <int... I>
  static MSL_INLINE void call(
      const msl_thread* thread, const msl_shape* shape, Indices<int, I...>) {
    kernel(argument<A>(kParams[I], thread, shape)...);
  }
};

// Announces a kernel while its library is being loaded.
struct Registration {
  msl_kernel kernel;

  template <int N>
  Registration(
      const char* name,
      void (*entry)(const msl_thread*, const msl_shape*),
      const msl_param (&params)[N],
      int max_threads,
      const char* where)
      : kernel{name, entry, params, N, max_threads, where} {
    __msl_register(&kernel);
  }
};

}  // namespace _msl
}  // namespace metal

#define MSL_REGISTER(id, symbol, name, params, max_threads, where, ...)       \
  static ::metal::_msl::Registration __msl_registration_##id(                 \
      name,                                                                   \
      &::metal::_msl::Entry<decltype(__VA_ARGS__), __VA_ARGS__, params>::run, \
      params,                                                                 \
      max_threads,                                                            \
      where);
