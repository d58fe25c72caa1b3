#include "metal_launch.h"
#include "route.h"

namespace mlx_dsv4 {
namespace {

void dispatch(Encoder& encoder, int n_tokens) {
  const int groups = ceil_div(n_tokens, kRouteTokensPerGroup);
  encoder.dispatch_threadgroups(
      MTL::Size(groups, 1, 1), MTL::Size(kSimdWidth, kRouteTokensPerGroup, 1));
}

}  // namespace

void RouteScored::eval_gpu(
    const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) {
  allocate(outputs[0]);
  allocate(outputs[1]);
  if (params_.n_tokens == 0) {
    return;
  }
  auto& encoder = mx::metal::get_command_encoder(stream());
  encoder.set_compute_pipeline_state(metal_kernel(stream(), "route", "route_scored", {}));
  encoder.set_input_array(inputs[0], kRouteScoredLogits);
  encoder.set_input_array(inputs[1], kRouteScoredBias);
  encoder.set_output_array(outputs[0], kRouteScoredIds);
  encoder.set_output_array(outputs[1], kRouteScoredWeights);
  encoder.set_bytes(params_, kRouteScoredParams);
  dispatch(encoder, params_.n_tokens);
}

void RouteHashed::eval_gpu(
    const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) {
  allocate(outputs[0]);
  allocate(outputs[1]);
  if (params_.n_tokens == 0) {
    return;
  }
  auto& encoder = mx::metal::get_command_encoder(stream());
  encoder.set_compute_pipeline_state(metal_kernel(stream(), "route", "route_hashed", {}));
  encoder.set_input_array(inputs[0], kRouteHashedLogits);
  encoder.set_input_array(inputs[1], kRouteHashedTokens);
  encoder.set_input_array(inputs[2], kRouteHashedTable);
  encoder.set_output_array(outputs[0], kRouteHashedIds);
  encoder.set_output_array(outputs[1], kRouteHashedWeights);
  encoder.set_bytes(params_, kRouteHashedParams);
  dispatch(encoder, params_.n_tokens);
}

}  // namespace mlx_dsv4
