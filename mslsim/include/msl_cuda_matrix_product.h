// The product of two 8x8 matrices on an NVIDIA GPU; msl_simdgroup_matrix.h includes it.
#pragma once

namespace metal {
namespace _msl {

MSL_INLINE uint lane_at(uint row, uint column) {
  return (row & 4) << 2 | (column & 4) << 1 | (row & 3) << 1 | (column >> 1 & 1);
}

// By shuffles, because tensor cores round otherwise than the simulator's order of products.
MSL_INLINE void multiply_accumulate(const LaneOperands& mine, float* sums) {
  const uint row = row_of(lane_id()), column = column_of(lane_id());
  sums[0] = mine.c[0];
  sums[1] = mine.c[1];
  // Kernels hold dozens of products: unrolled, they would take minutes to compile.
#pragma clang loop unroll(disable)
  for (uint k = 0; k < 8; k += 2) {
    for (uint i = 0; i < 2; i++) {
      const float a = from_lane(mine.a[i], lane_at(row, k));
      const uint source = lane_at(k + i, column);
      sums[0] += a * from_lane(mine.b[0], source);
      sums[1] += a * from_lane(mine.b[1], source);
    }
  }
}

}  // namespace _msl
}  // namespace metal
