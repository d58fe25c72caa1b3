#include "matmul_cpu.h"

#include "panel_cpu.h"

namespace mlx_dsv4::DSV4_ISA {
namespace {

template <typename Row>
void pack(const Row* x, float* packed, int k, int64_t begin, int64_t end) {
  pack_rows(x + begin * k, end - begin, k, packed + begin * packed_stride(k));
}

void multiply(
    const float* packed,
    const uint8_t* weight,
    float* out,
    PanelScratch& scratch,
    MatmulParams p,
    int64_t n_tokens,
    int64_t begin,
    int64_t end) {
  const int64_t group_rows = p.n_rows / p.groups, stride = packed_stride(p.k);
  const int64_t n_bytes = row_bytes(p.format, p.k);
  for (int64_t row = begin; row < end;) {
    const int64_t group = row / group_rows;
    int64_t last = row + kPanelRows < end ? row + kPanelRows : end;
    last = last < (group + 1) * group_rows ? last : (group + 1) * group_rows;
    const int n = static_cast<int>(last - row);
    const PackedRows rows{weight + row * n_bytes, n_bytes, p.format, p.k, n};
    for (int64_t first = 0; first < n_tokens; first += kPanelTokens) {
      const int64_t left = n_tokens - first;
      const int in_panel = static_cast<int>(left < kPanelTokens ? left : kPanelTokens);
      for (int t = 0; t < in_panel; ++t) {
        scratch.x[t] = packed + ((first + t) * p.groups + group) * stride;
      }
      multiply_panel(rows, scratch.x, in_panel, scratch, scratch.products[0]);
      for (int t = 0; t < in_panel; ++t) {
        std::memcpy(
            out + (first + t) * p.n_rows + row,
            scratch.products[0][t],
            sizeof(float) * n);
      }
    }
    row = last;
  }
}

void embed(
    const int32_t* tokens,
    const uint8_t* weight,
    float* out,
    EmbedParams p,
    int64_t begin,
    int64_t end) {
  const int whole = p.k / 16 * 16;
  with_blocks(p.format, [&](auto blocks) {
    using Blocks = decltype(blocks);
    for (int64_t t = begin; t < end; ++t) {
      float* values = out + t * p.k;
      if (tokens[t] < 0 || tokens[t] >= p.n_rows) {
        for (int i = 0; i < p.k; ++i) {
          values[i] = __builtin_nanf("");
        }
        continue;
      }
      const uint8_t* row = weight + tokens[t] * row_bytes(p.format, p.k);
      decode_values<Blocks>(row, 0, whole, values);
      if (whole < p.k) {
        float tail[16];
        decode_values<Blocks>(row + row_bytes(p.format, whole), 0, p.k - whole, tail);
        std::memcpy(values + whole, tail, sizeof(float) * (p.k - whole));
      }
    }
  });
}

}  // namespace

const MatmulKernels& kernels(const MatmulKernels*) {
  static constexpr MatmulKernels table{pack<float>, pack<uint16_t>, multiply, embed};
  return table;
}

}  // namespace mlx_dsv4::DSV4_ISA
