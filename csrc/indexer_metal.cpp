#include "indexer.h"

#include <algorithm>

#include "rows.h"
#include "rows_metal.h"

namespace mlx_dsv4 {
namespace {

// Where the tokens from `first` on begin in arrays of so many values per token.
int64_t bytes_before(const mx::array& a, int64_t first, int64_t values) {
  return first * values * static_cast<int64_t>(a.itemsize());
}

// Scores of n_tokens tokens of q and w from `first` on; `p` places the first of them, whose
// scores begin `out`.
struct ScoresTask {
  const mx::array& q;
  const mx::array& w;
  const mx::array& rows;
  mx::array& out;
  IndexerScoresParams p;
  int first;
  int n_tokens;
};

void score(mx::Stream stream, const ScoresTask& task) {
  const auto launch = indexer_scores_launch(task.p, task.n_tokens);
  const auto& p = task.p;
  auto& encoder = mx::metal::get_command_encoder(stream);
  encoder.set_compute_pipeline_state(
      metal_kernel(stream, "indexer", "indexer_scores", {metal_type(task.q.dtype())}));
  const int64_t width = int64_t{p.n_heads} * p.dim;
  encoder.set_input_array(
      task.q, kIndexerScoresQ, bytes_before(task.q, task.first, width));
  encoder.set_input_array(
      task.w, kIndexerScoresW, bytes_before(task.w, task.first, p.n_heads));
  encoder.set_input_array(task.rows, kIndexerScoresRows);
  encoder.set_output_array(task.out, kIndexerScoresOut);
  encoder.set_bytes(launch, kIndexerScoresParams);
  encoder.dispatch_threadgroups(
      MTL::Size(
          ceil_div(p.n_rows, kIndexerTileRows * launch.group_tiles),
          ceil_div(task.n_tokens, launch.group_tokens),
          1),
      MTL::Size(kIndexerThreads, 1, 1));
}

void dispatch_selection(Encoder& encoder, int n_slices, int n_tokens, int n_candidates) {
  const int simdgroups = std::clamp(
      ceil_div(n_candidates, kIndexerThreadRows * kSimdWidth),
      1,
      kIndexerTopkThreads / kSimdWidth);
  encoder.dispatch_threadgroups(
      MTL::Size(n_slices, n_tokens, 1), MTL::Size(kSimdWidth * simdgroups, 1, 1));
}

// Candidates of n_tokens tokens; empty where their rows are one slice.
mx::array make_candidates(Encoder& encoder, int n_rows, int k, int n_tokens) {
  const int n_slices = indexer_slices(n_rows, k);
  return n_slices == 1 ? mx::array({0}, mx::int32, nullptr, {})
                       : temporary(encoder, {n_tokens, n_slices, k}, mx::int32);
}

// Selects for n_tokens tokens, the first of them at p.start; their scores begin at token
// `from` of `scores`, and what is selected at token `to`.
struct SelectionTask {
  const mx::array& scores;
  mx::array& candidates;
  mx::array& selected;
  IndexerTopkParams p;
  int from;
  int to;
  int n_tokens;
};

void merge(mx::Stream stream, const SelectionTask& task) {
  const auto& p = task.p;
  auto& encoder = mx::metal::get_command_encoder(stream);
  encoder.set_compute_pipeline_state(
      metal_kernel(stream, "indexer", "indexer_merge", {}));
  encoder.set_input_array(
      task.scores, kIndexerMergeScores, bytes_before(task.scores, task.from, p.n_rows));
  encoder.set_input_array(task.candidates, kIndexerMergeCandidates);
  encoder.set_output_array(
      task.selected, kIndexerMergeSelected, bytes_before(task.selected, task.to, p.k));
  encoder.set_bytes(p, kIndexerMergeParams);
  dispatch_selection(encoder, 1, task.n_tokens, indexer_candidates(p.n_rows, p.k));
}

void take_best(mx::Stream stream, const SelectionTask& task) {
  const auto& p = task.p;
  const int n_slices = indexer_slices(p.n_rows, p.k);
  auto& encoder = mx::metal::get_command_encoder(stream);
  encoder.set_compute_pipeline_state(metal_kernel(stream, "indexer", "indexer_topk", {}));
  encoder.set_input_array(
      task.scores, kIndexerTopkScores, bytes_before(task.scores, task.from, p.n_rows));
  encoder.set_bytes(p, kIndexerTopkParams);
  if (n_slices == 1) {
    encoder.set_output_array(
        task.selected, kIndexerTopkSelected, bytes_before(task.selected, task.to, p.k));
    dispatch_selection(encoder, 1, task.n_tokens, p.n_rows);
    return;
  }
  encoder.set_output_array(task.candidates, kIndexerTopkSelected);
  dispatch_selection(encoder, n_slices, task.n_tokens, kIndexerSliceRows);
  merge(stream, task);
}

void take_all(
    mx::Stream stream, mx::array& selected, const IndexerTopkParams& p, int n_tokens) {
  auto& encoder = mx::metal::get_command_encoder(stream);
  encoder.set_compute_pipeline_state(metal_kernel(stream, "indexer", "indexer_all", {}));
  encoder.set_output_array(selected, kIndexerAllSelected);
  encoder.set_bytes(p, kIndexerAllParams);
  encoder.dispatch_threadgroups(
      MTL::Size(ceil_div(p.k, kIndexerAllThreads), n_tokens, 1),
      MTL::Size(kIndexerAllThreads, 1, 1));
}

}  // namespace

void IndexerQueries::eval_gpu(
    const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) {
  auto& out = outputs[0];
  allocate(out);
  if (out.size() == 0) {
    return;
  }
  const auto& p = params_;
  auto& encoder = mx::metal::get_command_encoder(stream());
  encoder.set_compute_pipeline_state(
      row_kernel(stream(), "indexer", "indexer_queries", out.dtype(), p.dim));
  encoder.set_input_array(inputs[0], kIndexerQueriesQ);
  encoder.set_input_array(bindable(inputs[1], inputs[0]), kIndexerQueriesRotation);
  encoder.set_output_array(out, kIndexerQueriesOut);
  encoder.set_bytes(p, kIndexerQueriesParams);
  dispatch_rows(encoder, p.n_heads, out.shape(0));
}

void IndexerScores::eval_gpu(
    const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) {
  allocate(outputs[0]);
  if (outputs[0].size() == 0) {
    return;
  }
  score(
      stream(),
      {inputs[0], inputs[1], inputs[2], outputs[0], params_, 0, inputs[0].shape(0)});
}

void IndexerTopk::eval_gpu(
    const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) {
  allocate(outputs[0]);
  const int n_tokens = inputs[0].shape(0);
  if (n_tokens == 0) {
    return;
  }
  if (params_.n_rows == 0) {
    take_all(stream(), outputs[0], params_, n_tokens);
    return;
  }
  auto& encoder = mx::metal::get_command_encoder(stream());
  const int per_tile =
      indexer_tile_tokens(indexer_candidate_bytes(params_.n_rows, params_.k), n_tokens);
  auto candidates = make_candidates(encoder, params_.n_rows, params_.k, per_tile);
  for (int first = 0; first < n_tokens; first += per_tile) {
    if (first > 0) {
      encoder.barrier();  // the last tile's candidates are still being read
    }
    IndexerTopkParams p = params_;
    p.start += first;
    const int count = std::min(per_tile, n_tokens - first);
    take_best(stream(), {inputs[0], candidates, outputs[0], p, first, first, count});
  }
}

void IndexerSelect::eval_gpu(
    const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) {
  auto& selected = outputs[0];
  allocate(selected);
  const auto& s = params_.scores;
  const int k = params_.k, n_tokens = inputs[0].shape(0);
  const int first_scored = static_cast<int>(
      std::clamp<int64_t>((int64_t{k} + 1) * s.ratio - 1 - s.start, 0, n_tokens));
  if (first_scored > 0) {
    take_all(stream(), selected, {0, s.start, s.ratio, k}, first_scored);
  }
  if (first_scored == n_tokens) {
    return;
  }
  auto& encoder = mx::metal::get_command_encoder(stream());
  const int per_tile = indexer_tile_tokens(
      int64_t{sizeof(float)} * s.n_rows + indexer_candidate_bytes(s.n_rows, k),
      n_tokens - first_scored);
  auto scores = temporary(encoder, {per_tile, s.n_rows}, mx::float32);
  auto candidates = make_candidates(encoder, s.n_rows, k, per_tile);
  for (int first = first_scored; first < n_tokens; first += per_tile) {
    const int count = std::min(per_tile, n_tokens - first);
    IndexerScoresParams tile = s;
    tile.start = s.start + first;
    tile.n_rows = visible_rows(tile.start + count - 1, s.ratio);
    if (first > first_scored) {
      encoder.barrier();  // the last tile's scores and candidates are still being read
    }
    score(stream(), {inputs[0], inputs[1], inputs[2], scores, tile, first, count});
    const IndexerTopkParams p{tile.n_rows, tile.start, s.ratio, k};
    take_best(stream(), {scores, candidates, selected, p, 0, first, count});
  }
}

}  // namespace mlx_dsv4
