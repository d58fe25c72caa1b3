// Window rows: the latent of each token, and the ring that keeps the newest of them.
#pragma once

#include "../metal/window.h"
#include "primitive.h"

namespace mlx_dsv4 {

// kv [T, D] f32, norm [D] f32, rotation [T, R/2, 2] f32 -> rows [T, D] dtype
mx::array window_rows(
    const mx::array& kv,
    const mx::array& norm,
    const mx::array& rotation,
    float eps,
    const std::string& round_trip,
    mx::Dtype dtype,
    mx::StreamOrDevice stream = {});

// attention_kv [W + N, D], rows [T, D] -> attention_kv, the same memory
mx::array window_write(
    const mx::array& attention_kv,
    const mx::array& rows,
    int64_t start,
    int window,
    const std::vector<mx::array>& after,
    mx::StreamOrDevice stream = {});

class WindowRows : public Op<WindowRowsParams> {
 public:
  using Op::Op;
  const char* name() const override { return "window_rows"; }
  void eval_cpu(const std::vector<mx::array>&, std::vector<mx::array>&) override;
  void eval_gpu(const std::vector<mx::array>&, std::vector<mx::array>&) override;
};

class WindowWrite : public Op<WindowWriteParams> {
 public:
  using Op::Op;
  const char* name() const override { return "window_write"; }
  void eval_cpu(const std::vector<mx::array>&, std::vector<mx::array>&) override;
  void eval_gpu(const std::vector<mx::array>&, std::vector<mx::array>&) override;
};

}  // namespace mlx_dsv4
