#include "indexer.h"

#include <algorithm>

#include "metal_library.h"
#include "mlx/backend/metal/device.h"
#include "rows.h"

namespace mlx_dsv4 {
namespace {

using Encoder = mx::metal::CommandEncoder;

int ceil_div(int n, int d) { return (n + d - 1) / d; }

mx::array temporary(Encoder& encoder, mx::Shape shape, mx::Dtype dtype) {
  mx::array made(std::move(shape), dtype, nullptr, {});
  allocate(made);
  encoder.add_temporary(made);
  return made;
}

// Where the tokens from `first` on begin in arrays of so many values per token.
int64_t bytes_before(const mx::array& a, int64_t first, int64_t values) {
  return first * values * static_cast<int64_t>(a.itemsize());
}

// Scores of the tokens [first, end) of q and w; `p` places the first of them, whose scores
// begin `out_token` tokens into `out`.
struct ScoresTask {
  const mx::array& q;
  const mx::array& w;
  const mx::array& rows;
  mx::array& out;
  IndexerScoresParams p;
  int first;
  int end;
  int out_token;
};

void launch_scores(mx::Stream stream, const ScoresTask& task, int tokens_per_tile) {
  const auto& p = task.p;
  auto& encoder = mx::metal::get_command_encoder(stream);
  encoder.set_compute_pipeline_state(metal_kernel(
      stream,
      "indexer",
      "indexer_scores",
      {metal_type(task.q.dtype()), std::to_string(tokens_per_tile)}));
  const int64_t width = int64_t{p.n_heads} * p.dim;
  encoder.set_input_array(
      task.q, kIndexerScoresQ, bytes_before(task.q, task.first, width));
  encoder.set_input_array(
      task.w, kIndexerScoresW, bytes_before(task.w, task.first, p.n_heads));
  encoder.set_input_array(task.rows, kIndexerScoresRows);
  encoder.set_output_array(
      task.out, kIndexerScoresOut, bytes_before(task.out, task.out_token, p.n_rows));
  encoder.set_bytes(p, kIndexerScoresParams);
  encoder.dispatch_threadgroups(
      MTL::Size(
          ceil_div(p.n_rows, kIndexerTileRows),
          (task.end - task.first) / tokens_per_tile,
          1),
      MTL::Size(kSimdWidth, kIndexerSimdgroups * tokens_per_tile, 1));
}

// Whole tiles of tokens share their rows; the tokens behind them are scored one by one.
void score(mx::Stream stream, ScoresTask task) {
  const int count = task.end - task.first;
  const int tiled = count / kIndexerTileTokens * kIndexerTileTokens;
  if (tiled > 0) {
    ScoresTask tiles = task;
    tiles.end = task.first + tiled;
    launch_scores(stream, tiles, kIndexerTileTokens);
  }
  if (tiled < count) {
    task.first += tiled;
    task.out_token += tiled;
    task.p.start += tiled;
    launch_scores(stream, task, 1);
  }
}

void dispatch_selection(Encoder& encoder, int n_slices, int n_tokens, int n_candidates) {
  const int simdgroups = std::clamp(
      ceil_div(n_candidates, kIndexerThreadRows * kSimdWidth),
      1,
      kIndexerTopkMaxThreads / kSimdWidth);
  encoder.dispatch_threadgroups(
      MTL::Size(n_slices, n_tokens, 1), MTL::Size(kSimdWidth * simdgroups, 1, 1));
}

// Selects for n_tokens tokens, the first of them at p.start; their rows of `selected` begin at
// `first`. Tokens that see at most k rows read no scores.
void take_best(
    mx::Stream stream,
    const mx::array& scores,
    mx::array& selected,
    const IndexerTopkParams& p,
    int first,
    int n_tokens) {
  auto& encoder = mx::metal::get_command_encoder(stream);
  const bool sliced = p.n_rows > kIndexerSliceRows && p.k <= kIndexerSliceMaxK;
  const int n_slices = sliced ? ceil_div(p.n_rows, kIndexerSliceRows) : 1;
  const int64_t offset = bytes_before(selected, first, p.k);
  encoder.set_compute_pipeline_state(metal_kernel(stream, "indexer", "indexer_topk", {}));
  encoder.set_input_array(scores, kIndexerTopkScores);
  encoder.set_bytes(p, kIndexerTopkParams);
  if (!sliced) {
    encoder.set_output_array(selected, kIndexerTopkSelected, offset);
    dispatch_selection(encoder, 1, n_tokens, std::max(p.n_rows, 1));
    return;
  }
  auto candidates = temporary(encoder, {n_tokens, n_slices, p.k}, mx::int32);
  encoder.set_output_array(candidates, kIndexerTopkSelected);
  dispatch_selection(encoder, n_slices, n_tokens, kIndexerSliceRows);
  encoder.set_compute_pipeline_state(
      metal_kernel(stream, "indexer", "indexer_merge", {}));
  encoder.set_input_array(scores, kIndexerMergeScores);
  encoder.set_input_array(candidates, kIndexerMergeCandidates);
  encoder.set_output_array(selected, kIndexerMergeSelected, offset);
  encoder.set_bytes(p, kIndexerMergeParams);
  dispatch_selection(encoder, 1, n_tokens, indexer_candidates(p.n_rows, p.k));
}

}  // namespace

void IndexerScores::eval_gpu(
    const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) {
  allocate(outputs[0]);
  if (outputs[0].size() == 0) {
    return;
  }
  const int n_tokens = inputs[0].shape(0);
  score(stream(), {inputs[0], inputs[1], inputs[2], outputs[0], params_, 0, n_tokens, 0});
}

void IndexerTopk::eval_gpu(
    const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) {
  allocate(outputs[0]);
  const int n_tokens = inputs[0].shape(0);
  if (n_tokens == 0) {
    return;
  }
  // An empty array has no buffer to bind; nothing is read from the output either.
  const auto& scores = params_.n_rows > 0 ? inputs[0] : outputs[0];
  take_best(stream(), scores, outputs[0], params_, 0, n_tokens);
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
    take_best(stream(), selected, selected, {0, s.start, s.ratio, k}, 0, first_scored);
  }
  if (first_scored == n_tokens) {
    return;
  }
  auto& encoder = mx::metal::get_command_encoder(stream());
  const int per_tile = static_cast<int>(std::clamp<int64_t>(
      kIndexerScratchBytes / (int64_t{sizeof(float)} * s.n_rows),
      1,
      n_tokens - first_scored));
  auto scores = temporary(encoder, {per_tile, s.n_rows}, mx::float32);
  for (int first = first_scored; first < n_tokens; first += per_tile) {
    const int end = std::min(n_tokens, first + per_tile);
    IndexerScoresParams tile = s;
    tile.start = s.start + first;
    tile.n_rows = visible_rows(s.start + end - 1, s.ratio);
    if (first > first_scored) {
      encoder.barrier();  // the selection of the last tile still reads the scores
    }
    score(stream(), {inputs[0], inputs[1], inputs[2], scores, tile, first, end, 0});
    take_best(
        stream(),
        scores,
        selected,
        {tile.n_rows, tile.start, s.ratio, k},
        first,
        end - first);
  }
}

}  // namespace mlx_dsv4
