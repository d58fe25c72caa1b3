// Hyper-connections: collapse the residual streams before a sublayer, expand after it.
#pragma once

#include <tuple>

#include "../metal/hyper.h"
#include "primitive.h"

namespace mlx_dsv4 {

// streams [T, S, D], fn [(2 + S) S, S * D], base [(2 + S) S], scale [3], norm [D], all f32
// -> x [T, D], post [T, S], comb [T, S (source), S (destination)]
std::tuple<mx::array, mx::array, mx::array> hyper_pre(
    const mx::array& streams,
    const mx::array& fn,
    const mx::array& base,
    const mx::array& scale,
    const mx::array& norm,
    float norm_eps,
    float hyper_eps,
    int iterations,
    mx::StreamOrDevice stream = {});

// streams [T, S, D], y [T, D], post [T, S], comb [T, S, S], all f32 -> [T, S, D]
mx::array hyper_post(
    const mx::array& streams,
    const mx::array& y,
    const mx::array& post,
    const mx::array& comb,
    mx::StreamOrDevice stream = {});

// streams [T, S, D], fn [S, S * D], base [S], scale [1], norm [D], all f32 -> x [T, D]
mx::array hyper_head(
    const mx::array& streams,
    const mx::array& fn,
    const mx::array& base,
    const mx::array& scale,
    const mx::array& norm,
    float norm_eps,
    float hyper_eps,
    mx::StreamOrDevice stream = {});

class HyperPre : public Op<HyperParams> {
 public:
  using Op::Op;
  const char* name() const override { return "hyper_pre"; }
  void eval_cpu(const std::vector<mx::array>&, std::vector<mx::array>&) override;
  void eval_gpu(const std::vector<mx::array>&, std::vector<mx::array>&) override;
};

class HyperPost : public Op<HyperPostParams> {
 public:
  using Op::Op;
  const char* name() const override { return "hyper_post"; }
  void eval_cpu(const std::vector<mx::array>&, std::vector<mx::array>&) override;
  void eval_gpu(const std::vector<mx::array>&, std::vector<mx::array>&) override;
};

class HyperHead : public Op<HyperParams> {
 public:
  using Op::Op;
  const char* name() const override { return "hyper_head"; }
  void eval_cpu(const std::vector<mx::array>&, std::vector<mx::array>&) override;
  void eval_gpu(const std::vector<mx::array>&, std::vector<mx::array>&) override;
};

}  // namespace mlx_dsv4
