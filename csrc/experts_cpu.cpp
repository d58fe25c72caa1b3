#include "experts_cpu.h"

#include "panel_cpu.h"

namespace mlx_dsv4::DSV4_ISA {
namespace {

void pack(const float* x, float* packed, int k, int64_t begin, int64_t end) {
  pack_rows(x + begin * k, end - begin, k, packed + begin * packed_stride(k));
}

// Rows [first, first + kPanelRows) of one expert's matrix, fewer at its end.
PackedRows expert_rows(
    const uint8_t* matrices, int expert, int n_rows, int first, int format, int k) {
  const int64_t n_bytes = row_bytes(format, k);
  const int n = n_rows - first < kPanelRows ? n_rows - first : kPanelRows;
  return {matrices + (int64_t{expert} * n_rows + first) * n_bytes, n_bytes, format, k, n};
}

// silu(min(gate, clamp)) * clip(up, ±clamp). The bound comes first: a NaN on the right stays.
F32x16 clamped_swiglu(F32x16 gate, F32x16 up, float clamp) {
  const F32x16 g = simd::min(simd::set1(clamp), gate);
  const F32x16 u = simd::max(simd::set1(-clamp), simd::min(simd::set1(clamp), up));
  return simd::mul(simd::mul(g, simd::sigmoid(g)), u);
}

// One panel of h for the slots of one group.
void hidden_panel(
    const ExpertsCall& c, ExpertGroup group, int first_row, PanelScratch& scratch) {
  const auto& p = c.p;
  const auto gate =
      expert_rows(c.gate, group.expert, p.hidden, first_row, p.gate_format, p.dim);
  const auto up =
      expert_rows(c.up, group.expert, p.hidden, first_row, p.up_format, p.dim);
  for (int first = 0; first < group.n; first += kPanelTokens) {
    const int n = group.n - first < kPanelTokens ? group.n - first : kPanelTokens;
    const int slot = group.first + first;
    for (int i = 0; i < n; ++i) {
      scratch.x[i] = c.x + c.tokens[slot + i] * packed_stride(p.dim);
    }
    multiply_panel(gate, scratch.x, n, scratch, scratch.products[0]);
    multiply_panel(up, scratch.x, n, scratch, scratch.products[1]);
    for (int i = 0; i < n; ++i) {
      float* h = c.h + (slot + i) * packed_stride(p.hidden) + first_row;
      float *g = scratch.products[0][i], *u = scratch.products[1][i];
      for (int r = gate.n; r % 16 != 0; ++r) {
        g[r] = u[r] = 0;  // h is packed: zeros up to whole lanes
      }
      for (int r = 0; r < gate.n; r += 16) {
        simd::store(h + r, clamped_swiglu(simd::load(g + r), simd::load(u + r), p.clamp));
      }
    }
  }
}

void hidden(const ExpertsCall& c, PanelScratch& scratch, int64_t begin, int64_t end) {
  const int panels = (c.p.hidden + kPanelRows - 1) / kPanelRows;
  for (int64_t unit = begin; unit < end; ++unit) {
    const int first_row = static_cast<int>(unit % panels) * kPanelRows;
    hidden_panel(c, c.groups[unit / panels], first_row, scratch);
  }
}

// out[token] += weight * product for slots [slot, slot + n), in their order.
void add_weighted(
    const ExpertsCall& c,
    int slot,
    int n,
    int first_row,
    int n_rows,
    float (*products)[kPanelRows]) {
  for (int i = 0; i < n; ++i) {
    float* out = c.out + int64_t{c.tokens[slot + i]} * c.p.dim + first_row;
    const float weight = c.weights[slot + i];
    int r = 0;
    for (; r + 16 <= n_rows; r += 16) {
      const F32x16 y = simd::load(products[i] + r);
      simd::store(out + r, simd::fma(simd::set1(weight), y, simd::load(out + r)));
    }
    for (; r < n_rows; ++r) {
      out[r] = __builtin_fmaf(weight, products[i][r], out[r]);
    }
  }
}

void combine_panel(const ExpertsCall& c, int first_row, PanelScratch& scratch) {
  const auto& p = c.p;
  const int n_rows = p.dim - first_row < kPanelRows ? p.dim - first_row : kPanelRows;
  for (int64_t t = 0; t < c.n_tokens; ++t) {
    std::memset(c.out + t * p.dim + first_row, 0, sizeof(float) * n_rows);
  }
  for (int64_t g = 0; g < c.n_groups; ++g) {
    const ExpertGroup group = c.groups[g];
    const auto down =
        expert_rows(c.down, group.expert, p.dim, first_row, p.down_format, p.hidden);
    for (int first = 0; first < group.n; first += kPanelTokens) {
      const int n = group.n - first < kPanelTokens ? group.n - first : kPanelTokens;
      const int slot = group.first + first;
      for (int i = 0; i < n; ++i) {
        scratch.x[i] = c.h + (slot + i) * packed_stride(p.hidden);
      }
      multiply_panel(down, scratch.x, n, scratch, scratch.products[0]);
      add_weighted(c, slot, n, first_row, n_rows, scratch.products[0]);
    }
  }
}

void combine(const ExpertsCall& c, PanelScratch& scratch, int64_t begin, int64_t end) {
  for (int64_t panel = begin; panel < end; ++panel) {
    combine_panel(c, static_cast<int>(panel) * kPanelRows, scratch);
  }
}

}  // namespace

const ExpertsKernels& kernels(const ExpertsKernels*) {
  static constexpr ExpertsKernels table{pack, hidden, combine};
  return table;
}

}  // namespace mlx_dsv4::DSV4_ISA
