#include "attention_cpu.h"

#include <cmath>

#include "outer_product.h"
#include "row_math.h"

namespace mlx_dsv4::DSV4_ISA {
namespace {

template <typename Row>
void queries(
    const float* q,
    const float* rotation,
    void* out,
    AttentionQueriesParams p,
    float* scratch,
    int64_t begin,
    int64_t end) {
  for (int64_t t = begin; t < end; ++t) {
    for (int h = 0; h < p.n_heads; ++h) {
      const int64_t at = (t * p.n_heads + h) * p.dim;
      std::memcpy(scratch, q + at, sizeof(float) * p.dim);
      rms_norm(scratch, nullptr, p.dim, p.eps);
      rotate_tail(scratch, p.dim, rotation + t * 2 * p.n_pairs, p.n_pairs, false);
      store_row(static_cast<Row*>(out) + at, scratch, p.dim);
    }
  }
}

// One token's visible rows in the order they are summed: attention_kv[i], or rows[~i] for i < 0.
int list_rows(
    const AttentionParams& p, const int32_t* selected, int64_t token, int32_t* list) {
  const int pos = p.start + static_cast<int>(token);
  int n = 0;
  for (int at = pos < p.window ? 0 : pos - p.window + 1; at <= pos; ++at) {
    list[n++] = at < p.start ? at % p.window : ~(at - p.start);
  }
  if (p.n_selected > 0) {
    for (int j = 0; j < p.n_selected; ++j) {
      const int32_t row = selected[token * p.n_selected + j];
      if (row >= 0) {
        list[n++] = p.window + row;
      }
    }
  } else {
    const int visible = visible_rows(pos, p.ratio);
    for (int row = 0; row < visible; ++row) {
      list[n++] = p.window + row;
    }
  }
  return n;
}

// [heads, dim] -> [dim, lanes]; lanes without a head are zero.
template <typename Row>
void pack_queries(const Row* q, int n_heads, int dim, int64_t lanes, float* packed) {
  for (int first = 0; first < n_heads; first += kAttentionLanes) {
    for (int d = 0; d < dim; d += 16) {
      F32x16 tile[16];
      for (int i = 0; i < 16; ++i) {
        tile[i] = first + i < n_heads ? simd::load_row(q + int64_t{first + i} * dim + d)
                                      : simd::set1(0);
      }
      simd::transpose(tile);
      for (int i = 0; i < 16; ++i) {
        simd::store(packed + (d + i) * lanes + first, tile[i]);
      }
    }
  }
}

template <typename Row>
void load_rows(
    const AttentionInputs& inputs, const int32_t* list, int n, int dim, float* block) {
  for (int i = 0; i < n; ++i) {
    const bool in_chunk = list[i] < 0;
    const auto* from =
        static_cast<const Row*>(in_chunk ? inputs.rows : inputs.attention_kv);
    load_row(
        block + int64_t{i} * dim,
        from + int64_t{in_chunk ? ~list[i] : list[i]} * dim,
        dim);
  }
}

template <int kRows, int kVectors>
void row_logits(
    const float* block,
    const float* q,
    int dim,
    int64_t lanes,
    F32x16 scale,
    float* out) {
  F32x16 dots[kRows][kVectors];
  for (auto& row : dots) {
    for (auto& dot : row) {
      dot = simd::set1(0);
    }
  }
  add_outer_products(dots, block, dim, 1, q, lanes, dim);
  for (int i = 0; i < kRows; ++i) {
    for (int j = 0; j < kVectors; ++j) {
      simd::store(out + i * lanes + 16 * j, simd::mul(dots[i][j], scale));
    }
  }
}

template <int kVectors>
void block_logits(
    const float* block,
    int n,
    const float* q,
    int dim,
    int64_t lanes,
    F32x16 scale,
    float* out) {
  constexpr int kRows = kValues<kVectors>;
  int i = 0;
  for (; i + kRows <= n; i += kRows) {
    row_logits<kRows, kVectors>(
        block + int64_t{i} * dim, q, dim, lanes, scale, out + i * lanes);
  }
  for (; i < n; ++i) {
    row_logits<1, kVectors>(
        block + int64_t{i} * dim, q, dim, lanes, scale, out + i * lanes);
  }
}

// weights [n, lanes]: logits become exp(logit - max); returns their sum and the sink's part.
F32x16 soften(float* weights, int n, int64_t lanes, F32x16 sink) {
  F32x16 top = sink;
  for (int r = 0; r < n; ++r) {
    top = simd::max(simd::load(weights + r * lanes), top);
  }
  F32x16 sum = simd::set1(0);
  for (int r = 0; r < n; ++r) {
    const F32x16 weight = simd::exp(simd::sub(simd::load(weights + r * lanes), top));
    simd::store(weights + r * lanes, weight);
    sum = simd::add(sum, weight);
  }
  return simd::add(sum, simd::exp(simd::sub(sink, top)));
}

template <int kHeads, int kVectors>
void add_weighted(
    const float* weights,
    int64_t lanes,
    const float* block,
    int n,
    int dim,
    float* sums) {
  F32x16 local[kHeads][kVectors];
  for (int i = 0; i < kHeads; ++i) {
    for (int j = 0; j < kVectors; ++j) {
      local[i][j] = simd::load(sums + int64_t{i} * dim + 16 * j);
    }
  }
  add_outer_products(local, weights, 1, lanes, block, dim, n);
  for (int i = 0; i < kHeads; ++i) {
    for (int j = 0; j < kVectors; ++j) {
      simd::store(sums + int64_t{i} * dim + 16 * j, local[i][j]);
    }
  }
}

// Adds a block of rows, weighted, to 16 * kVectors dims of the sums of every head.
template <int kVectors>
void add_block(
    const float* weights,
    int n_heads,
    int64_t lanes,
    const float* block,
    int n,
    int dim,
    float* sums) {
  constexpr int kHeads = kValues<kVectors>;
  int h = 0;
  for (; h + kHeads <= n_heads; h += kHeads) {
    add_weighted<kHeads, kVectors>(
        weights + h, lanes, block, n, dim, sums + int64_t{h} * dim);
  }
  for (; h < n_heads; ++h) {
    add_weighted<1, kVectors>(weights + h, lanes, block, n, dim, sums + int64_t{h} * dim);
  }
}

template <typename Row>
void attend(
    const AttentionInputs& inputs,
    void* out,
    AttentionParams p,
    AttentionUnit unit,
    int64_t most_rows,
    float* scratch) {
  const int dim = p.dim, n_heads = unit.end_head - unit.first_head;
  const int64_t lanes = attention_lanes(n_heads);
  auto* list = reinterpret_cast<int32_t*>(scratch);
  float* packed = scratch + most_rows;
  float* weights = packed + lanes * dim;
  float* block = weights + most_rows * lanes;
  float* sums = block + int64_t{kAttentionBlockRows} * dim;
  float* denominators = sums + int64_t{n_heads} * dim;

  const int64_t first = (unit.token * p.n_heads + unit.first_head) * dim;
  pack_queries(static_cast<const Row*>(inputs.q) + first, n_heads, dim, lanes, packed);
  const int n = list_rows(p, inputs.selected, unit.token, list);
  const F32x16 scale = simd::set1(1.0f / std::sqrt(static_cast<float>(dim)));
  for (int r = 0; r < n; r += kAttentionBlockRows) {
    const int count = n - r < kAttentionBlockRows ? n - r : kAttentionBlockRows;
    load_rows<Row>(inputs, list + r, count, dim, block);
    int64_t h = 0;
    for (; h + kPanel <= lanes; h += kPanel) {
      block_logits<kPanelVectors>(
          block, count, packed + h, dim, lanes, scale, weights + r * lanes + h);
    }
    for (; h < lanes; h += 16) {
      block_logits<1>(
          block, count, packed + h, dim, lanes, scale, weights + r * lanes + h);
    }
  }

  for (int h = 0; h < lanes; h += 16) {
    float sinks[16] = {};
    const int count = n_heads - h < 16 ? n_heads - h : 16;
    std::memcpy(sinks, inputs.sinks + unit.first_head + h, sizeof(float) * count);
    simd::store(denominators + h, soften(weights + h, n, lanes, simd::load(sinks)));
  }

  std::memset(sums, 0, sizeof(float) * n_heads * dim);
  for (int r = 0; r < n; r += kAttentionBlockRows) {
    const int count = n - r < kAttentionBlockRows ? n - r : kAttentionBlockRows;
    load_rows<Row>(inputs, list + r, count, dim, block);
    const float* part = weights + r * lanes;
    int d = 0;
    for (; d + kPanel <= dim; d += kPanel) {
      add_block<kPanelVectors>(part, n_heads, lanes, block + d, count, dim, sums + d);
    }
    for (; d < dim; d += 16) {
      add_block<1>(part, n_heads, lanes, block + d, count, dim, sums + d);
    }
  }

  for (int h = 0; h < n_heads; ++h) {
    float* head = sums + int64_t{h} * dim;
    for (int d = 0; d < dim; d += 16) {
      simd::store(head + d, simd::div(simd::load(head + d), simd::set1(denominators[h])));
    }
    rotate_tail(head, dim, inputs.rotation + unit.token * 2 * p.n_pairs, p.n_pairs, true);
    store_row(static_cast<Row*>(out) + first + int64_t{h} * dim, head, dim);
  }
}

}  // namespace

const AttentionKernels& kernels(const AttentionKernels*) {
  static constexpr AttentionKernels table{
      queries<float>, queries<uint16_t>, attend<float>, attend<uint16_t>};
  return table;
}

}  // namespace mlx_dsv4::DSV4_ISA
