#include "window.h"

#include <algorithm>

#include "rows.h"
#include "rows_metal.h"

namespace mlx_dsv4 {
void WindowRows::eval_gpu(
    const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) {
  allocate(outputs[0]);
  if (params_.n_tokens == 0) {
    return;
  }
  auto& encoder = mx::metal::get_command_encoder(stream());
  encoder.set_compute_pipeline_state(
      row_kernel(stream(), "window", "window_rows", outputs[0].dtype(), params_.dim));
  encoder.set_input_array(inputs[0], kWindowRowsKv);
  encoder.set_input_array(inputs[1], kWindowRowsNorm);
  encoder.set_input_array(bindable(inputs[2], inputs[1]), kWindowRowsRotation);
  encoder.set_output_array(outputs[0], kWindowRowsOut);
  encoder.set_bytes(params_, kWindowRowsParams);
  dispatch_rows(encoder, params_.n_tokens, 1);
}

void WindowWrite::eval_gpu(
    const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) {
  auto& ring = outputs[0];
  check_in_place(name(), "attention_kv", inputs[0]);
  ring.copy_shared_buffer(inputs[0]);
  if (inputs[1].size() == 0) {
    return;
  }
  const bool by_four = params_.dim % kWindowWordValues == 0;
  const std::string value = ring.itemsize() == 2 ? "ushort" : "uint";
  auto words = params_;
  words.dim /= by_four ? kWindowWordValues : 1;
  auto& encoder = mx::metal::get_command_encoder(stream());
  encoder.barrier();  // kernels launched before may still read the ring
  encoder.set_compute_pipeline_state(metal_kernel(
      stream(), "window", "window_write", {by_four ? "packed_" + value + "4" : value}));
  encoder.set_input_array(inputs[1], kWindowWriteRows);
  encoder.set_output_array(ring, kWindowWriteAttentionKv);
  encoder.set_bytes(words, kWindowWriteParams);
  const int threads = std::min(words.dim, kWindowWriteThreads);
  encoder.dispatch_threadgroups(
      MTL::Size(ceil_div(words.dim, threads), std::min(words.n_tokens, words.window), 1),
      MTL::Size(threads, 1, 1));
}

}  // namespace mlx_dsv4
