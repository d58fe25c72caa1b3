// What the parameters of a kernel are bound to.
#ifndef MSL_PARAMETERS_H
#define MSL_PARAMETERS_H
typedef __UINT32_TYPE__ msl_u32;
typedef __UINT64_TYPE__ msl_u64;

enum msl_kind : unsigned char {  // what a kernel parameter is bound to
  MSL_BUFFER = 0,
  MSL_THREADGROUP,
  MSL_THREAD_POSITION_IN_GRID,
  MSL_THREAD_POSITION_IN_THREADGROUP,
  MSL_THREADGROUP_POSITION_IN_GRID,
  MSL_THREADS_PER_GRID,
  MSL_THREADGROUPS_PER_GRID,
  MSL_THREADS_PER_THREADGROUP,
  MSL_DISPATCH_THREADS_PER_THREADGROUP,
  MSL_THREAD_INDEX_IN_THREADGROUP,
  MSL_THREAD_INDEX_IN_SIMDGROUP,
  MSL_SIMDGROUP_INDEX_IN_THREADGROUP,
  MSL_SIMDGROUPS_PER_THREADGROUP,
  MSL_THREADS_PER_SIMDGROUP,
  MSL_THREAD_INDEX_IN_QUADGROUP,
  MSL_QUADGROUP_INDEX_IN_THREADGROUP,
  MSL_QUADGROUPS_PER_THREADGROUP,
  MSL_GRID_ORIGIN,
  MSL_UNKNOWN
};

struct msl_param {
  msl_kind kind;
  int index;  // buffer / threadgroup slot, -1 for built-ins
  const char* name;
  const char* type;  // source spelling, for the binding table
  const bool* fc;    // gated by this function constant (or null)
  bool readonly;     // `const device` / `constant`
};
#endif
