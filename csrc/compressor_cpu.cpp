#include "compressor_cpu.h"

#include <cmath>

#include "row_math.h"

namespace mlx_dsv4::DSV4_ISA {
namespace {

using Arrays = CompressorArrays;
using Params = CompressorParams;

// One token's part in a span. A token of the state has its score there; a token of this call
// has gate and ape to add.
struct Item {
  const float* value;
  const float* score;
  const float* ape;
};

inline F32x16 score_of(const Item& item, int feature) {
  const F32x16 score = simd::load(item.score + feature);
  return item.ape ? simd::add(score, simd::load(item.ape + feature)) : score;
}

// Item k of a span's pool, in ascending token order: with overlap the previous span's tokens
// through columns [0, D), then the span's own through columns [D, 2 D).
inline Item item_of(const Arrays& a, const Params& p, int span, int k) {
  const int width = p.dim * (1 + p.overlap);
  const bool previous = p.overlap && k < p.ratio;
  const int phase = p.overlap && !previous ? k - p.ratio : k;
  const int column = p.overlap && !previous ? p.dim : 0;
  const int pos = (previous ? span - 1 : span) * p.ratio + phase;
  if (pos >= p.start) {
    const int64_t at = int64_t{pos - p.start} * width + column;
    return {a.value + at, a.gate + at, a.ape + phase * width + column};
  }
  // The state holds the span that was open at `start` and, with overlap, the one before it.
  const bool was_open = pos >= p.start / p.ratio * p.ratio;
  const int slot = p.overlap && was_open ? p.ratio + phase : phase;
  const int64_t at = int64_t{slot} * width + column;
  return {a.state_value + at, a.state_score + at, nullptr};
}

// Features [feature, feature + 16 * kVectors) of a span. A score of -inf weighs exactly 0.
template <int kVectors, typename Row>
void pool_features(const Arrays& a, const Params& p, int span, int feature, Row* row) {
  const int n_items = p.ratio * (1 + p.overlap);
  F32x16 peak[kVectors], weights[kVectors], sum[kVectors];
  for (int v = 0; v < kVectors; ++v) {
    peak[v] = simd::set1(-INFINITY);
    weights[v] = sum[v] = simd::set1(0);
  }
  for (int k = 0; k < n_items; ++k) {
    const Item item = item_of(a, p, span, k);
    for (int v = 0; v < kVectors; ++v) {
      peak[v] = simd::max(peak[v], score_of(item, feature + 16 * v));
    }
  }
  for (int k = 0; k < n_items; ++k) {
    const Item item = item_of(a, p, span, k);
    for (int v = 0; v < kVectors; ++v) {
      const int at = feature + 16 * v;
      const F32x16 weight = simd::exp(simd::sub(score_of(item, at), peak[v]));
      weights[v] = simd::add(weights[v], weight);
      sum[v] = simd::fma(weight, simd::load(item.value + at), sum[v]);
    }
  }
  for (int v = 0; v < kVectors; ++v) {
    simd::store_row(row + feature + 16 * v, simd::div(sum[v], weights[v]));
  }
}

template <typename Row>
Row* row_of(const Arrays& a, const Params& p, int span) {
  return static_cast<Row*>(a.rows) + (int64_t{p.first_row} + span) * p.dim;
}

template <typename Row>
void pool(const Arrays& a, const Params& p, int64_t begin, int64_t end) {
  const int blocks = pool_blocks(p.dim);
  for (int64_t unit = begin; unit < end; ++unit) {
    const int span = p.start / p.ratio + static_cast<int>(unit / blocks);
    const int first = static_cast<int>(unit % blocks) * kPoolFeatures;
    Row* row = row_of<Row>(a, p, span);
    if (first + kPoolFeatures <= p.dim) {
      pool_features<kPoolFeatures / 16>(a, p, span, first, row);
    } else {
      for (int feature = first; feature < p.dim; feature += 16) {
        pool_features<1>(a, p, span, feature, row);
      }
    }
  }
}

template <typename Row>
void finish(
    const Arrays& a, const Params& p, float* scratch, int64_t begin, int64_t end) {
  for (int64_t i = begin; i < end; ++i) {
    Row* row = row_of<Row>(a, p, p.start / p.ratio + static_cast<int>(i));
    load_row(scratch, row, p.dim);
    rms_norm(scratch, a.norm, p.dim, p.eps);
    rotate_tail(scratch, p.dim, a.rotation + i * 2 * p.pairs, p.pairs, false);
    round_trip(scratch, p.dim, p.pairs, p.round_trip);
    store_row(row, scratch, p.dim);
  }
}

// Puts the tokens of positions [begin, end), one span's at most, into slots from `slot` on.
void fold(const Arrays& a, const Params& p, int begin, int end, int slot) {
  const int width = p.dim * (1 + p.overlap);
  for (int pos = begin; pos < end; ++pos, ++slot) {
    const float* gate = a.gate + int64_t{pos - p.start} * width;
    const float* ape = a.ape + pos % p.ratio * width;
    float* score = a.state_score + int64_t{slot} * width;
    for (int i = 0; i < width; i += 16) {
      simd::store(score + i, simd::add(simd::load(gate + i), simd::load(ape + i)));
    }
    std::memcpy(
        a.state_value + int64_t{slot} * width,
        a.value + int64_t{pos - p.start} * width,
        sizeof(float) * width);
  }
}

void advance(const Arrays& a, const Params& p) {
  const int end = p.start + p.n_tokens;
  const int was_open = p.start / p.ratio * p.ratio;  // first pos of the span open before
  const int open = end / p.ratio * p.ratio;          // and of the span open afterwards
  const int64_t width = p.dim * (1 + p.overlap);
  const int open_slot = p.overlap ? p.ratio : 0;
  if (open == was_open) {
    fold(a, p, p.start, end, open_slot + p.start - was_open);
    return;
  }
  float* open_value = a.state_value + open_slot * width;
  float* open_score = a.state_score + open_slot * width;
  if (p.overlap) {
    const int previous = open - p.ratio;
    const int begin = previous > p.start ? previous : p.start;
    if (previous == was_open) {
      const size_t bytes = sizeof(float) * (p.start - was_open) * width;
      std::memcpy(a.state_value, open_value, bytes);
      std::memcpy(a.state_score, open_score, bytes);
    }
    fold(a, p, begin, open, begin - previous);
  }
  for (int64_t i = 0; i < p.ratio * width; ++i) {
    open_value[i] = 0;
    open_score[i] = -INFINITY;
  }
  fold(a, p, open, end, open_slot);
}

}  // namespace

const CompressorKernels& kernels(const CompressorKernels*) {
  static constexpr CompressorKernels table{
      pool<float>, pool<uint16_t>, finish<float>, finish<uint16_t>, advance};
  return table;
}

}  // namespace mlx_dsv4::DSV4_ISA
