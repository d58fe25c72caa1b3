#include "compressor.h"

#include "bind.h"
#include "compressor_cpu.h"
#include "pool.h"
#include "rows.h"
#include "scratch.h"

namespace mlx_dsv4 {
namespace {

constexpr auto kOp = "compressor_append";
constexpr int64_t kSpansPerPiece = 8;
constexpr int64_t kItemsPerPiece = 64;  // tokens times feature blocks

void check_array(
    const char* name, const mx::array& a, const mx::Shape& shape, const char* layout) {
  check_dtype(kOp, name, a, mx::float32);
  check_shape(kOp, name, a, shape, layout);
}

// 2 where spans overlap, else 1.
int columns_per_feature(const mx::array& value, int dim) {
  check_dtype(kOp, "value", value, mx::float32);
  if (value.ndim() != 2 || (value.shape(1) != dim && value.shape(1) != 2 * dim)) {
    reject(
        kOp, "value must be [T, D] or [T, 2 D] with D = ", dim, "; got ", value.shape());
  }
  return value.shape(1) / dim;
}

void check_rows_fit(
    const mx::array& rows, int first_row, int64_t first_span, int64_t end_span) {
  if (first_row < 0) {
    reject(kOp, "first_row must be >= 0; got ", first_row);
  }
  if (end_span > first_span && first_row + end_span > rows.shape(0)) {
    reject(
        kOp,
        "rows must hold row ",
        first_row + end_span - 1,
        " (first_row ",
        first_row,
        " + span ",
        end_span - 1,
        "); got ",
        rows.shape());
  }
}

}  // namespace

std::tuple<mx::array, mx::array, mx::array> compressor_append(
    const mx::array& value,
    const mx::array& gate,
    const mx::array& ape,
    const mx::array& norm,
    const mx::array& rotation,
    const mx::array& state_value,
    const mx::array& state_score,
    const mx::array& rows,
    int64_t start,
    int ratio,
    int first_row,
    float eps,
    const std::string& round_trip,
    mx::StreamOrDevice stream_or_device) {
  check_row_dtype(kOp, "rows", rows.dtype());
  if (rows.ndim() != 2) {
    reject(kOp, "rows must be [N, D]; got ", rows.shape());
  }
  const int dim = rows.shape(1);
  check_row_dim(kOp, dim);
  const int c = columns_per_feature(value, dim);
  const int width = c * dim, n_tokens = value.shape(0);
  if (ratio < 1) {
    reject(kOp, "ratio must be >= 1; got ", ratio);
  }
  check_start(kOp, start, n_tokens);
  check_array("gate", gate, value.shape(), "the shape of value");
  check_array("ape", ape, {ratio, width}, "[ratio, c * D]");
  check_array("norm", norm, {dim}, "[D]");
  check_array("state_value", state_value, {c * ratio, width}, "[c * ratio, c * D]");
  check_array("state_score", state_score, {c * ratio, width}, "[c * ratio, c * D]");
  const int pos = static_cast<int>(start);
  check_rotation(kOp, rotation, closed_spans(pos, n_tokens, ratio), dim);
  check_rows_fit(rows, first_row, pos / ratio, (pos + n_tokens) / ratio);
  const int pairs = rotation.shape(1);
  const RoundTrip kind = parse_round_trip(kOp, round_trip, dim, pairs);
  const auto stream = mx::to_stream(stream_or_device);
  const CompressorParams params{
      dim, c - 1, ratio, n_tokens, pos, first_row, pairs, kind, eps};
  auto outputs = mx::array::make_arrays(
      {state_value.shape(), state_score.shape(), rows.shape()},
      {mx::float32, mx::float32, rows.dtype()},
      std::make_shared<CompressorAppend>(stream, params),
      {dense(value, stream),
       dense(gate, stream),
       dense(ape, stream),
       dense(norm, stream),
       dense(rotation, stream),
       state_value,
       state_score,
       rows});
  return {outputs[0], outputs[1], outputs[2]};
}

void CompressorAppend::eval_cpu(
    const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) {
  check_in_place(name(), "state_value", inputs[5]);
  check_in_place(name(), "state_score", inputs[6]);
  check_in_place(name(), "rows", inputs[7]);
  for (int i = 0; i < 3; ++i) {
    outputs[i].copy_shared_buffer(inputs[5 + i]);
  }
  const CompressorArrays arrays{
      inputs[0].data<float>(),
      inputs[1].data<float>(),
      inputs[2].data<float>(),
      inputs[3].data<float>(),
      inputs[4].data<float>(),
      outputs[0].data<float>(),
      outputs[1].data<float>(),
      outputs[2].data<void>()};
  const bool bfloat16 = outputs[2].dtype() == mx::bfloat16;
  dispatch_cpu(stream(), [a = arrays, p = params_, bfloat16] {
    const auto& cpu = cpu_kernels<CompressorKernels>();
    const auto pool = bfloat16 ? cpu.pool_bfloat16 : cpu.pool_float32;
    const auto finish = bfloat16 ? cpu.finish_bfloat16 : cpu.finish_float32;
    const int64_t spans = closed_spans(p.start, p.n_tokens, p.ratio);
    const int64_t grain = std::max<int64_t>(1, kItemsPerPiece / p.ratio);
    parallel_for(spans * pool_blocks(p.dim), grain, [&](int64_t begin, int64_t end) {
      pool(a, p, begin, end);
    });
    parallel_for(spans, kSpansPerPiece, [&](int64_t begin, int64_t end) {
      auto scratch = allocate_floats(p.dim);
      finish(a, p, scratch.get(), begin, end);
    });
    cpu.advance(a, p);
  });
}

void bind_compressor(nb::module_& m) {
  m.def(
      "compressor_append",
      &compressor_append,
      "value"_a,
      "gate"_a,
      "ape"_a,
      "norm"_a,
      "rotation"_a,
      "state_value"_a,
      "state_score"_a,
      "rows"_a,
      nb::kw_only(),
      "start"_a,
      "ratio"_a,
      "first_row"_a,
      "eps"_a,
      "round_trip"_a,
      "stream"_a = nb::none());
}

}  // namespace mlx_dsv4
