// Router: which experts a token goes to, and with what weight.
#pragma once

#include "../metal/route.h"
#include "primitive.h"

namespace mlx_dsv4 {

// logits [T, E] f32, bias [E] f32 -> ids [T, k] i32 best first, weights [T, k] f32
std::pair<mx::array, mx::array> route_scored(
    const mx::array& logits,
    const mx::array& bias,
    int k,
    float scale,
    mx::StreamOrDevice stream = {});

// logits [T, E] f32, tokens [T] i32, table [V, k] i32 -> ids [T, k], weights [T, k]
std::pair<mx::array, mx::array> route_hashed(
    const mx::array& logits,
    const mx::array& tokens,
    const mx::array& table,
    float scale,
    mx::StreamOrDevice stream = {});

class RouteScored : public Op<RouteParams> {
 public:
  using Op::Op;
  const char* name() const override { return "route_scored"; }
  void eval_cpu(const std::vector<mx::array>&, std::vector<mx::array>&) override;
  void eval_gpu(const std::vector<mx::array>&, std::vector<mx::array>&) override;
};

class RouteHashed : public Op<RouteParams> {
 public:
  using Op::Op;
  const char* name() const override { return "route_hashed"; }
  void eval_cpu(const std::vector<mx::array>&, std::vector<mx::array>&) override;
  void eval_gpu(const std::vector<mx::array>&, std::vector<mx::array>&) override;
};

}  // namespace mlx_dsv4
