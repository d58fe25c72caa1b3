#include "matmul.h"

#include "bind.h"
#include "blocks.h"
#include "matmul_cpu.h"
#include "pool.h"

namespace mlx_dsv4 {
namespace {

// Rows that stay together, and the least multiply-adds that are worth waking a thread for.
constexpr int64_t kRowsPerUnit = 8, kTermsPerPiece = 1 << 16;
constexpr int64_t kValuesPerPiece = 1 << 14;

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

void pack(const mx::array& x, float* packed, int64_t n, int k) {
  const auto& kernels = cpu_kernels<MatmulKernels>();
  parallel_for(n, ceil_div(kValuesPerPiece, k), [&](int64_t begin, int64_t end) {
    if (x.dtype() == mx::float32) {
      kernels.pack_f32(x.data<float>(), packed, k, begin, end);
    } else {
      kernels.pack_bf16(x.data<uint16_t>(), packed, k, begin, end);
    }
  });
}

}  // namespace

mx::array matmul(
    const mx::array& x,
    const mx::array& weight,
    const std::string& format,
    int groups,
    mx::StreamOrDevice stream_or_device) {
  constexpr auto op = "matmul";
  if (x.dtype() != mx::float32 && x.dtype() != mx::bfloat16) {
    reject(op, "x must be float32 or bfloat16; got ", x.dtype());
  }
  if (groups < 1) {
    reject(op, "groups must be positive; got ", groups);
  }
  if (x.ndim() != 2 || x.shape(1) % groups != 0) {
    reject(op, "x must be [T, groups * K] with groups = ", groups, "; got ", x.shape());
  }
  const int code = parse_format(op, "format", format), k = x.shape(1) / groups;
  check_blocks(op, "weight", weight, 2, code, k);
  const int n_rows = weight.shape(0);
  if (n_rows % groups != 0) {
    reject(op, "weight must have a multiple of groups = ", groups, " rows; got ", n_rows);
  }
  const auto stream = mx::to_stream(stream_or_device);
  return mx::array(
      {x.shape(0), n_rows},
      mx::float32,
      std::make_shared<Matmul>(stream, MatmulParams{n_rows, k, groups, code}),
      {dense(x, stream), weight});
}

mx::array embed(
    const mx::array& tokens,
    const mx::array& weight,
    const std::string& format,
    mx::StreamOrDevice stream_or_device) {
  constexpr auto op = "embed";
  check_dtype(op, "tokens", tokens, mx::int32);
  if (tokens.ndim() != 1) {
    reject(op, "tokens must be [T]; got ", tokens.shape());
  }
  const int code = parse_format(op, "format", format);
  if (weight.ndim() != 2 || weight.shape(1) % block_bytes(code) != 0) {
    reject(
        op,
        "weight must be [V, row_bytes] with a multiple of ",
        block_bytes(code),
        " bytes; got ",
        weight.shape());
  }
  const int k = weight.shape(1) / block_bytes(code) * block_elements(code);
  check_blocks(op, "weight", weight, 2, code, k);
  const auto stream = mx::to_stream(stream_or_device);
  return mx::array(
      {tokens.shape(0), k},
      mx::float32,
      std::make_shared<Embed>(stream, EmbedParams{weight.shape(0), k, code}),
      {dense(tokens, stream), weight});
}

void Matmul::eval_cpu(
    const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) {
  check_in_place(name(), "weight", inputs[1]);
  allocate(outputs[0]);
  dispatch_cpu(
      stream(),
      [x = mx::array::unsafe_weak_copy(inputs[0]),
       weight = inputs[1].data<uint8_t>(),
       out = outputs[0].data<float>(),
       p = params_] {
        const int64_t n_tokens = x.shape(0), rows_of_x = n_tokens * p.groups;
        if (n_tokens == 0) {
          return;
        }
        const auto packed = allocate_floats(rows_of_x * packed_stride(p.k));
        pack(x, packed.get(), rows_of_x, p.k);
        const int64_t units = ceil_div(p.n_rows, kRowsPerUnit);
        const int64_t grain = ceil_div(kTermsPerPiece, kRowsPerUnit * n_tokens * p.k);
        parallel_for(units, grain, [&](int64_t begin, int64_t end) {
          cpu_kernels<MatmulKernels>().multiply(
              packed.get(),
              weight,
              out,
              panel_scratch(),
              p,
              n_tokens,
              begin * kRowsPerUnit,
              std::min<int64_t>(p.n_rows, end * kRowsPerUnit));
        });
      });
}

void Embed::eval_cpu(
    const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) {
  check_in_place(name(), "weight", inputs[1]);
  allocate(outputs[0]);
  dispatch_cpu(
      stream(),
      [tokens = inputs[0].data<int32_t>(),
       weight = inputs[1].data<uint8_t>(),
       out = outputs[0].data<float>(),
       n_tokens = inputs[0].shape(0),
       p = params_] {
        for (int t = 0; t < n_tokens; ++t) {
          if (tokens[t] < 0 || tokens[t] >= p.n_rows) {
            throw std::runtime_error(
                "[embed] tokens must be in 0.." + std::to_string(p.n_rows - 1) +
                "; got " + std::to_string(tokens[t]));
          }
        }
        parallel_for(
            n_tokens, ceil_div(kValuesPerPiece, p.k), [&](int64_t begin, int64_t end) {
              cpu_kernels<MatmulKernels>().embed(tokens, weight, out, p, begin, end);
            });
      });
}

void bind_matmul(nb::module_& m) {
  m.def(
      "matmul",
      &matmul,
      "x"_a,
      "weight"_a,
      nb::kw_only(),
      "format"_a,
      "groups"_a = 1,
      "stream"_a = nb::none());
  m.def(
      "embed",
      &embed,
      "tokens"_a,
      "weight"_a,
      nb::kw_only(),
      "format"_a,
      "stream"_a = nb::none());
}

}  // namespace mlx_dsv4
