#include "window.h"

#include "bind.h"
#include "pool.h"
#include "rows.h"
#include "scratch.h"
#include "window_cpu.h"

namespace mlx_dsv4 {
namespace {

constexpr int64_t kTokensPerPiece = 8;

}  // namespace

mx::array window_rows(
    const mx::array& kv,
    const mx::array& norm,
    const mx::array& rotation,
    float eps,
    const std::string& round_trip,
    mx::Dtype dtype,
    mx::StreamOrDevice stream_or_device) {
  constexpr auto op = "window_rows";
  check_dtype(op, "kv", kv, mx::float32);
  if (kv.ndim() != 2) {
    reject(op, "kv must be [T, D]; got ", kv.shape());
  }
  const int n_tokens = kv.shape(0), dim = kv.shape(1);
  check_row_dim(op, dim);
  check_dtype(op, "norm", norm, mx::float32);
  check_shape(op, "norm", norm, {dim}, "[D]");
  check_rotation(op, rotation, n_tokens, dim);
  check_row_dtype(op, "dtype", dtype);
  const int pairs = rotation.shape(1);
  const RoundTrip kind = parse_round_trip(op, round_trip, dim, pairs);
  if (kind == kRoundTripHadamardFp4) {
    reject(op, "round_trip must be none or fp8; got ", round_trip);
  }
  const auto stream = mx::to_stream(stream_or_device);
  return mx::array(
      kv.shape(),
      dtype,
      std::make_shared<WindowRows>(
          stream, WindowRowsParams{n_tokens, dim, pairs, kind, eps}),
      {dense(kv, stream), dense(norm, stream), dense(rotation, stream)});
}

void WindowRows::eval_cpu(
    const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) {
  allocate(outputs[0]);
  dispatch_cpu(
      stream(),
      [kv = inputs[0].data<float>(),
       norm = inputs[1].data<float>(),
       rotation = inputs[2].data<float>(),
       out = outputs[0].data<char>(),
       bfloat16 = outputs[0].dtype() == mx::bfloat16,
       n_tokens = inputs[0].shape(0),
       p = params_] {
        const auto& cpu = cpu_kernels<WindowKernels>();
        parallel_for(n_tokens, kTokensPerPiece, [&](int64_t begin, int64_t end) {
          auto scratch = allocate_floats(p.dim);
          if (bfloat16) {
            cpu.rows_bfloat16(
                kv,
                norm,
                rotation,
                reinterpret_cast<uint16_t*>(out),
                scratch.get(),
                p,
                begin,
                end);
          } else {
            cpu.rows_float32(
                kv,
                norm,
                rotation,
                reinterpret_cast<float*>(out),
                scratch.get(),
                p,
                begin,
                end);
          }
        });
      });
}

mx::array window_write(
    const mx::array& attention_kv,
    const mx::array& rows,
    int64_t start,
    int window,
    const std::vector<mx::array>& after,
    mx::StreamOrDevice stream_or_device) {
  constexpr auto op = "window_write";
  check_row_dtype(op, "attention_kv", attention_kv.dtype());
  if (attention_kv.ndim() != 2) {
    reject(op, "attention_kv must be [W + N, D]; got ", attention_kv.shape());
  }
  const int dim = attention_kv.shape(1);
  check_dtype(op, "rows", rows, attention_kv.dtype());
  if (rows.ndim() != 2 || rows.shape(1) != dim) {
    reject(op, "rows must be [T, D] with D = ", dim, "; got ", rows.shape());
  }
  if (window < 1 || window > attention_kv.shape(0)) {
    reject(op, "window must be in 1..", attention_kv.shape(0), "; got ", window);
  }
  const int n_tokens = rows.shape(0);
  check_start(op, start, n_tokens);
  const auto stream = mx::to_stream(stream_or_device);
  // `after` is never read: being inputs, those arrays are made before the write happens.
  std::vector<mx::array> inputs{attention_kv, dense(rows, stream)};
  inputs.insert(inputs.end(), after.begin(), after.end());
  return mx::array(
      attention_kv.shape(),
      attention_kv.dtype(),
      std::make_shared<WindowWrite>(
          stream, WindowWriteParams{dim, n_tokens, static_cast<int32_t>(start), window}),
      std::move(inputs));
}

void WindowWrite::eval_cpu(
    const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) {
  check_in_place(name(), "attention_kv", inputs[0]);
  outputs[0].copy_shared_buffer(inputs[0]);
  dispatch_cpu(
      stream(),
      [ring = outputs[0].data<char>(),
       rows = inputs[1].data<char>(),
       row_bytes = outputs[0].itemsize() * params_.dim,
       p = params_] {
        for (int t = first_written_row(p.n_tokens, p.window); t < p.n_tokens; ++t) {
          const int slot = window_slot(p.start + t, p.window);
          std::memcpy(ring + slot * row_bytes, rows + t * row_bytes, row_bytes);
        }
      });
}

void bind_window(nb::module_& m) {
  m.def(
      "window_rows",
      &window_rows,
      "kv"_a,
      "norm"_a,
      "rotation"_a,
      nb::kw_only(),
      "eps"_a,
      "round_trip"_a,
      "dtype"_a,
      "stream"_a = nb::none());
  m.def(
      "window_write",
      &window_write,
      "attention_kv"_a,
      "rows"_a,
      nb::kw_only(),
      "start"_a,
      "window"_a,
      "after"_a = nb::tuple(),
      "stream"_a = nb::none());
}

}  // namespace mlx_dsv4
