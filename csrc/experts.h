// Routed experts: a clamped SwiGLU per chosen expert, summed with the router's weights.
#pragma once

#include "../metal/experts.h"
#include "primitive.h"

namespace mlx_dsv4 {

// x [T, K] f32, ids [T, k] i32, weights [T, k] f32, gate and up [E, F, row_bytes] u8,
// down [E, K, row_bytes] u8 -> [T, K] f32
mx::array experts(
    const mx::array& x,
    const mx::array& ids,
    const mx::array& weights,
    const mx::array& gate,
    const mx::array& up,
    const mx::array& down,
    const std::tuple<std::string, std::string, std::string>& formats,
    float clamp,
    mx::StreamOrDevice stream = {});

class Experts : public Op<ExpertsParams> {
 public:
  using Op::Op;
  const char* name() const override { return "experts"; }
  void eval_cpu(const std::vector<mx::array>&, std::vector<mx::array>&) override;
  void eval_gpu(const std::vector<mx::array>&, std::vector<mx::array>&) override;
};

}  // namespace mlx_dsv4
