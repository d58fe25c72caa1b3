// Attention of many queries over window rows and compressed rows, with sinks.
#pragma once

#include <optional>

#include "../metal/attention.h"
#include "primitive.h"

namespace mlx_dsv4 {

// q [T, H * D] f32, rotation [T, R/2, 2] f32 -> [T, H, D] dtype
mx::array attention_queries(
    const mx::array& q,
    const mx::array& rotation,
    int heads,
    float eps,
    mx::Dtype dtype,
    mx::StreamOrDevice stream = {});

// q [T, H, D], rows [T, D], attention_kv [window + N, D], sinks [H] f32,
// rotation [T, R/2, 2] f32, selected [T, K] i32 or all visible -> [T, H, D]
mx::array attention(
    const mx::array& q,
    const mx::array& rows,
    const mx::array& attention_kv,
    const mx::array& sinks,
    const mx::array& rotation,
    const std::optional<mx::array>& selected,
    int64_t start,
    int window,
    int ratio,
    mx::StreamOrDevice stream = {});

class AttentionQueries : public Op<AttentionQueriesParams> {
 public:
  using Op::Op;
  const char* name() const override { return "attention_queries"; }
  void eval_cpu(const std::vector<mx::array>&, std::vector<mx::array>&) override;
  void eval_gpu(const std::vector<mx::array>&, std::vector<mx::array>&) override;
};

class Attention : public Op<AttentionParams> {
 public:
  using Op::Op;
  const char* name() const override { return "attention"; }
  void eval_cpu(const std::vector<mx::array>&, std::vector<mx::array>&) override;
  void eval_gpu(const std::vector<mx::array>&, std::vector<mx::array>&) override;
};

}  // namespace mlx_dsv4
