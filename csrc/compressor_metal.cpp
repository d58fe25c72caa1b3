#include "compressor.h"

#include <algorithm>

#include "rows.h"
#include "rows_metal.h"

namespace mlx_dsv4 {
namespace {

// What folding needs: the tokens of the call and the state.
void bind_tokens(
    Encoder& encoder,
    const std::vector<mx::array>& inputs,
    std::vector<mx::array>& outputs,
    const CompressorParams& params) {
  encoder.set_input_array(inputs[0], kCompressorValue);
  encoder.set_input_array(inputs[1], kCompressorGate);
  encoder.set_input_array(inputs[2], kCompressorApe);
  encoder.set_output_array(outputs[0], kCompressorStateValue);
  encoder.set_output_array(outputs[1], kCompressorStateScore);
  encoder.set_bytes(params, kCompressorParams);
}

// Stands in for an empty array, which has no buffer to bind.
mx::array unused(Encoder& encoder, mx::Dtype dtype) {
  return temporary(encoder, {1}, dtype);
}

}  // namespace

void CompressorAppend::eval_gpu(
    const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) {
  check_in_place(name(), "state_value", inputs[5]);
  check_in_place(name(), "state_score", inputs[6]);
  check_in_place(name(), "rows", inputs[7]);
  for (int i = 0; i < 3; ++i) {
    outputs[i].copy_shared_buffer(inputs[5 + i]);
  }
  const auto& p = params_;
  if (p.n_tokens == 0) {
    return;
  }
  auto& encoder = mx::metal::get_command_encoder(stream());
  auto* append =
      row_kernel(stream(), "compressor", "compressor_append", outputs[2].dtype(), p.dim);
  encoder.barrier();  // kernels launched before may still read what is written in place
  encoder.set_compute_pipeline_state(append);
  bind_tokens(encoder, inputs, outputs, p);
  encoder.set_input_array(inputs[3], kCompressorNorm);
  encoder.set_input_array(bindable(inputs[4], inputs[3]), kCompressorRotation);
  auto rows = outputs[2].size() > 0 ? outputs[2] : unused(encoder, outputs[2].dtype());
  encoder.set_output_array(rows, kCompressorRows);
  const int n_closed = closed_spans(p.start, p.n_tokens, p.ratio);
  const int threads =
      std::min(ceil_div(p.dim, kSimdWidth) * kSimdWidth, kCompressorThreads);
  encoder.dispatch_threadgroups(
      MTL::Size(std::max(n_closed, 1), 1, 1), MTL::Size(threads, 1, 1));
  if (n_closed <= 1) {
    return;
  }
  // Binding the state as an output again makes the encoder wait for the spans that read it.
  encoder.set_compute_pipeline_state(
      metal_kernel(stream(), "compressor", "compressor_advance", {}));
  bind_tokens(encoder, inputs, outputs, p);
  const int n = p.ratio * p.dim * (1 + p.overlap);
  encoder.dispatch_threadgroups(
      MTL::Size(ceil_div(n, kCompressorAdvanceThreads), 1, 1),
      MTL::Size(kCompressorAdvanceThreads, 1, 1));
}

}  // namespace mlx_dsv4
