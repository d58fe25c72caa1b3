#include "hyper.h"

#include "bind.h"
#include "hyper_cpu.h"
#include "pool.h"

namespace mlx_dsv4 {
namespace {

// Smaller pieces cost more to hand out than to compute.
constexpr int64_t kMultiplyAddsPerPiece = 1 << 16;

int64_t grain(int64_t multiply_adds) {
  return std::max<int64_t>(1, kMultiplyAddsPerPiece / multiply_adds);
}

void check_streams(const char* op, const mx::array& streams) {
  check_dtype(op, "streams", streams, mx::float32);
  if (streams.ndim() != 3 || streams.shape(1) < 1 ||
      streams.shape(1) > kHyperMaxStreams || streams.shape(2) < 16 ||
      streams.shape(2) % 16 != 0) {
    reject(
        op,
        "streams must be [T, S, D] with S in 1..",
        kHyperMaxStreams,
        " and D a multiple of 16; got ",
        streams.shape());
  }
}

void check_f32(
    const char* op,
    const char* name,
    const mx::array& a,
    const mx::Shape& shape,
    const char* layout) {
  check_dtype(op, name, a, mx::float32);
  check_shape(op, name, a, shape, layout);
}

// m [T, n_outputs] = fn . streams, on all threads even for one token.
std::vector<float> product(
    const float* streams, const float* fn, int64_t n_tokens, const HyperParams& p) {
  const auto& kernels = cpu_kernels<HyperKernels>();
  std::vector<float> m(n_tokens * p.n_outputs);
  const int64_t tiles = (n_tokens + kernels.tile_tokens - 1) / kernels.tile_tokens *
                        ((p.n_outputs + kernels.tile_rows - 1) / kernels.tile_rows);
  const int64_t tile_work =
      int64_t{kernels.tile_tokens} * kernels.tile_rows * p.n_streams * p.dim;
  parallel_for(tiles, grain(tile_work), [&](int64_t begin, int64_t end) {
    kernels.product(streams, fn, m.data(), n_tokens, p, begin, end);
  });
  return m;
}

}  // namespace

std::tuple<mx::array, mx::array, mx::array> hyper_pre(
    const mx::array& streams,
    const mx::array& fn,
    const mx::array& base,
    const mx::array& scale,
    const mx::array& norm,
    float norm_eps,
    float hyper_eps,
    int iterations,
    mx::StreamOrDevice stream_or_device) {
  constexpr auto op = "hyper_pre";
  check_streams(op, streams);
  const int n_tokens = streams.shape(0), n_streams = streams.shape(1);
  const int dim = streams.shape(2), n_outputs = hyper_outputs(n_streams);
  check_f32(op, "fn", fn, {n_outputs, n_streams * dim}, "[(2 + S) S, S * D]");
  check_f32(op, "base", base, {n_outputs}, "[(2 + S) S]");
  check_f32(op, "scale", scale, {3}, "[3]");
  check_f32(op, "norm", norm, {dim}, "[D]");
  if (iterations < 1 || iterations > kHyperMaxIterations) {
    reject(op, "iterations must be in 1..", kHyperMaxIterations, "; got ", iterations);
  }
  const auto stream = mx::to_stream(stream_or_device);
  const HyperParams params{n_streams, dim, n_outputs, iterations, norm_eps, hyper_eps};
  auto outputs = mx::array::make_arrays(
      {{n_tokens, dim}, {n_tokens, n_streams}, {n_tokens, n_streams, n_streams}},
      {mx::float32, mx::float32, mx::float32},
      std::make_shared<HyperPre>(stream, params),
      {dense(streams, stream),
       dense(fn, stream),
       dense(base, stream),
       dense(scale, stream),
       dense(norm, stream)});
  return {outputs[0], outputs[1], outputs[2]};
}

mx::array hyper_post(
    const mx::array& streams,
    const mx::array& y,
    const mx::array& post,
    const mx::array& comb,
    mx::StreamOrDevice stream_or_device) {
  constexpr auto op = "hyper_post";
  check_streams(op, streams);
  const int n_tokens = streams.shape(0), n_streams = streams.shape(1);
  const int dim = streams.shape(2);
  check_f32(op, "y", y, {n_tokens, dim}, "[T, D]");
  check_f32(op, "post", post, {n_tokens, n_streams}, "[T, S]");
  check_f32(op, "comb", comb, {n_tokens, n_streams, n_streams}, "[T, S, S]");
  const auto stream = mx::to_stream(stream_or_device);
  return mx::array(
      streams.shape(),
      mx::float32,
      std::make_shared<HyperPost>(stream, HyperPostParams{n_streams, dim}),
      {dense(streams, stream),
       dense(y, stream),
       dense(post, stream),
       dense(comb, stream)});
}

mx::array hyper_head(
    const mx::array& streams,
    const mx::array& fn,
    const mx::array& base,
    const mx::array& scale,
    const mx::array& norm,
    float norm_eps,
    float hyper_eps,
    mx::StreamOrDevice stream_or_device) {
  constexpr auto op = "hyper_head";
  check_streams(op, streams);
  const int n_streams = streams.shape(1), dim = streams.shape(2);
  check_f32(op, "fn", fn, {n_streams, n_streams * dim}, "[S, S * D]");
  check_f32(op, "base", base, {n_streams}, "[S]");
  check_f32(op, "scale", scale, {1}, "[1]");
  check_f32(op, "norm", norm, {dim}, "[D]");
  const auto stream = mx::to_stream(stream_or_device);
  const HyperParams params{n_streams, dim, n_streams, 0, norm_eps, hyper_eps};
  return mx::array(
      {streams.shape(0), dim},
      mx::float32,
      std::make_shared<HyperHead>(stream, params),
      {dense(streams, stream),
       dense(fn, stream),
       dense(base, stream),
       dense(scale, stream),
       dense(norm, stream)});
}

void HyperPre::eval_cpu(
    const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) {
  for (auto& out : outputs) {
    allocate(out);
  }
  dispatch_cpu(
      stream(),
      [streams = inputs[0].data<float>(),
       fn = inputs[1].data<float>(),
       base = inputs[2].data<float>(),
       scale = inputs[3].data<float>(),
       norm = inputs[4].data<float>(),
       x = outputs[0].data<float>(),
       post = outputs[1].data<float>(),
       comb = outputs[2].data<float>(),
       n_tokens = inputs[0].shape(0),
       p = params_] {
        const auto m = product(streams, fn, n_tokens, p);
        const int64_t per_piece = grain(int64_t{2} * p.n_streams * p.dim);
        parallel_for(n_tokens, per_piece, [&](int64_t begin, int64_t end) {
          cpu_kernels<HyperKernels>().pre(
              streams, m.data(), base, scale, norm, x, post, comb, p, begin, end);
        });
      });
}

void HyperPost::eval_cpu(
    const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) {
  allocate(outputs[0]);
  dispatch_cpu(
      stream(),
      [streams = inputs[0].data<float>(),
       y = inputs[1].data<float>(),
       post = inputs[2].data<float>(),
       comb = inputs[3].data<float>(),
       out = outputs[0].data<float>(),
       n_tokens = inputs[0].shape(0),
       p = params_] {
        const int64_t per_piece = grain(int64_t{1 + p.n_streams} * p.n_streams * p.dim);
        parallel_for(n_tokens, per_piece, [&](int64_t begin, int64_t end) {
          cpu_kernels<HyperKernels>().post(streams, y, post, comb, out, p, begin, end);
        });
      });
}

void HyperHead::eval_cpu(
    const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) {
  allocate(outputs[0]);
  dispatch_cpu(
      stream(),
      [streams = inputs[0].data<float>(),
       fn = inputs[1].data<float>(),
       base = inputs[2].data<float>(),
       scale = inputs[3].data<float>(),
       norm = inputs[4].data<float>(),
       x = outputs[0].data<float>(),
       n_tokens = inputs[0].shape(0),
       p = params_] {
        const auto m = product(streams, fn, n_tokens, p);
        const int64_t per_piece = grain(int64_t{2} * p.n_streams * p.dim);
        parallel_for(n_tokens, per_piece, [&](int64_t begin, int64_t end) {
          cpu_kernels<HyperKernels>().head(
              streams, m.data(), base, scale, norm, x, p, begin, end);
        });
      });
}

void bind_hyper(nb::module_& m) {
  m.def(
      "hyper_pre",
      &hyper_pre,
      "streams"_a,
      "fn"_a,
      "base"_a,
      "scale"_a,
      "norm"_a,
      nb::kw_only(),
      "norm_eps"_a,
      "hyper_eps"_a,
      "iterations"_a,
      "stream"_a = nb::none());
  m.def(
      "hyper_post",
      &hyper_post,
      "streams"_a,
      "y"_a,
      "post"_a,
      "comb"_a,
      nb::kw_only(),
      "stream"_a = nb::none());
  m.def(
      "hyper_head",
      &hyper_head,
      "streams"_a,
      "fn"_a,
      "base"_a,
      "scale"_a,
      "norm"_a,
      nb::kw_only(),
      "norm_eps"_a,
      "hyper_eps"_a,
      "stream"_a = nb::none());
}

}  // namespace mlx_dsv4
