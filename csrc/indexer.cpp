#include "indexer.h"

#include <algorithm>

#include "bind.h"
#include "indexer_cpu.h"
#include "pool.h"
#include "rows.h"
#include "scratch.h"

namespace mlx_dsv4 {
namespace {

// Returns start as the kernels take it.
int check_positions(const char* op, int64_t start, int n_tokens, int ratio) {
  check_start(op, start, n_tokens);
  if (ratio < 1) {
    reject(op, "ratio must be >= 1; got ", ratio);
  }
  return static_cast<int>(start);
}

void check_k(const char* op, int k) {
  if (k < 1) {
    reject(op, "k must be >= 1; got ", k);
  }
}

// Rows readable from the last of n_tokens.
int readable_rows(int start, int n_tokens, int ratio) {
  return visible_rows(start + n_tokens - 1, ratio);
}

IndexerScoresParams check_scores(
    const char* op,
    const mx::array& q,
    const mx::array& w,
    const mx::array& rows,
    int64_t start,
    int ratio,
    float scale) {
  check_row_dtype(op, "q", q.dtype());
  if (q.ndim() != 3 || q.shape(2) < 16 || q.shape(2) % 16 != 0) {
    reject(op, "q must be [T, I, D] with D a multiple of 16; got ", q.shape());
  }
  const int n_tokens = q.shape(0), n_heads = q.shape(1), dim = q.shape(2);
  check_dtype(op, "w", w, mx::float32);
  check_shape(op, "w", w, {n_tokens, n_heads}, "[T, I]");
  check_dtype(op, "rows", rows, q.dtype());
  if (rows.ndim() != 2 || rows.shape(1) != dim) {
    reject(op, "rows must be [capacity, D] with D = ", dim, "; got ", rows.shape());
  }
  const int first = check_positions(op, start, n_tokens, ratio);
  const int n_rows = readable_rows(first, n_tokens, ratio);
  if (rows.shape(0) < n_rows) {
    reject(op, "rows must hold the ", n_rows, " visible rows; got ", rows.shape());
  }
  return {n_heads, dim, n_rows, first, ratio, scale};
}

// Scores of n_tokens tokens, the first of them at p.start.
void score(
    IndexerKernels::Scores kernel,
    const void* q,
    const float* w,
    const void* rows,
    float* out,
    const IndexerScoresParams& p,
    int64_t n_tokens) {
  const int64_t token_blocks = (n_tokens + kIndexerBlockTokens - 1) / kIndexerBlockTokens;
  const int64_t row_blocks =
      (int64_t{p.n_rows} + kIndexerBlockRows - 1) / kIndexerBlockRows;
  parallel_for(token_blocks * row_blocks, 1, [&](int64_t begin, int64_t end) {
    auto scratch = allocate_floats(indexer_scratch_floats(p));
    for (int64_t i = begin; i < end; ++i) {
      const int64_t token = i / row_blocks * kIndexerBlockTokens;
      const int64_t row = i % row_blocks * kIndexerBlockRows;
      const IndexerBlock block{
          token,
          std::min(n_tokens, token + kIndexerBlockTokens),
          row,
          std::min<int64_t>(p.n_rows, row + kIndexerBlockRows)};
      kernel(q, w, rows, out, p, block, scratch.get());
    }
  });
}

void take_best(
    const IndexerKernels& kernels,
    const float* scores,
    int32_t* selected,
    const IndexerTopkParams& p,
    int64_t n_tokens) {
  parallel_for(n_tokens, 1, [&](int64_t begin, int64_t end) {
    auto scratch = std::make_unique_for_overwrite<int32_t[]>(kTopkScratchInts);
    kernels.topk(scores, selected, p, scratch.get(), begin, end);
  });
}

// Scores and selects tile by tile. Tokens that see at most k rows take them all, unscored.
void select_rows(
    const IndexerKernels& kernels,
    IndexerKernels::Scores kernel,
    size_t row_bytes,
    const char* q,
    const float* w,
    const void* rows,
    int32_t* selected,
    const IndexerSelectParams& p,
    int64_t n_tokens) {
  const IndexerScoresParams& s = p.scores;
  const int64_t first_scored =
      std::clamp<int64_t>((int64_t{p.k} + 1) * s.ratio - 1 - s.start, 0, n_tokens);
  take_best(kernels, nullptr, selected, {0, s.start, s.ratio, p.k}, first_scored);
  const int64_t per_tile = std::max<int64_t>(
      1, kIndexerScratchBytes / (int64_t{sizeof(float)} * std::max(1, s.n_rows)));
  Floats scores;
  for (int64_t first = first_scored; first < n_tokens; first += per_tile) {
    const int64_t count = std::min(per_tile, n_tokens - first);
    if (!scores) {
      scores = allocate_floats(count * s.n_rows);
    }
    IndexerScoresParams tile = s;
    tile.start = s.start + static_cast<int>(first);
    tile.n_rows = readable_rows(tile.start, static_cast<int>(count), s.ratio);
    score(
        kernel,
        q + first * s.n_heads * row_bytes,
        w + first * s.n_heads,
        rows,
        scores.get(),
        tile,
        count);
    take_best(
        kernels,
        scores.get(),
        selected + first * p.k,
        {tile.n_rows, tile.start, s.ratio, p.k},
        count);
  }
}

}  // namespace

mx::array indexer_queries(
    const mx::array& q,
    const mx::array& rotation,
    int heads,
    const std::string& round_trip,
    mx::Dtype dtype,
    mx::StreamOrDevice stream_or_device) {
  constexpr auto op = "indexer_queries";
  check_dtype(op, "q", q, mx::float32);
  if (heads < 1) {
    reject(op, "heads must be >= 1; got ", heads);
  }
  if (q.ndim() != 2 || q.shape(1) == 0 || q.shape(1) % (int64_t{16} * heads) != 0) {
    reject(
        op,
        "q must be [T, I * D] with I = ",
        heads,
        " and D a multiple of 16; got ",
        q.shape());
  }
  const int n_tokens = q.shape(0), dim = q.shape(1) / heads;
  check_rotation(op, rotation, n_tokens, dim);
  const int n_pairs = rotation.shape(1);
  const auto kind = parse_round_trip(op, round_trip, dim, n_pairs);
  check_row_dtype(op, "dtype", dtype);
  const auto stream = mx::to_stream(stream_or_device);
  return mx::array(
      {n_tokens, heads, dim},
      dtype,
      std::make_shared<IndexerQueries>(
          stream, IndexerQueriesParams{heads, dim, n_pairs, kind}),
      {dense(q, stream), dense(rotation, stream)});
}

mx::array indexer_scores(
    const mx::array& q,
    const mx::array& w,
    const mx::array& rows,
    int64_t start,
    int ratio,
    float scale,
    mx::StreamOrDevice stream_or_device) {
  const auto params = check_scores("indexer_scores", q, w, rows, start, ratio, scale);
  const auto stream = mx::to_stream(stream_or_device);
  return mx::array(
      {q.shape(0), params.n_rows},
      mx::float32,
      std::make_shared<IndexerScores>(stream, params),
      {dense(q, stream), dense(w, stream), dense(rows, stream)});
}

mx::array indexer_topk(
    const mx::array& scores,
    int64_t start,
    int ratio,
    int k,
    mx::StreamOrDevice stream_or_device) {
  constexpr auto op = "indexer_topk";
  check_k(op, k);
  check_dtype(op, "scores", scores, mx::float32);
  if (scores.ndim() != 2) {
    reject(op, "scores must be [T, N]; got ", scores.shape());
  }
  const int first = check_positions(op, start, scores.shape(0), ratio);
  const int n_rows = readable_rows(first, scores.shape(0), ratio);
  check_shape(
      op, "scores", scores, {scores.shape(0), n_rows}, "[T, (start + T) // ratio]");
  const auto stream = mx::to_stream(stream_or_device);
  return mx::array(
      {scores.shape(0), k},
      mx::int32,
      std::make_shared<IndexerTopk>(stream, IndexerTopkParams{n_rows, first, ratio, k}),
      {dense(scores, stream)});
}

mx::array indexer_select(
    const mx::array& q,
    const mx::array& w,
    const mx::array& rows,
    int64_t start,
    int ratio,
    float scale,
    int k,
    mx::StreamOrDevice stream_or_device) {
  constexpr auto op = "indexer_select";
  const auto params = check_scores(op, q, w, rows, start, ratio, scale);
  check_k(op, k);
  const auto stream = mx::to_stream(stream_or_device);
  return mx::array(
      {q.shape(0), k},
      mx::int32,
      std::make_shared<IndexerSelect>(stream, IndexerSelectParams{params, k}),
      {dense(q, stream), dense(w, stream), dense(rows, stream)});
}

void IndexerQueries::eval_cpu(
    const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) {
  allocate(outputs[0]);
  dispatch_cpu(
      stream(),
      [q = inputs[0].data<float>(),
       rotation = inputs[1].data<float>(),
       out = outputs[0].data<void>(),
       bf16 = outputs[0].dtype() == mx::bfloat16,
       n_tokens = inputs[0].shape(0),
       p = params_] {
        const auto& kernels = cpu_kernels<IndexerKernels>();
        const auto kernel = bf16 ? kernels.queries_bf16 : kernels.queries_f32;
        parallel_for(n_tokens, 1, [&](int64_t begin, int64_t end) {
          auto scratch = allocate_floats(p.dim);
          kernel(q, rotation, out, p, scratch.get(), begin, end);
        });
      });
}

void IndexerScores::eval_cpu(
    const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) {
  allocate(outputs[0]);
  dispatch_cpu(
      stream(),
      [q = inputs[0].data<void>(),
       w = inputs[1].data<float>(),
       rows = inputs[2].data<void>(),
       out = outputs[0].data<float>(),
       bf16 = inputs[0].dtype() == mx::bfloat16,
       n_tokens = inputs[0].shape(0),
       p = params_] {
        const auto& kernels = cpu_kernels<IndexerKernels>();
        score(
            bf16 ? kernels.scores_bf16 : kernels.scores_f32,
            q,
            w,
            rows,
            out,
            p,
            n_tokens);
      });
}

void IndexerTopk::eval_cpu(
    const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) {
  allocate(outputs[0]);
  dispatch_cpu(
      stream(),
      [scores = inputs[0].data<float>(),
       selected = outputs[0].data<int32_t>(),
       n_tokens = inputs[0].shape(0),
       p = params_] {
        take_best(cpu_kernels<IndexerKernels>(), scores, selected, p, n_tokens);
      });
}

void IndexerSelect::eval_cpu(
    const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) {
  allocate(outputs[0]);
  dispatch_cpu(
      stream(),
      [q = inputs[0].data<char>(),
       w = inputs[1].data<float>(),
       rows = inputs[2].data<void>(),
       selected = outputs[0].data<int32_t>(),
       row_bytes = inputs[0].itemsize() * inputs[0].shape(2),
       bf16 = inputs[0].dtype() == mx::bfloat16,
       n_tokens = inputs[0].shape(0),
       p = params_] {
        const auto& kernels = cpu_kernels<IndexerKernels>();
        const auto kernel = bf16 ? kernels.scores_bf16 : kernels.scores_f32;
        select_rows(kernels, kernel, row_bytes, q, w, rows, selected, p, n_tokens);
      });
}

void bind_indexer(nb::module_& m) {
  m.def(
      "indexer_queries",
      &indexer_queries,
      "q"_a,
      "rotation"_a,
      nb::kw_only(),
      "heads"_a,
      "round_trip"_a,
      "dtype"_a,
      "stream"_a = nb::none());
  m.def(
      "indexer_scores",
      &indexer_scores,
      "q"_a,
      "w"_a,
      "rows"_a,
      nb::kw_only(),
      "start"_a,
      "ratio"_a,
      "scale"_a,
      "stream"_a = nb::none());
  m.def(
      "indexer_topk",
      &indexer_topk,
      "scores"_a,
      nb::kw_only(),
      "start"_a,
      "ratio"_a,
      "k"_a,
      "stream"_a = nb::none());
  m.def(
      "indexer_select",
      &indexer_select,
      "q"_a,
      "w"_a,
      "rows"_a,
      nb::kw_only(),
      "start"_a,
      "ratio"_a,
      "scale"_a,
      "k"_a,
      "stream"_a = nb::none());
}

}  // namespace mlx_dsv4
