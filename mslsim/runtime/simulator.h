// C interface of libmslrt.so: load a compiled shader library, launch a kernel, read the findings.
#pragma once

#include <cstdint>

// Its attributes are for clang, which compiles the kernels.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wattributes"
#include "../include/msl_abi.h"
#pragma GCC diagnostic pop

enum { MSL_MAX_BUFFERS = 31, MSL_MAX_THREADGROUP_BUFFERS = 32, MSL_MAX_THREADS = 1024 };

enum msl_buffer_flags {
  MSL_READ_ONLY = 1,  // the kernel may not write it
  MSL_FRESH =
      2,  // nothing has written it: starts as NaN, reads before writes are reported
  MSL_BEGIN = 16  // times the low four bits of its address, from 0 to 15
};

enum msl_order { MSL_FORWARD = 0, MSL_REVERSE = 1, MSL_RANDOM = 2 };
enum msl_divergence {
  MSL_DIVERGENCE_ERROR = 0,
  MSL_DIVERGENCE_NOTE = 1,
  MSL_DIVERGENCE_ALLOW = 2
};

// Mirrored by mslsim/runtime.py.
struct msl_launch {
  const msl_kernel* kernel;
  void* buffer_data[MSL_MAX_BUFFERS];
  uint64_t buffer_bytes[MSL_MAX_BUFFERS];
  int32_t buffer_flags[MSL_MAX_BUFFERS];
  uint32_t threadgroup_bytes[MSL_MAX_THREADGROUP_BUFFERS];
  uint32_t grid[3];
  uint32_t threadgroup[3];
  int32_t grid_is_threads;  // the grid counts threads, else threadgroups
  int32_t order;
  uint32_t seed;
  int32_t check;  // the library is instrumented: races, bounds, uninitialised reads
  int32_t divergence;
  int32_t workers;
  int32_t flush_denormals;
  double timeout_s;
  int32_t
      simd_ops_order_memory;  // 0: a SIMD-group operation is no barrier (the specification)
  // results
  int32_t failed;
  double run_s;
  double copy_s;
  struct msl_findings* findings;  // free with msl_free_findings
};

// One finding; call addresses are offsets into the loaded library, 0 when unknown.
struct msl_finding {
  const char* kind;
  const char* text;
  uint64_t offset;
  uint64_t other_offset;
};

// The value of a function constant, given by index or, where name is not null, by name.
struct msl_constant {
  int32_t index;
  const char* name;
  uint64_t integer;
  double real;
};

// A function constant of a library, and whether it was given a value when it was opened.
struct msl_declared_constant {
  int32_t index;
  const char* name;
  int32_t defined;
};

struct msl_library;

extern "C" {
int msl_abi();

// Loads a private copy of a compiled library with its function constants set; null on failure.
msl_library* msl_open(const char* path, int n_constants, const msl_constant* constants);
const char* msl_open_error();
int msl_kernel_count(const msl_library*);
const msl_kernel* msl_kernel_at(const msl_library*, int i);
int msl_constant_count(const msl_library*);
msl_declared_constant msl_constant_at(const msl_library*, int i);

// Runs one dispatch to its end. One at a time: others wait.
void msl_dispatch(msl_launch*);
int msl_finding_count(const msl_findings*);
msl_finding msl_finding_at(const msl_findings*, int i);
void msl_free_findings(msl_findings*);

// Every library opened in this process, and the path it was opened with.
int msl_library_count();
const msl_library* msl_library_at(int i);
const char* msl_library_path(const msl_library*);

// Line coverage: the instrumented points of a library, and whether each was reached.
int msl_coverage_count(const msl_library*);
int msl_coverage_at(const msl_library*, int i, uint64_t* offset);
}
