#include "experts.h"

#include "bind.h"
#include "blocks.h"
#include "expert_slots.h"
#include "pool.h"

namespace mlx_dsv4 {
namespace {

// Bounds the memory of h; a token's slots are always in one block.
constexpr int64_t kTokensPerBlock = 1024;
constexpr int64_t kTokensPerPiece = 8;

void run_block(ExpertsCall call, const float* x, float* packed) {
  const auto& kernels = cpu_kernels<ExpertsKernels>();
  const auto& p = call.p;
  parallel_for(call.n_tokens, kTokensPerPiece, [&](int64_t begin, int64_t end) {
    kernels.pack(x, packed, p.dim, begin, end);
  });
  const int64_t panels = (p.hidden + kPanelRows - 1) / kPanelRows;
  parallel_for(call.n_groups * panels, 1, [&](int64_t begin, int64_t end) {
    kernels.hidden(call, panel_scratch(), begin, end);
  });
  parallel_for((p.dim + kPanelRows - 1) / kPanelRows, 1, [&](int64_t begin, int64_t end) {
    kernels.combine(call, panel_scratch(), begin, end);
  });
}

int check_matrix(
    const char* op,
    const char* name,
    const mx::array& matrix,
    const std::string& format,
    int n_experts,
    int n_rows,
    int k) {
  const int code = parse_format(op, "formats", format);
  check_blocks(op, name, matrix, 3, code, k);
  check_shape(
      op, name, matrix, {n_experts, n_rows, matrix.shape(2)}, "[E, N, row_bytes]");
  return code;
}

}  // namespace

mx::array experts(
    const mx::array& x,
    const mx::array& ids,
    const mx::array& weights,
    const mx::array& gate,
    const mx::array& up,
    const mx::array& down,
    const std::tuple<std::string, std::string, std::string>& formats,
    float clamp,
    mx::StreamOrDevice stream_or_device) {
  constexpr auto op = "experts";
  check_dtype(op, "x", x, mx::float32);
  if (x.ndim() != 2) {
    reject(op, "x must be [T, K]; got ", x.shape());
  }
  const int n_tokens = x.shape(0), dim = x.shape(1);
  check_dtype(op, "ids", ids, mx::int32);
  if (ids.ndim() != 2 || ids.shape(0) != n_tokens || ids.shape(1) < 1) {
    reject(op, "ids must be [T, k] with T = ", n_tokens, "; got ", ids.shape());
  }
  check_dtype(op, "weights", weights, mx::float32);
  check_shape(op, "weights", weights, ids.shape(), "[T, k]");
  if (!(clamp > 0)) {
    reject(op, "clamp must be positive; got ", clamp);
  }
  if (gate.ndim() != 3) {
    reject(op, "gate must be [E, F, row_bytes]; got ", gate.shape());
  }
  const int n_experts = gate.shape(0), hidden = gate.shape(1);
  const auto& [gate_format, up_format, down_format] = formats;
  const ExpertsParams params{
      n_experts,
      ids.shape(1),
      dim,
      hidden,
      check_matrix(op, "gate", gate, gate_format, n_experts, hidden, dim),
      check_matrix(op, "up", up, up_format, n_experts, hidden, dim),
      check_matrix(op, "down", down, down_format, n_experts, dim, hidden),
      clamp,
      n_tokens};
  const auto stream = mx::to_stream(stream_or_device);
  return mx::array(
      x.shape(),
      mx::float32,
      std::make_shared<Experts>(stream, params),
      {dense(x, stream), dense(ids, stream), dense(weights, stream), gate, up, down});
}

void Experts::eval_cpu(
    const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) {
  const char* const matrices[] = {"gate", "up", "down"};
  for (int i = 0; i < 3; ++i) {
    check_in_place(name(), matrices[i], inputs[3 + i]);
  }
  allocate(outputs[0]);
  dispatch_cpu(
      stream(),
      [x = inputs[0].data<float>(),
       ids = inputs[1].data<int32_t>(),
       weights = inputs[2].data<float>(),
       gate = inputs[3].data<uint8_t>(),
       up = inputs[4].data<uint8_t>(),
       down = inputs[5].data<uint8_t>(),
       out = outputs[0].data<float>(),
       n_tokens = int64_t{inputs[0].shape(0)},
       p = params_] {
        const int64_t most = std::min(n_tokens, kTokensPerBlock);
        const auto packed = allocate_floats(most * packed_stride(p.dim));
        const auto h = allocate_floats(most * p.used * packed_stride(p.hidden));
        for (int64_t first = 0; first < n_tokens; first += most) {
          const int64_t n = std::min(most, n_tokens - first);
          const auto slots =
              sort_slots(ids + first * p.used, weights + first * p.used, n, p);
          run_block(
              {.x = packed.get(),
               .h = h.get(),
               .out = out + first * p.dim,
               .gate = gate,
               .up = up,
               .down = down,
               .groups = slots.groups.data(),
               .tokens = slots.tokens.data(),
               .weights = slots.weights.data(),
               .n_groups = static_cast<int64_t>(slots.groups.size()),
               .n_tokens = n,
               .p = p},
              x + first * p.dim,
              packed.get());
        }
        store_nan(ids, out, n_tokens, p);
      });
}

void bind_experts(nb::module_& m) {
  m.def(
      "experts",
      &experts,
      "x"_a,
      "ids"_a,
      "weights"_a,
      "gate"_a,
      "up"_a,
      "down"_a,
      nb::kw_only(),
      "formats"_a,
      "clamp"_a,
      "stream"_a = nb::none());
}

}  // namespace mlx_dsv4
