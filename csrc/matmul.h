// Products with matrices stored as GGUF blocks, and rows of them.
#pragma once

#include "../metal/matmul.h"
#include "primitive.h"

namespace mlx_dsv4 {

// x [T, groups * K] f32 or bf16, weight [N, row_bytes] u8 -> [T, N] f32
mx::array matmul(
    const mx::array& x,
    const mx::array& weight,
    const std::string& format,
    int groups,
    mx::StreamOrDevice stream = {});

// tokens [T] i32, weight [V, row_bytes] u8 -> [T, K] f32
mx::array embed(
    const mx::array& tokens,
    const mx::array& weight,
    const std::string& format,
    mx::StreamOrDevice stream = {});

class Matmul : public Op<MatmulParams> {
 public:
  using Op::Op;
  const char* name() const override { return "matmul"; }
  void eval_cpu(const std::vector<mx::array>&, std::vector<mx::array>&) override;
  void eval_gpu(const std::vector<mx::array>&, std::vector<mx::array>&) override;
};

class Embed : public Op<EmbedParams> {
 public:
  using Op::Op;
  const char* name() const override { return "embed"; }
  void eval_cpu(const std::vector<mx::array>&, std::vector<mx::array>&) override;
  void eval_gpu(const std::vector<mx::array>&, std::vector<mx::array>&) override;
};

}  // namespace mlx_dsv4
