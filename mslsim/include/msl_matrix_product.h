// The product of two 8x8 matrices in the simulator; msl_simdgroup_matrix.h includes it.
#pragma once

namespace metal {
namespace _msl {

// D = A B + C in float, the products added in order of k to C; hardware may add otherwise.
MSL_UNCHECKED inline void multiply_deposited(
    const unsigned char* slots, msl_u32 active, unsigned char* out, void*) {
  float a[8][8], b[8][8], d[8][8];
  if (active != 0xffffffffu) {
    __msl_note("simdgroup-matrix", "matrix operation with inactive lanes");
  }
  for (uint lane = 0; lane < kLanes; lane++) {
    const auto mine = slot<LaneOperands>(slots, lane);
    const uint row = row_of(lane), column = column_of(lane);
    for (uint i = 0; i < 2; i++) {
      a[row][column + i] = mine.a[i];
      b[row][column + i] = mine.b[i];
      d[row][column + i] = mine.c[i];
    }
  }
  for (int i = 0; i < 8; i++) {
    for (int k = 0; k < 8; k++) {
      for (int j = 0; j < 8; j++) {
        d[i][j] += a[i][k] * b[k][j];
      }
    }
  }
  for (uint lane = 0; lane < kLanes; lane++) {
    __builtin_memcpy(out + lane * kSlotBytes, &d[row_of(lane)][column_of(lane)], 8);
  }
}

MSL_INLINE void multiply_accumulate(const LaneOperands& mine, float* sums) {
  msl_thread* thread = __msl_cur;
  const unsigned char* products =
      __msl_collective(thread, &mine, sizeof(mine), kLanes, &multiply_deposited, nullptr);
  __builtin_memcpy(sums, products + thread->lane * kSlotBytes, 2 * sizeof(float));
}

}  // namespace _msl
}  // namespace metal
