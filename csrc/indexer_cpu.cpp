#include "indexer_cpu.h"

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
    IndexerQueriesParams p,
    float* scratch,
    int64_t begin,
    int64_t end) {
  for (int64_t t = begin; t < end; ++t) {
    for (int h = 0; h < p.n_heads; ++h) {
      const int64_t at = (t * p.n_heads + h) * p.dim;
      std::memcpy(scratch, q + at, sizeof(float) * p.dim);
      rotate_tail(scratch, p.dim, rotation + t * 2 * p.n_pairs, p.n_pairs, false);
      round_trip(scratch, p.dim, p.n_pairs, p.round_trip);
      store_row(static_cast<Row*>(out) + at, scratch, p.dim);
    }
  }
}

// Panels of kPanel rows, [n / kPanel, dim, kPanel]; rows from `n` on are zero.
template <typename Row>
void pack_rows(const Row* rows, int64_t n, int dim, float* panels) {
  for (int64_t first = 0; first < n; first += 16) {
    float* panel = panels + first / kPanel * kPanel * dim + first % kPanel;
    for (int d = 0; d < dim; d += 16) {
      F32x16 tile[16];
      for (int i = 0; i < 16; ++i) {
        tile[i] =
            first + i < n ? simd::load_row(rows + (first + i) * dim + d) : simd::set1(0);
      }
      simd::transpose(tile);
      for (int i = 0; i < 16; ++i) {
        simd::store(panel + int64_t{kPanel} * (d + i), tile[i]);
      }
    }
  }
}

// Adds kHeads heads to the scores of one panel of rows.
template <int kHeads>
void add_heads(
    const float* q,
    const float* w,
    const float* panel,
    int dim,
    float scale,
    float* out) {
  F32x16 dots[kHeads][kPanelVectors];
  for (auto& head : dots) {
    for (auto& dot : head) {
      dot = simd::set1(0);
    }
  }
  add_outer_products(dots, q, dim, 1, panel, kPanel, dim);
  for (int j = 0; j < kPanelVectors; ++j) {
    F32x16 sum = simd::load(out + 16 * j);
    for (int h = 0; h < kHeads; ++h) {
      // NaN stays NaN: max gives its second argument where the comparison is false.
      const F32x16 positive = simd::max(simd::set1(0), dots[h][j]);
      sum = simd::fma(positive, simd::set1(w[h] * scale), sum);
    }
    simd::store(out + 16 * j, sum);
  }
}

void score_panel(
    const float* q,
    const float* w,
    const float* panel,
    const IndexerScoresParams& p,
    float* out) {
  constexpr int kHeads = kValues<kPanelVectors>;
  for (int j = 0; j < kPanel; ++j) {
    out[j] = 0;
  }
  int h = 0;
  for (; h + kHeads <= p.n_heads; h += kHeads) {
    add_heads<kHeads>(q + int64_t{h} * p.dim, w + h, panel, p.dim, p.scale, out);
  }
  for (; h < p.n_heads; ++h) {
    add_heads<1>(q + int64_t{h} * p.dim, w + h, panel, p.dim, p.scale, out);
  }
}

template <typename Row>
void scores(
    const void* q,
    const float* w,
    const void* rows,
    float* out,
    IndexerScoresParams p,
    IndexerBlock block,
    float* scratch) {
  float* panels = scratch;
  float* queries = scratch + int64_t{kIndexerBlockRows} * p.dim;
  const int last = visible_rows(p.start + static_cast<int>(block.end_token) - 1, p.ratio);
  const int64_t n_packed =
      (last < block.end_row ? last : block.end_row) - block.first_row;
  pack_rows(
      static_cast<const Row*>(rows) + block.first_row * p.dim, n_packed, p.dim, panels);
  for (int64_t t = block.first_token; t < block.end_token; ++t) {
    const int64_t width = int64_t{p.n_heads} * p.dim;
    const int64_t seen = visible_rows(p.start + static_cast<int>(t), p.ratio);
    const int64_t end = seen < block.end_row ? seen : block.end_row;
    if (end > block.first_row) {
      load_row(queries, static_cast<const Row*>(q) + t * width, static_cast<int>(width));
    }
    float* token_scores = out + t * p.n_rows;
    int64_t r = block.first_row;
    for (; r < end; r += kPanel) {
      float panel_scores[kPanel];
      score_panel(
          queries,
          w + t * p.n_heads,
          panels + (r - block.first_row) * p.dim,
          p,
          panel_scores);
      const int64_t count = end - r < kPanel ? end - r : kPanel;
      std::memcpy(token_scores + r, panel_scores, sizeof(float) * count);
    }
    for (r = end > block.first_row ? end : block.first_row; r < block.end_row; ++r) {
      token_scores[r] = -INFINITY;
    }
  }
}

// Orders as scores do, with NaN before every number and both zeros equal.
uint32_t order_key(float score) {
  const float plain = score + 0.0f;  // -0 becomes 0
  uint32_t bits;
  std::memcpy(&bits, &plain, 4);
  const uint32_t key = bits & 0x80000000 ? ~bits : bits | 0x80000000;
  return score != score ? 0 : key;
}

struct Threshold {
  uint32_t key;  // the k-th best key
  int64_t ties;  // how many of the selected have it
};

// Finds the k-th best key digit by digit; 1 <= k <= n.
Threshold find_threshold(const float* scores, int64_t n, int64_t k, int32_t* histogram) {
  constexpr int kDigits[][2] = {{21, 11}, {10, 11}, {0, 10}};  // shift, bits
  uint32_t prefix = 0, mask = 0;
  for (const auto [shift, bits] : kDigits) {
    const uint32_t digits = (uint32_t{1} << bits) - 1;
    std::memset(histogram, 0, sizeof(int32_t) << bits);
    for (int64_t r = 0; r < n; ++r) {
      const uint32_t key = order_key(scores[r]);
      if ((key & mask) == prefix) {
        ++histogram[(key >> shift) & digits];
      }
    }
    uint32_t digit = digits;
    for (; histogram[digit] < k; --digit) {
      k -= histogram[digit];
    }
    prefix |= digit << shift;
    mask |= digits << shift;
  }
  return {prefix, k};
}

void topk(
    const float* scores,
    int32_t* selected,
    IndexerTopkParams p,
    int32_t* scratch,
    int64_t begin,
    int64_t end) {
  for (int64_t t = begin; t < end; ++t) {
    const float* token_scores = scores + t * p.n_rows;
    int32_t* chosen = selected + t * p.k;
    const int n = visible_rows(p.start + static_cast<int>(t), p.ratio);
    int found = 0;
    if (n <= p.k) {
      for (; found < n; ++found) {
        chosen[found] = found;
      }
    } else {
      auto [least, ties] = find_threshold(token_scores, n, p.k, scratch);
      for (int r = 0; r < n && found < p.k; ++r) {
        const uint32_t key = order_key(token_scores[r]);
        if (key > least || (key == least && ties-- > 0)) {
          chosen[found++] = r;
        }
      }
    }
    for (; found < p.k; ++found) {
      chosen[found] = -1;
    }
  }
}

}  // namespace

const IndexerKernels& kernels(const IndexerKernels*) {
  static constexpr IndexerKernels table{
      queries<float>, queries<uint16_t>, scores<float>, scores<uint16_t>, topk};
  return table;
}

}  // namespace mlx_dsv4::DSV4_ISA
