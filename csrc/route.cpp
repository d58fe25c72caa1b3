#include "route.h"

#include "bind.h"
#include "pool.h"
#include "route_cpu.h"

namespace mlx_dsv4 {
namespace {

constexpr int64_t kTokensPerPiece = 16;

void check_logits(const char* op, const mx::array& logits) {
  check_dtype(op, "logits", logits, mx::float32);
  if (logits.ndim() != 2) {
    reject(op, "logits must be [T, E]; got ", logits.shape());
  }
}

void check_k(const char* op, int k, int n_experts) {
  const int most = std::min(n_experts, kRouteMaxExpertsUsed);
  if (k < 1 || k > most) {
    reject(op, "k must be in 1..", most, "; got ", k);
  }
}

template <typename Primitive>
std::pair<mx::array, mx::array> make_route(
    mx::Stream stream, const RouteParams& params, std::vector<mx::array> inputs) {
  const mx::Shape shape{inputs[0].shape(0), params.k};
  auto outputs = mx::array::make_arrays(
      {shape, shape},
      {mx::int32, mx::float32},
      std::make_shared<Primitive>(stream, params),
      std::move(inputs));
  return {outputs[0], outputs[1]};
}

}  // namespace

std::pair<mx::array, mx::array> route_scored(
    const mx::array& logits,
    const mx::array& bias,
    int k,
    float scale,
    mx::StreamOrDevice stream_or_device) {
  constexpr auto op = "route_scored";
  check_logits(op, logits);
  const int n_experts = logits.shape(1);
  check_dtype(op, "bias", bias, mx::float32);
  check_shape(op, "bias", bias, {n_experts}, "[E]");
  check_k(op, k, n_experts);
  const auto stream = mx::to_stream(stream_or_device);
  return make_route<RouteScored>(
      stream,
      {logits.shape(0), n_experts, k, 0, scale},
      {dense(logits, stream), dense(bias, stream)});
}

std::pair<mx::array, mx::array> route_hashed(
    const mx::array& logits,
    const mx::array& tokens,
    const mx::array& table,
    float scale,
    mx::StreamOrDevice stream_or_device) {
  constexpr auto op = "route_hashed";
  check_logits(op, logits);
  check_dtype(op, "tokens", tokens, mx::int32);
  check_shape(op, "tokens", tokens, {logits.shape(0)}, "[T]");
  check_dtype(op, "table", table, mx::int32);
  if (table.ndim() != 2) {
    reject(op, "table must be [V, k]; got ", table.shape());
  }
  check_k(op, table.shape(1), logits.shape(1));
  check_known_ids(op, "tokens", tokens, table.shape(0));
  const auto stream = mx::to_stream(stream_or_device);
  return make_route<RouteHashed>(
      stream,
      {logits.shape(0), logits.shape(1), table.shape(1), table.shape(0), scale},
      {dense(logits, stream), dense(tokens, stream), dense(table, stream)});
}

void RouteScored::eval_cpu(
    const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) {
  allocate(outputs[0]);
  allocate(outputs[1]);
  dispatch_cpu(
      stream(),
      [logits = inputs[0].data<float>(),
       bias = inputs[1].data<float>(),
       ids = outputs[0].data<int32_t>(),
       weights = outputs[1].data<float>(),
       n_tokens = inputs[0].shape(0),
       p = params_] {
        parallel_for(n_tokens, kTokensPerPiece, [&](int64_t begin, int64_t end) {
          cpu_kernels<RouteKernels>().scored(logits, bias, ids, weights, p, begin, end);
        });
      });
}

void RouteHashed::eval_cpu(
    const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) {
  allocate(outputs[0]);
  allocate(outputs[1]);
  dispatch_cpu(
      stream(),
      [logits = inputs[0].data<float>(),
       tokens = inputs[1].data<int32_t>(),
       table = inputs[2].data<int32_t>(),
       ids = outputs[0].data<int32_t>(),
       weights = outputs[1].data<float>(),
       n_tokens = inputs[0].shape(0),
       p = params_] {
        parallel_for(n_tokens, kTokensPerPiece, [&](int64_t begin, int64_t end) {
          cpu_kernels<RouteKernels>().hashed(
              logits, tokens, table, ids, weights, p, begin, end);
        });
      });
}

void bind_route(nb::module_& m) {
  m.def(
      "route_scored",
      &route_scored,
      "logits"_a,
      "bias"_a,
      nb::kw_only(),
      "k"_a,
      "scale"_a,
      "stream"_a = nb::none());
  m.def(
      "route_hashed",
      &route_hashed,
      "logits"_a,
      "tokens"_a,
      "table"_a,
      nb::kw_only(),
      "scale"_a,
      "stream"_a = nb::none());
}

}  // namespace mlx_dsv4
