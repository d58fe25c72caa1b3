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
// Bounds the memory of packed tokens.
constexpr int64_t kTokensPerBlock = 1024;

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

template <typename Value, typename Pack>
void multiply_block(
    const Value* x,
    Pack pack,
    const uint8_t* weight,
    float* out,
    float* packed,
    int64_t n_tokens,
    const MatmulParams& p) {
  const auto& kernels = cpu_kernels<MatmulKernels>();
  parallel_for(
      n_tokens * p.groups,
      ceil_div(kValuesPerPiece, p.k),
      [&](int64_t begin, int64_t end) { pack(x, packed, p.k, begin, end); });
  const int64_t grain = ceil_div(kTermsPerPiece, kRowsPerUnit * n_tokens * p.k);
  parallel_for(ceil_div(p.n_rows, kRowsPerUnit), grain, [&](int64_t begin, int64_t end) {
    const int64_t last = std::min<int64_t>(p.n_rows, end * kRowsPerUnit);
    kernels.multiply(
        packed, weight, out, panel_scratch(), p, n_tokens, begin * kRowsPerUnit, last);
  });
}

template <typename Value, typename Pack>
void multiply(
    const Value* x,
    Pack pack,
    const uint8_t* weight,
    float* out,
    int64_t n_tokens,
    const MatmulParams& p) {
  const int64_t most = std::min(n_tokens, kTokensPerBlock);
  const auto packed = allocate_floats(most * p.groups * packed_stride(p.k));
  for (int64_t first = 0; first < n_tokens; first += most) {
    multiply_block(
        x + first * p.groups * p.k,
        pack,
        weight,
        out + first * p.n_rows,
        packed.get(),
        std::min(most, n_tokens - first),
        p);
  }
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
      std::make_shared<Matmul>(stream, MatmulParams{n_rows, k, groups, code, x.shape(0)}),
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
  check_known_ids(op, "tokens", tokens, weight.shape(0));
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
      [x = inputs[0].data<void>(),
       is_float = inputs[0].dtype() == mx::float32,
       weight = inputs[1].data<uint8_t>(),
       out = outputs[0].data<float>(),
       n_tokens = int64_t{inputs[0].shape(0)},
       p = params_] {
        const auto& kernels = cpu_kernels<MatmulKernels>();
        if (is_float) {
          multiply(
              static_cast<const float*>(x), kernels.pack_f32, weight, out, n_tokens, p);
        } else {
          multiply(
              static_cast<const uint16_t*>(x),
              kernels.pack_bf16,
              weight,
              out,
              n_tokens,
              p);
        }
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
