// The few functions of the CUDA driver that a launch needs. The library is opened when it is first
// asked for, so that building and running elsewhere needs nothing of NVIDIA's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace mslsim::cuda {

using Address = unsigned long long;
using Module = struct ModuleHandle*;
using Function = struct FunctionHandle*;
using Event = struct EventHandle*;

// Name, then the arguments. Every function returns 0 or the number of an error.
#define MSL_EACH_DRIVER_FUNCTION(X)                                 \
  X(cuInit, (unsigned))                                             \
  X(cuDeviceGetCount, (int*))                                       \
  X(cuDeviceGet, (int*, int))                                       \
  X(cuDevicePrimaryCtxRetain, (void**, int))                        \
  X(cuCtxSetCurrent, (void*))                                       \
  X(cuCtxSynchronize, ())                                           \
  X(cuModuleLoad, (Module*, const char*))                           \
  X(cuModuleGetFunction, (Function*, Module, const char*))          \
  X(cuModuleGetGlobal_v2, (Address*, size_t*, Module, const char*)) \
  X(cuFuncSetAttribute, (Function, int, int))                       \
  X(cuLaunchKernel,                                                 \
    (Function,                                                      \
     unsigned,                                                      \
     unsigned,                                                      \
     unsigned,                                                      \
     unsigned,                                                      \
     unsigned,                                                      \
     unsigned,                                                      \
     unsigned,                                                      \
     void*,                                                         \
     void**,                                                        \
     void**))                                                       \
  X(cuMemAlloc_v2, (Address*, size_t))                              \
  X(cuMemFree_v2, (Address))                                        \
  X(cuMemcpyHtoD_v2, (Address, const void*, size_t))                \
  X(cuMemcpyDtoH_v2, (void*, Address, size_t))                      \
  X(cuMemsetD8_v2, (Address, unsigned char, size_t))                \
  X(cuEventCreate, (Event*, unsigned))                              \
  X(cuEventRecord, (Event, void*))                                  \
  X(cuEventElapsedTime, (float*, Event, Event))                     \
  X(cuGetErrorName, (int, const char**))                            \
  X(cuGetErrorString, (int, const char**))

struct Driver {
#define MSL_DECLARE(name, arguments) int(*name) arguments = nullptr;
  MSL_EACH_DRIVER_FUNCTION(MSL_DECLARE)
#undef MSL_DECLARE
};

// Why nothing can be launched on this machine; empty where it can.
const std::string& unavailable();

// The driver, with the context of the first GPU current on this thread; throws where there is none.
const Driver& driver();

// Throws what an error number of a driver's function means, and what was being done.
void check(int error, const std::string& what);

}  // namespace mslsim::cuda
