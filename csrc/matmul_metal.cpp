#include "matmul.h"

#include "blocks.h"
#include "metal_launch.h"

namespace mlx_dsv4 {
namespace {

struct Launch {
  const char* function;
  MTL::Size grid;
  int n_simdgroups;
};

// One token and many have the same order of sums, so either launch gives the same bits.
Launch launch_of(const MatmulParams& p) {
  const int group_rows = p.n_rows / p.groups;
  if (p.n_tokens <= kFewTokens) {
    const int per_threadgroup = few_rows(few_parts(p.k));
    return {
        "matmul_few",
        MTL::Size(
            ceil_div(group_rows, per_threadgroup),
            ceil_div(p.n_tokens, kFewTokens),
            p.groups),
        kFewSimdgroups};
  }
  const int parts = many_parts(p.k, group_rows, p.groups, p.n_tokens);
  return {
      "matmul_many",
      MTL::Size(
          ceil_div(p.n_tokens, kManyTokens),
          ceil_div(group_rows, many_rows(parts)),
          p.groups),
      kManySimdgroups};
}

}  // namespace

void Matmul::eval_gpu(
    const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) {
  const auto &x = inputs[0], &weight = inputs[1];
  check_on_gpu(name(), "weight", weight, params_.format);
  allocate(outputs[0]);
  if (outputs[0].size() == 0) {
    return;
  }
  const Launch launch = launch_of(params_);
  auto& encoder = mx::metal::get_command_encoder(stream());
  encoder.set_compute_pipeline_state(metal_kernel(
      stream(),
      "matmul",
      launch.function,
      {metal_type(x.dtype()), std::to_string(params_.format)}));
  encoder.set_input_array(x, kMatmulX);
  encoder.set_input_array(weight, kMatmulWeight);
  encoder.set_output_array(outputs[0], kMatmulOut);
  encoder.set_bytes(params_, kMatmulParams);
  encoder.dispatch_threadgroups(
      launch.grid, MTL::Size(kSimdWidth, launch.n_simdgroups, 1));
}

void Embed::eval_gpu(
    const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) {
  const auto &tokens = inputs[0], &weight = inputs[1];
  check_on_gpu(name(), "weight", weight, params_.format);
  allocate(outputs[0]);
  if (outputs[0].size() == 0) {
    return;
  }
  auto& encoder = mx::metal::get_command_encoder(stream());
  encoder.set_compute_pipeline_state(
      metal_kernel(stream(), "matmul", "embed", {std::to_string(params_.format)}));
  encoder.set_input_array(tokens, kEmbedTokens);
  encoder.set_input_array(weight, kEmbedWeight);
  encoder.set_output_array(outputs[0], kEmbedOut);
  encoder.set_bytes(params_, kEmbedParams);
  const int n_threads = ceil_div(params_.k, kBlockValues) * kLanesPerBlock;
  encoder.dispatch_threadgroups(
      MTL::Size(ceil_div(n_threads, kEmbedThreads), tokens.shape(0), 1),
      MTL::Size(kEmbedThreads, 1, 1));
}

}  // namespace mlx_dsv4
