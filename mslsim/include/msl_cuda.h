// What a cubin and its launch tell each other, and barriers on an NVIDIA GPU.
#ifndef MSL_CUDA_H
#define MSL_CUDA_H
#include "msl_parameters.h"

enum { MSL_CUDA_ABI = 1, MSL_CUDA_BUFFERS = 31, MSL_CUDA_NAME_BYTES = 52 };

// The one parameter of every kernel of a cubin.
struct msl_cuda_launch {
  void* buffers[MSL_CUDA_BUFFERS];
  msl_u32 threadgroup_at[MSL_CUDA_BUFFERS];  // offsets into the dynamic shared memory
};

// The parameters of the Metal kernel `k` are the symbol msl_table_k: a header and n_params rows.
struct msl_cuda_header {
  msl_u32 abi, n_params, max_threads;
};
struct msl_cuda_param {
  msl_u32 kind, readonly;
  int index;
  char name[MSL_CUDA_NAME_BYTES];
};

#ifdef __CUDA__
#include "msl_types.h"
extern "C" {
MSL_INLINE void __msl_threadgroup_barrier(msl_u32) { __syncthreads(); }
MSL_INLINE void __msl_simdgroup_barrier(msl_u32) { __nvvm_bar_warp_sync(0xffffffffu); }
MSL_INLINE void __msl_spin() {}
}
#endif
#endif
