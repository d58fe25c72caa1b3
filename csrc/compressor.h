// Compressor: fold tokens into the open span, close spans into compressed rows.
#pragma once

#include <tuple>

#include "../metal/compressor.h"
#include "primitive.h"

namespace mlx_dsv4 {

// value, gate [T, c * D] f32, ape [ratio, c * D] f32, norm [D] f32,
// rotation [closed spans, R/2, 2] f32, states [c * ratio, c * D] f32, rows [*, D]
// -> state_value, state_score, rows, each the same memory
std::tuple<mx::array, mx::array, mx::array> compressor_append(
    const mx::array& value,
    const mx::array& gate,
    const mx::array& ape,
    const mx::array& norm,
    const mx::array& rotation,
    const mx::array& state_value,
    const mx::array& state_score,
    const mx::array& rows,
    int64_t start,
    int ratio,
    int first_row,
    float eps,
    const std::string& round_trip,
    mx::StreamOrDevice stream = {});

class CompressorAppend : public Op<CompressorParams> {
 public:
  using Op::Op;
  const char* name() const override { return "compressor_append"; }
  void eval_cpu(const std::vector<mx::array>&, std::vector<mx::array>&) override;
  void eval_gpu(const std::vector<mx::array>&, std::vector<mx::array>&) override;
};

}  // namespace mlx_dsv4
