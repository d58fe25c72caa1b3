// Device only: which elements of a simdgroup_matrix a lane holds.
#pragma once

#include <metal_simdgroup_matrix>

#include "common.h"

using namespace metal;

// What a lane holds of a matrix: two neighbouring columns of one row.
struct MatrixLane {
  int row;
  int column;
};

// The map that MLX's own products rely on.
inline MatrixLane matrix_lane(uint lane) {
  const int quad = int(lane) / 4;
  return MatrixLane{(quad & 4) + int(lane) / 2 % 4, (quad & 2) * 2 + int(lane) % 2 * 2};
}

inline simdgroup_float8x8 matrix_of(float2 elements) {
  simdgroup_float8x8 made;
  made.thread_elements()[0] = elements.x;
  made.thread_elements()[1] = elements.y;
  return made;
}
