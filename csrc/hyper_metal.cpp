#include "hyper.h"
#include "metal_launch.h"

namespace mlx_dsv4 {
namespace {

MTL::ComputePipelineState* kernel(
    mx::Stream stream, const std::string& function, int argument) {
  return metal_kernel(stream, "hyper", function, {std::to_string(argument)});
}

// Products with fn and sums of squares [T, segments, J + 1], a temporary of the encoder.
mx::array partials(
    mx::Stream stream, const mx::array& streams, const mx::array& fn, int n_outputs) {
  const int n_tokens = streams.shape(0), n = streams.shape(1) * streams.shape(2);
  const int tile = hyper_tile_tokens(n_tokens), n_segments = hyper_segments(n);
  auto& encoder = mx::metal::get_command_encoder(stream);
  auto out = temporary(encoder, {n_tokens, n_segments, n_outputs + 1}, mx::float32);
  encoder.set_compute_pipeline_state(kernel(stream, "hyper_dots", tile));
  encoder.set_input_array(streams, kHyperDotsStreams);
  encoder.set_input_array(fn, kHyperDotsFn);
  encoder.set_output_array(out, kHyperDotsPartials);
  encoder.set_bytes(HyperDotsParams{n_tokens, n, n_outputs}, kHyperDotsParams);
  encoder.dispatch_threadgroups(
      MTL::Size(n_segments, ceil_div(n_tokens, tile), 1),
      MTL::Size(kSimdWidth, std::min(hyper_blocks(n_outputs), kHyperDotsSimdgroups), 1));
  return out;
}

}  // namespace

void HyperPre::eval_gpu(
    const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) {
  for (auto& out : outputs) {
    allocate(out);
  }
  const auto& streams = inputs[0];
  const int n_tokens = streams.shape(0);
  if (n_tokens == 0) {
    return;
  }
  const auto dots = partials(stream(), streams, inputs[1], params_.n_outputs);
  auto& encoder = mx::metal::get_command_encoder(stream());
  encoder.set_compute_pipeline_state(kernel(stream(), "hyper_pre", params_.n_streams));
  encoder.set_input_array(streams, kHyperPreStreams);
  encoder.set_input_array(dots, kHyperPrePartials);
  encoder.set_input_array(inputs[2], kHyperPreBase);
  encoder.set_input_array(inputs[3], kHyperPreScale);
  encoder.set_input_array(inputs[4], kHyperPreNorm);
  encoder.set_output_array(outputs[0], kHyperPreX);
  encoder.set_output_array(outputs[1], kHyperPrePost);
  encoder.set_output_array(outputs[2], kHyperPreComb);
  encoder.set_bytes(params_, kHyperPreParams);
  encoder.dispatch_threadgroups(
      MTL::Size(n_tokens, 1, 1), MTL::Size(kSimdWidth, kHyperCollapseSimdgroups + 1, 1));
}

void HyperHead::eval_gpu(
    const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) {
  allocate(outputs[0]);
  const auto& streams = inputs[0];
  const int n_tokens = streams.shape(0);
  if (n_tokens == 0) {
    return;
  }
  const auto dots = partials(stream(), streams, inputs[1], params_.n_outputs);
  auto& encoder = mx::metal::get_command_encoder(stream());
  encoder.set_compute_pipeline_state(kernel(stream(), "hyper_head", params_.n_streams));
  encoder.set_input_array(streams, kHyperHeadStreams);
  encoder.set_input_array(dots, kHyperHeadPartials);
  encoder.set_input_array(inputs[2], kHyperHeadBase);
  encoder.set_input_array(inputs[3], kHyperHeadScale);
  encoder.set_input_array(inputs[4], kHyperHeadNorm);
  encoder.set_output_array(outputs[0], kHyperHeadX);
  encoder.set_bytes(params_, kHyperHeadParams);
  encoder.dispatch_threadgroups(
      MTL::Size(n_tokens, 1, 1), MTL::Size(kSimdWidth, kHyperCollapseSimdgroups, 1));
}

void HyperPost::eval_gpu(
    const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) {
  allocate(outputs[0]);
  const int n_tokens = inputs[0].shape(0);
  if (n_tokens == 0) {
    return;
  }
  auto& encoder = mx::metal::get_command_encoder(stream());
  encoder.set_compute_pipeline_state(kernel(stream(), "hyper_post", params_.n_streams));
  encoder.set_input_array(inputs[0], kHyperPostStreams);
  encoder.set_input_array(inputs[1], kHyperPostY);
  encoder.set_input_array(inputs[2], kHyperPostPost);
  encoder.set_input_array(inputs[3], kHyperPostComb);
  encoder.set_output_array(outputs[0], kHyperPostOut);
  encoder.set_bytes(params_, kHyperPostParams);
  constexpr int kDims = 4 * kHyperPostThreads;
  encoder.dispatch_threadgroups(
      MTL::Size(ceil_div(params_.dim, kDims), n_tokens, 1),
      MTL::Size(kHyperPostThreads, 1, 1));
}

}  // namespace mlx_dsv4
