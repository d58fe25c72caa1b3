// How one simdgroup holds a row, shared by host and shaders.
#pragma once

#include "common.h"

// Lane l holds dims 4l .. 4l + 3 of every slice.
DSV4_CONST int kRowSliceDims = 4 * kSimdWidth;

// A lane holds a row of so many dims in 64 registers.
DSV4_CONST int kRowMaxDim = 2048;

// Rows of a threadgroup, one simdgroup each.
DSV4_CONST int kRowsPerGroup = 4;
