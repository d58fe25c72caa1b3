#include "attention.h"

#include <algorithm>

#include "attention_cpu.h"
#include "bind.h"
#include "pool.h"
#include "rows.h"
#include "scratch.h"

namespace mlx_dsv4 {
namespace {

constexpr int kMostHeadsPerUnit = 64;
constexpr int64_t kMostWeightsPerUnit = 1 << 20;

void check_rows(
    const char* op, const char* name, const mx::array& a, const mx::array& q) {
  check_dtype(op, name, a, q.dtype());
  if (a.ndim() != 2 || a.shape(1) != q.shape(2)) {
    reject(op, name, " must be [rows, D] with D = ", q.shape(2), "; got ", a.shape());
  }
}

void check_positions(const char* op, int64_t start, int n_tokens, int window, int ratio) {
  check_start(op, start, n_tokens);
  if (window < 1) {
    reject(op, "window must be >= 1; got ", window);
  }
  if (ratio < 0) {
    reject(op, "ratio must be >= 0; got ", ratio);
  }
}

// K, or 0 where every visible row is attended to.
int check_selected(
    const char* op, const std::optional<mx::array>& selected, int n_tokens, int ratio) {
  if (!selected) {
    return 0;
  }
  check_dtype(op, "selected", *selected, mx::int32);
  if (selected->ndim() != 2 || selected->shape(0) != n_tokens || selected->shape(1) < 1) {
    reject(
        op,
        "selected must be [T, K] with T = ",
        n_tokens,
        " and K >= 1; got ",
        selected->shape());
  }
  if (ratio == 0) {
    reject(op, "selected must be None at ratio 0; got ", selected->shape());
  }
  return selected->shape(1);
}

// Heads of a unit share the conversion of rows: as many as leave a unit for every thread and
// keep the weights of a unit in the cache.
int heads_per_unit(int64_t n_tokens, int n_heads, int64_t most_rows) {
  int heads = kMostHeadsPerUnit;
  while (heads > kAttentionLanes &&
         (n_tokens * ((n_heads + heads - 1) / heads) < num_threads() ||
          most_rows * heads > kMostWeightsPerUnit)) {
    heads /= 2;
  }
  return heads;
}

void attend(
    AttentionKernels::Attend kernel,
    const AttentionInputs& inputs,
    void* out,
    const AttentionParams& p,
    int64_t n_tokens) {
  const int last = p.start + static_cast<int>(n_tokens) - 1;
  const int64_t most_rows =
      std::min(p.window, last + 1) +
      (p.n_selected > 0 ? p.n_selected : visible_rows(last, p.ratio));
  const int heads = heads_per_unit(n_tokens, p.n_heads, most_rows);
  const int64_t units_per_token = (p.n_heads + heads - 1) / heads;
  parallel_for(n_tokens * units_per_token, 1, [&](int64_t begin, int64_t end) {
    auto scratch = allocate_floats(
        attention_scratch_floats(p, std::min(heads, p.n_heads), most_rows));
    for (int64_t i = begin; i < end; ++i) {
      const int first = static_cast<int>(i % units_per_token) * heads;
      const AttentionUnit unit{
          i / units_per_token, first, std::min(first + heads, p.n_heads)};
      kernel(inputs, out, p, unit, most_rows, scratch.get());
    }
  });
}

}  // namespace

mx::array attention_queries(
    const mx::array& q,
    const mx::array& rotation,
    int heads,
    float eps,
    mx::Dtype dtype,
    mx::StreamOrDevice stream_or_device) {
  constexpr auto op = "attention_queries";
  check_dtype(op, "q", q, mx::float32);
  if (heads < 1) {
    reject(op, "heads must be >= 1; got ", heads);
  }
  if (q.ndim() != 2 || q.shape(1) == 0 || q.shape(1) % (int64_t{16} * heads) != 0) {
    reject(
        op,
        "q must be [T, H * D] with H = ",
        heads,
        " and D a multiple of 16; got ",
        q.shape());
  }
  const int n_tokens = q.shape(0), dim = q.shape(1) / heads;
  check_rotation(op, rotation, n_tokens, dim);
  check_row_dtype(op, "dtype", dtype);
  const auto stream = mx::to_stream(stream_or_device);
  return mx::array(
      {n_tokens, heads, dim},
      dtype,
      std::make_shared<AttentionQueries>(
          stream, AttentionQueriesParams{heads, dim, rotation.shape(1), eps}),
      {dense(q, stream), dense(rotation, stream)});
}

mx::array attention(
    const mx::array& q,
    const mx::array& rows,
    const mx::array& attention_kv,
    const mx::array& sinks,
    const mx::array& rotation,
    const std::optional<mx::array>& selected,
    int64_t start,
    int window,
    int ratio,
    mx::StreamOrDevice stream_or_device) {
  constexpr auto op = "attention";
  check_row_dtype(op, "q", q.dtype());
  if (q.ndim() != 3 || q.shape(1) < 1 || q.shape(2) < 16 || q.shape(2) % 16 != 0) {
    reject(op, "q must be [T, H, D] with D a multiple of 16; got ", q.shape());
  }
  const int n_tokens = q.shape(0), n_heads = q.shape(1), dim = q.shape(2);
  check_rows(op, "rows", rows, q);
  check_shape(op, "rows", rows, {n_tokens, dim}, "[T, D]");
  check_rows(op, "attention_kv", attention_kv, q);
  check_dtype(op, "sinks", sinks, mx::float32);
  check_shape(op, "sinks", sinks, {n_heads}, "[H]");
  check_rotation(op, rotation, n_tokens, dim);
  check_positions(op, start, n_tokens, window, ratio);
  const int first = static_cast<int>(start);
  const int64_t needed = int64_t{window} + visible_rows(first + n_tokens - 1, ratio);
  if (attention_kv.shape(0) < needed) {
    reject(
        op,
        "attention_kv must hold the window and every visible row, ",
        needed,
        " rows; got ",
        attention_kv.shape());
  }
  const int n_selected = check_selected(op, selected, n_tokens, ratio);
  const auto stream = mx::to_stream(stream_or_device);
  std::vector<mx::array> inputs{
      dense(q, stream),
      dense(rows, stream),
      dense(attention_kv, stream),
      dense(sinks, stream),
      dense(rotation, stream)};
  if (selected) {
    inputs.push_back(dense(*selected, stream));
  }
  return mx::array(
      q.shape(),
      q.dtype(),
      std::make_shared<Attention>(
          stream,
          AttentionParams{
              n_heads, dim, rotation.shape(1), first, window, ratio, n_selected}),
      std::move(inputs));
}

void AttentionQueries::eval_cpu(
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
        const auto& kernels = cpu_kernels<AttentionKernels>();
        const auto kernel = bf16 ? kernels.queries_bf16 : kernels.queries_f32;
        parallel_for(n_tokens, 1, [&](int64_t begin, int64_t end) {
          auto scratch = allocate_floats(p.dim);
          kernel(q, rotation, out, p, scratch.get(), begin, end);
        });
      });
}

void Attention::eval_cpu(
    const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) {
  allocate(outputs[0]);
  const AttentionInputs pointers{
      inputs[0].data<void>(),
      inputs[1].data<void>(),
      inputs[2].data<void>(),
      inputs[3].data<float>(),
      inputs[4].data<float>(),
      params_.n_selected > 0 ? inputs[5].data<int32_t>() : nullptr};
  dispatch_cpu(
      stream(),
      [pointers,
       out = outputs[0].data<void>(),
       bf16 = inputs[0].dtype() == mx::bfloat16,
       n_tokens = inputs[0].shape(0),
       p = params_] {
        const auto& kernels = cpu_kernels<AttentionKernels>();
        attend(
            bf16 ? kernels.attend_bf16 : kernels.attend_f32, pointers, out, p, n_tokens);
      });
}

void bind_attention(nb::module_& m) {
  m.def(
      "attention_queries",
      &attention_queries,
      "q"_a,
      "rotation"_a,
      nb::kw_only(),
      "heads"_a,
      "eps"_a,
      "dtype"_a,
      "stream"_a = nb::none());
  m.def(
      "attention",
      &attention,
      "q"_a,
      "rows"_a,
      "attention_kv"_a,
      "sinks"_a,
      "rotation"_a,
      nb::kw_only(),
      "selected"_a,
      "start"_a,
      "window"_a,
      "ratio"_a,
      "stream"_a = nb::none());
}

}  // namespace mlx_dsv4
