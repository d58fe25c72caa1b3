#include "attention_cpu.h"

#include <cmath>

#include "outer_product.h"
#include "row_math.h"

namespace mlx_dsv4::DSV4_ISA {
namespace {

// Dims of queries and rows that are multiplied while they stay in the first cache.
constexpr int kChunk = 128;
constexpr int kNotVisible = -1;

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
// kNotVisible instead of their number where `selected` names another row.
int list_rows(
    const AttentionParams& p, const int32_t* selected, int64_t token, int32_t* list) {
  const int pos = p.start + static_cast<int>(token);
  const int visible = visible_rows(pos, p.ratio);
  int n = 0;
  for (int at = pos < p.window ? 0 : pos - p.window + 1; at <= pos; ++at) {
    list[n++] = at < p.start ? at % p.window : ~(at - p.start);
  }
  if (p.n_selected > 0) {
    for (int j = 0; j < p.n_selected; ++j) {
      const int32_t row = selected[token * p.n_selected + j];
      if (row < -1 || row >= visible) {
        return kNotVisible;
      }
      if (row >= 0) {
        list[n++] = p.window + row;
      }
    }
  } else {
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

// One unit of work and its scratch memory.
struct Work {
  int n_heads, dim, n_rows;
  int64_t lanes, pitch;
  int32_t* list;        // [n_rows]
  float* packed;        // [dim, lanes]
  float* weights;       // [n_rows, lanes]
  float* block;         // [kAttentionBlockRows, pitch]
  float* sums;          // [n_heads, pitch]
  float* denominators;  // [lanes]
};

Work lay_out(const AttentionParams& p, int n_heads, int64_t most_rows, float* scratch) {
  Work work{};
  work.n_heads = n_heads;
  work.dim = p.dim;
  work.lanes = attention_lanes(n_heads);
  work.pitch = attention_pitch(p.dim);
  work.list = reinterpret_cast<int32_t*>(scratch);
  work.packed = scratch + attention_lanes(most_rows);
  work.weights = work.packed + work.lanes * p.dim;
  work.block = work.weights + most_rows * work.lanes;
  work.sums = work.block + kAttentionBlockRows * work.pitch;
  work.denominators = work.sums + n_heads * work.pitch;
  return work;
}

// Converts rows [first, first + kAttentionBlockRows) of the list; returns how many there are.
template <typename Row>
int load_block(const AttentionInputs& inputs, const Work& work, int first) {
  const int left = work.n_rows - first;
  const int n = left < kAttentionBlockRows ? left : kAttentionBlockRows;
  for (int i = 0; i < n; ++i) {
    const int32_t at = work.list[first + i];
    const auto* rows =
        static_cast<const Row*>(at < 0 ? inputs.rows : inputs.attention_kv);
    load_row(
        work.block + i * work.pitch,
        rows + int64_t{at < 0 ? ~at : at} * work.dim,
        work.dim);
  }
  return n;
}

template <typename Row>
void multiply_queries(const AttentionInputs& inputs, const Work& work) {
  std::memset(work.weights, 0, sizeof(float) * work.n_rows * work.lanes);
  for (int r = 0; r < work.n_rows; r += kAttentionBlockRows) {
    const int n = load_block<Row>(inputs, work, r);
    for (int d = 0; d < work.dim; d += kChunk) {
      add_products(
          {work.block + d, work.pitch, 1},
          n,
          {work.packed + d * work.lanes, work.lanes},
          static_cast<int>(work.lanes),
          work.dim - d < kChunk ? work.dim - d : kChunk,
          work.weights + r * work.lanes,
          work.lanes);
    }
  }
}

// Products of one vector of heads become exp(product * scale - max). Returns their sum, rows
// ascending, with the sink's part added last.
F32x16 soften(const Work& work, float* weights, F32x16 sink) {
  const F32x16 scale = simd::set1(1.0f / std::sqrt(static_cast<float>(work.dim)));
  F32x16 top = sink;
  for (int r = 0; r < work.n_rows; ++r) {
    top = simd::max(simd::mul(simd::load(weights + r * work.lanes), scale), top);
  }
  F32x16 sum = simd::set1(0);
  for (int r = 0; r < work.n_rows; ++r) {
    float* at = weights + r * work.lanes;
    const F32x16 weight = simd::exp(simd::sub(simd::mul(simd::load(at), scale), top));
    simd::store(at, weight);
    sum = simd::add(sum, weight);
  }
  return simd::add(sum, simd::exp(simd::sub(sink, top)));
}

void weigh(const float* sinks, const Work& work) {
  for (int h = 0; h < work.lanes; h += kAttentionLanes) {
    float padded[kAttentionLanes] = {};
    const int left = work.n_heads - h;
    const int n = left < kAttentionLanes ? left : kAttentionLanes;
    std::memcpy(padded, sinks + h, sizeof(float) * n);
    simd::store(
        work.denominators + h, soften(work, work.weights + h, simd::load(padded)));
  }
}

template <typename Row>
void sum_rows(const AttentionInputs& inputs, const Work& work) {
  std::memset(work.sums, 0, sizeof(float) * work.n_heads * work.pitch);
  for (int r = 0; r < work.n_rows; r += kAttentionBlockRows) {
    const int n = load_block<Row>(inputs, work, r);
    add_products(
        {work.weights + r * work.lanes, 1, work.lanes},
        work.n_heads,
        {work.block, work.pitch},
        work.dim,
        n,
        work.sums,
        work.pitch);
  }
}

// A kernel cannot raise an error, see docs/architecture.md.
template <typename Row>
void store_nan(Row* out, const Work& work) {
  for (int d = 0; d < work.dim; d += 16) {
    simd::store(work.sums + d, simd::set1(NAN));
  }
  for (int h = 0; h < work.n_heads; ++h) {
    store_row(out + int64_t{h} * work.dim, work.sums, work.dim);
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
  Work work = lay_out(p, unit.end_head - unit.first_head, most_rows, scratch);
  const int64_t first = (unit.token * p.n_heads + unit.first_head) * p.dim;
  work.n_rows = list_rows(p, inputs.selected, unit.token, work.list);
  if (work.n_rows == kNotVisible) {
    store_nan(static_cast<Row*>(out) + first, work);
    return;
  }
  pack_queries(
      static_cast<const Row*>(inputs.q) + first,
      work.n_heads,
      p.dim,
      work.lanes,
      work.packed);
  multiply_queries<Row>(inputs, work);
  weigh(inputs.sinks + unit.first_head, work);
  sum_rows<Row>(inputs, work);
  for (int h = 0; h < work.n_heads; ++h) {
    float* head = work.sums + h * work.pitch;
    const F32x16 denominator = simd::set1(work.denominators[h]);
    for (int d = 0; d < p.dim; d += 16) {
      simd::store(head + d, simd::div(simd::load(head + d), denominator));
    }
    const float* rotation = inputs.rotation + unit.token * 2 * p.n_pairs;
    rotate_tail(head, p.dim, rotation, p.n_pairs, true);
    store_row(static_cast<Row*>(out) + first + int64_t{h} * p.dim, head, p.dim);
  }
}

}  // namespace

const AttentionKernels& kernels(const AttentionKernels*) {
  static constexpr AttentionKernels table{
      queries<float>, queries<uint16_t>, attend<float>, attend<uint16_t>};
  return table;
}

}  // namespace mlx_dsv4::DSV4_ISA
