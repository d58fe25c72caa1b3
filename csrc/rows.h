// What ops that take or make rows check: row dtype, dims, rotation tables, round trips.
#pragma once

#include <string>

#include "../metal/common.h"
#include "check.h"

namespace mlx_dsv4 {

inline void check_row_dtype(const char* op, const char* name, mx::Dtype dtype) {
  if (dtype != mx::bfloat16 && dtype != mx::float32) {
    reject(op, name, " must be bfloat16 or float32; got ", dtype);
  }
}

// rotation [n, R/2, 2] f32 with R <= dim: cosine and sine of every pair.
inline void check_rotation(const char* op, const mx::array& rotation, int n, int dim) {
  check_dtype(op, "rotation", rotation, mx::float32);
  if (rotation.ndim() != 3 || rotation.shape(0) != n || rotation.shape(2) != 2 ||
      2 * rotation.shape(1) > dim) {
    reject(
        op,
        "rotation must be [n, R/2, 2] with n = ",
        n,
        " and R <= ",
        dim,
        "; got ",
        rotation.shape());
  }
}

// The enum of a round trip's name, for rows of `dim` values whose last 2 * pairs rotate.
inline RoundTrip parse_round_trip(
    const char* op, const std::string& name, int dim, int pairs) {
  if (name == "none") {
    return kRoundTripNone;
  }
  if (name == "fp8") {
    if ((dim - 2 * pairs) % kFp8Block != 0) {
      reject(
          op,
          "round_trip fp8 needs D - R to be a multiple of ",
          kFp8Block,
          "; got ",
          dim - 2 * pairs);
    }
    return kRoundTripFp8;
  }
  if (name == "hadamard_fp4") {
    if ((dim & (dim - 1)) != 0 || dim < kFp4Block) {
      reject(
          op,
          "round_trip hadamard_fp4 needs D to be a power of two >= ",
          kFp4Block,
          "; got ",
          dim);
    }
    return kRoundTripHadamardFp4;
  }
  reject(op, "round_trip must be none, fp8 or hadamard_fp4; got ", name);
}

}  // namespace mlx_dsv4
