// What ops that take or make rows check: row dtype, dims, positions, rotation tables, round
// trips, and that held buffers can be written in place.
#pragma once

#include <cstdint>
#include <limits>
#include <string>

#include "../metal/common.h"
#include "check.h"

namespace mlx_dsv4 {

inline void check_row_dtype(const char* op, const char* name, mx::Dtype dtype) {
  if (dtype != mx::bfloat16 && dtype != mx::float32) {
    reject(op, name, " must be bfloat16 or float32; got ", dtype);
  }
}

// Row kernels work on whole vectors of sixteen floats.
inline void check_row_dim(const char* op, int dim) {
  if (dim < 16 || dim % 16 != 0) {
    reject(op, "D must be a positive multiple of 16; got ", dim);
  }
}

// Positions are int32: the last of the step's tokens must be one too.
inline void check_start(const char* op, int64_t start, int n_tokens) {
  const int64_t last = std::numeric_limits<int32_t>::max() - int64_t{n_tokens};
  if (start < 0 || start > last) {
    reject(op, "start must be in 0..", last, " for ", n_tokens, " tokens; got ", start);
  }
}

// Called at evaluation, before anything is written: views of other layouts cannot alias.
inline void check_in_place(const char* op, const char* name, const mx::array& held) {
  if (!held.flags().row_contiguous) {
    std::ostringstream message;
    message << "[" << op << "] " << name
            << " must be row-contiguous to be written in place; "
            << "got shape " << held.shape() << " with strides (";
    for (size_t i = 0; i < held.strides().size(); ++i) {
      message << (i > 0 ? "," : "") << held.strides()[i];
    }
    message << ")";
    throw std::runtime_error(message.str());
  }
}

// rotation [n, R/2, 2] f32 with R <= dim: cosine and sine of every pair.
inline void check_rotation(const char* op, const mx::array& rotation, int n, int dim) {
  check_dtype(op, "rotation", rotation, mx::float32);
  if (rotation.ndim() != 3 || rotation.shape(0) != n || rotation.shape(2) != 2 ||
      rotation.shape(1) > dim / 2) {
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
