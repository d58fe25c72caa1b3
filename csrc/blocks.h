// What ops on packed matrices share: format names, checks, memory of their own.
#pragma once

#include <memory>
#include <string>

#include "../metal/blocks.h"
#include "check.h"
#include "panel.h"
#include "scratch.h"

namespace mlx_dsv4 {

// The enum of a ggml type name.
inline int parse_format(const char* op, const char* name, const std::string& format) {
  static constexpr std::pair<const char*, BlockFormat> kFormats[] = {
      {"f32", kFormatF32},       {"f16", kFormatF16},         {"bf16", kFormatBF16},
      {"q8_0", kFormatQ8_0},     {"mxfp4", kFormatMXFP4},     {"q4_0", kFormatQ4_0},
      {"q4_1", kFormatQ4_1},     {"q5_0", kFormatQ5_0},       {"q5_1", kFormatQ5_1},
      {"q2_k", kFormatQ2_K},     {"q3_k", kFormatQ3_K},       {"q4_k", kFormatQ4_K},
      {"q5_k", kFormatQ5_K},     {"q6_k", kFormatQ6_K},       {"iq1_s", kFormatIQ1_S},
      {"iq1_m", kFormatIQ1_M},   {"iq2_xxs", kFormatIQ2_XXS}, {"iq2_xs", kFormatIQ2_XS},
      {"iq2_s", kFormatIQ2_S},   {"iq3_xxs", kFormatIQ3_XXS}, {"iq3_s", kFormatIQ3_S},
      {"iq4_nl", kFormatIQ4_NL}, {"iq4_xs", kFormatIQ4_XS}};
  std::string names;
  for (const auto& [known, value] : kFormats) {
    if (format == known) {
      return value;
    }
    names += names.empty() ? known : std::string(", ") + known;
  }
  reject(op, name, " must be one of ", names, "; got ", format);
}

// weight [..., row_bytes] u8 with `ndim` dims, rows of k values.
inline void check_blocks(
    const char* op,
    const char* name,
    const mx::array& weight,
    int ndim,
    int format,
    int k) {
  check_dtype(op, name, weight, mx::uint8);
  const int elements = block_elements(format);
  if (k < 1 || k % elements != 0) {
    reject(
        op,
        "rows of ",
        name,
        " must hold a positive multiple of ",
        elements,
        " values; got ",
        k);
  }
  const char* layout = ndim == 2 ? "[N, row_bytes]" : "[E, N, row_bytes]";
  if (static_cast<int>(weight.ndim()) != ndim ||
      weight.shape(-1) != row_bytes(format, k)) {
    reject(
        op,
        name,
        " must be ",
        layout,
        " with row_bytes = ",
        row_bytes(format, k),
        " for ",
        k,
        " values; got ",
        weight.shape());
  }
}

// Known only when the array is evaluated: packed matrices are read where they lie.
inline void check_in_place(const char* op, const char* name, const mx::array& weight) {
  if (!weight.flags().row_contiguous) {
    reject(
        op,
        name,
        " must be row-contiguous, it is never copied; got strides ",
        weight.strides());
  }
}

// Known only when the array is evaluated: a GPU loads 16-bit and 32-bit values at multiples of
// their size.
inline void check_on_gpu(
    const char* op, const char* name, const mx::array& weight, int format) {
  check_in_place(op, name, weight);
  if (weight.offset() % block_alignment(format) != 0) {
    reject(
        op,
        name,
        " must begin at a multiple of ",
        block_alignment(format),
        " bytes of its buffer; got byte ",
        weight.offset());
  }
}

// This thread's scratch, kept between calls.
inline PanelScratch& panel_scratch() {
  thread_local const auto scratch = std::make_unique<PanelScratch>();
  return *scratch;
}

}  // namespace mlx_dsv4
