// The library of MSL in C++17. It is compiled once and stands before every rewritten shader;
// no header of the C or C++ library is in it, so that none of their names reaches a shader.
#pragma once

#ifdef __CUDA__
#include "msl_cuda_launch.h"
#else
#include "msl_launch.h"
#endif
#include "msl_limits.h"
#include "msl_simdgroup_matrix.h"
