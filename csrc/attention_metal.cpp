#include "attention.h"

#include <sstream>

#include "rows_metal.h"

namespace mlx_dsv4 {
namespace {

// One evaluation: what is bound, and the sizes that its launches share.
struct AttentionTask {
  mx::Stream stream;
  const mx::array& q;
  const mx::array& rows;
  const mx::array& attention_kv;
  const mx::array& sinks;
  const mx::array& rotation;
  const mx::array& selected;
  mx::array& out;
  AttentionParams p;

  int n_tokens() const { return q.shape(0); }
  int head_blocks() const { return ceil_div(p.n_heads, kAttentionHeads); }
  int block_heads() const {
    return p.n_heads < kAttentionHeads ? p.n_heads : kAttentionHeads;
  }
  int tile_rows() const { return attention_tile_rows(static_cast<int>(q.itemsize())); }

  MTL::ComputePipelineState* kernel(const char* function) const {
    return metal_kernel(
        stream, "attention", function, {metal_type(q.dtype()), std::to_string(p.dim)});
  }
};

void launch_whole(const AttentionTask& task) {
  auto& encoder = mx::metal::get_command_encoder(task.stream);
  encoder.set_compute_pipeline_state(task.kernel("attention"));
  encoder.set_input_array(task.q, kAttentionQ);
  encoder.set_input_array(task.rows, kAttentionRows);
  encoder.set_input_array(task.attention_kv, kAttentionKv);
  encoder.set_input_array(task.sinks, kAttentionSinks);
  encoder.set_input_array(task.rotation, kAttentionRotation);
  encoder.set_input_array(task.selected, kAttentionSelected);
  encoder.set_output_array(task.out, kAttentionOut);
  encoder.set_bytes(task.p, kAttentionParams);
  encoder.dispatch_threadgroups(
      MTL::Size(1, task.head_blocks(), task.n_tokens()),
      MTL::Size(kSimdWidth * attention_simdgroups(task.block_heads(), task.p.dim), 1, 1));
}

void launch_scores(const AttentionTask& task, mx::array& scores) {
  auto& encoder = mx::metal::get_command_encoder(task.stream);
  encoder.set_compute_pipeline_state(task.kernel("attention_scores"));
  encoder.set_input_array(task.q, kAttentionScoresQ);
  encoder.set_input_array(task.rows, kAttentionScoresRows);
  encoder.set_input_array(task.attention_kv, kAttentionScoresKv);
  encoder.set_input_array(task.selected, kAttentionScoresSelected);
  encoder.set_output_array(scores, kAttentionScoresOut);
  encoder.set_bytes(task.p, kAttentionScoresParams);
  encoder.dispatch_threadgroups(
      MTL::Size(scores.shape(2) / task.tile_rows(), task.head_blocks(), task.n_tokens()),
      MTL::Size(kSimdWidth * 2 * ceil_div(task.block_heads(), kMatrixDim), 1, 1));
}

void launch_values(const AttentionTask& task, const mx::array& scores) {
  auto& encoder = mx::metal::get_command_encoder(task.stream);
  encoder.set_compute_pipeline_state(task.kernel("attention_values"));
  encoder.set_input_array(scores, kAttentionValuesScores);
  encoder.set_input_array(task.rows, kAttentionValuesRows);
  encoder.set_input_array(task.attention_kv, kAttentionValuesKv);
  encoder.set_input_array(task.sinks, kAttentionValuesSinks);
  encoder.set_input_array(task.rotation, kAttentionValuesRotation);
  encoder.set_input_array(task.selected, kAttentionValuesSelected);
  encoder.set_output_array(task.out, kAttentionValuesOut);
  encoder.set_bytes(task.p, kAttentionValuesParams);
  encoder.dispatch_threadgroups(
      MTL::Size(task.p.dim / kAttentionSliceDims, task.head_blocks(), task.n_tokens()),
      MTL::Size(kSimdWidth * ceil_div(task.block_heads(), kMatrixDim), 1, 1));
}

}  // namespace

void AttentionQueries::eval_gpu(
    const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) {
  auto& out = outputs[0];
  allocate(out);
  if (out.size() == 0) {
    return;
  }
  const auto& p = params_;
  auto& encoder = mx::metal::get_command_encoder(stream());
  encoder.set_compute_pipeline_state(
      row_kernel(stream(), "attention", "attention_queries", out.dtype(), p.dim));
  encoder.set_input_array(inputs[0], kAttentionQueriesQ);
  encoder.set_input_array(bindable(inputs[1], inputs[0]), kAttentionQueriesRotation);
  encoder.set_output_array(out, kAttentionQueriesOut);
  encoder.set_bytes(p, kAttentionQueriesParams);
  dispatch_rows(encoder, p.n_heads, out.shape(0));
}

void Attention::eval_gpu(
    const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) {
  if (params_.dim > kAttentionMaxDim) {
    std::ostringstream message;
    message << "[attention] D must be at most " << kAttentionMaxDim << " on the GPU; got "
            << params_.dim;
    throw std::runtime_error(message.str());
  }
  allocate(outputs[0]);
  if (outputs[0].size() == 0) {
    return;
  }
  const mx::array& any = inputs[0];
  const AttentionTask task{
      stream(),
      inputs[0],
      inputs[1],
      inputs[2],
      inputs[3],
      inputs[4],
      params_.n_selected > 0 ? inputs[5] : any,
      outputs[0],
      params_};
  if (task.n_tokens() >= kAttentionWholeTokens) {
    launch_whole(task);
    return;
  }
  const int last = params_.start + task.n_tokens() - 1;
  const int pitch = attention_score_pitch(
      attention_list_rows(last, params_.window, params_.ratio, params_.n_selected),
      task.tile_rows());
  auto scores = temporary(
      mx::metal::get_command_encoder(stream()),
      {task.n_tokens(), params_.n_heads, pitch},
      mx::float32);
  launch_scores(task, scores);
  launch_values(task, scores);
}

}  // namespace mlx_dsv4
