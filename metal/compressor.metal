// Compressor: tokens are folded into the open span, full spans become compressed rows.
//
//   s[t]   = gate[t] + ape[t mod ratio]
//   row[n] = round(rope(rmsnorm(sum_t softmax_t(s)[t] value[t]) * norm))   per feature, over
//            the tokens of span n; with overlap (c = 2) over those of span n - 1 through
//            columns [0, D), then its own through columns [D, 2 D)
//
// Shapes    value, gate [T, c D] f32   ape [ratio, c D] f32   norm [D] f32   state_value,
//           state_score [c ratio, c D] f32   rotation [closed spans, R/2, 2] f32
//           rows [*, D] T_, which is bfloat or float; D a multiple of 16 up to 2048
// Threads   compressor_append: a threadgroup of up to 512 threads per closed span (one if none
//           closes); thread i pools features i, i + 512, ..., the first simdgroup finishes the
//           row; if at most one span closes, all of it then advances the state
//           compressor_advance, if more close: a thread per phase and column of the state
// Traffic   8 c D bytes per token, half of them again from cache; 2 D per row; the state once
// Numerics  f32; maximum, weights and sums in ascending token order, so that it does not matter
//           which tokens came in which call
// Page      docs/kernels/compressor.md

#include "compressor.h"
#include "row_math.h"

using namespace metal;

template <int kSlices>
struct PooledRow {
  alignas(16) float values[kSlices * kRowSliceDims];
};
static_assert(
    sizeof(PooledRow<kRowMaxDim / kRowSliceDims>) <= 32768, "threadgroup memory");

template <int kSlices>
inline LaneRow<kSlices> load_pooled(
    threadgroup const PooledRow<kSlices>& pooled, int dim, uint lane) {
  const threadgroup float4* parts = (const threadgroup float4*)pooled.values;
  LaneRow<kSlices> row;
#pragma unroll
  for (int j = 0; j < kSlices; ++j) {
    const int at = first_dim(j, lane);
    row.parts[j] = at < dim ? parts[at / 4] : float4(0.0f);
  }
  return row;
}

// Tokens of the call and of the state.
struct Tokens {
  const device float* value;
  const device float* gate;
  const device float* ape;
  device float* state_value;
  device float* state_score;
};

// All columns of one token. A score of the state has its ape: there, `ape` is null.
struct Token {
  const device float* value;
  const device float* score;
  const device float* ape;

  float score_at(int column) const {
    return ape == nullptr ? score[column] : score[column] + ape[column];
  }
};

inline int width_of(constant CompressorParams& p) { return p.dim * (1 + p.overlap); }

inline int span_begin(int pos, int ratio) { return pos / ratio * ratio; }

// Where the state holds a token of the open span.
inline int open_slot(int phase, constant CompressorParams& p) {
  return p.overlap * p.ratio + phase;
}

// The token of a span at a phase; one of this call, of the span that was open before it or,
// with overlap, of the span before that.
inline Token token_of(
    thread const Tokens& tokens, constant CompressorParams& p, int span, int phase) {
  const int width = width_of(p), pos = span * p.ratio + phase;
  Token token;
  if (pos >= p.start) {
    const size_t at = size_t(pos - p.start) * width;
    token.value = tokens.value + at;
    token.score = tokens.gate + at;
    token.ape = tokens.ape + phase * width;
    return token;
  }
  const bool was_open = pos >= span_begin(p.start, p.ratio);
  const int slot = was_open ? open_slot(phase, p) : phase;
  token.value = tokens.state_value + slot * width;
  token.score = tokens.state_score + slot * width;
  token.ape = nullptr;
  return token;
}

// Tokens that a span pools for a feature, oldest first, and their column for it.
struct PoolItem {
  Token token;
  int column;
};

inline PoolItem pool_item(
    thread const Tokens& tokens,
    constant CompressorParams& p,
    int span,
    int item,
    int feature) {
  const bool previous = item < p.overlap * p.ratio;
  const int phase = previous ? item : item - p.overlap * p.ratio;
  PoolItem found;
  found.token = token_of(tokens, p, previous ? span - 1 : span, phase);
  found.column = previous ? feature : p.overlap * p.dim + feature;
  return found;
}

// A score of -inf weighs exactly 0.
inline float pool(
    thread const Tokens& tokens, constant CompressorParams& p, int span, int feature) {
  const int n_items = p.ratio * (1 + p.overlap);
  float peak = -INFINITY;
  for (int i = 0; i < n_items; ++i) {
    const PoolItem item = pool_item(tokens, p, span, i, feature);
    const float score = item.token.score_at(item.column);
    peak = score > peak ? score : peak;
  }
  float weights = 0.0f, sum = 0.0f;
  for (int i = 0; i < n_items; ++i) {
    const PoolItem item = pool_item(tokens, p, span, i, feature);
    const float weight = precise::exp(item.token.score_at(item.column) - peak);
    weights += weight;
    sum = fma(weight, item.token.value[item.column], sum);
  }
  return sum / weights;
}

inline void put(
    thread const Tokens& tokens,
    constant CompressorParams& p,
    int slot,
    int column,
    Token token) {
  const int at = slot * width_of(p) + column;
  tokens.state_value[at] = token.value[column];
  tokens.state_score[at] = token.score_at(column);
}

// What the state must hold after the last token, for one column of the slots of one phase; if
// no span closes, of a phase that one of the call's tokens has.
inline void advance(
    thread const Tokens& tokens, constant CompressorParams& p, int phase, int column) {
  const int end = p.start + p.n_tokens;
  const int open = end / p.ratio;
  const int pos = open * p.ratio + phase;
  const bool closes = open > p.start / p.ratio;
  // First, since the span before may still lie where the open one will.
  if (closes && p.overlap != 0) {
    put(tokens, p, phase, column, token_of(tokens, p, open - 1, phase));
  }
  const int slot = open_slot(phase, p);
  if (pos < end) {
    put(tokens, p, slot, column, token_of(tokens, p, open, phase));
  } else {
    const int at = slot * width_of(p) + column;
    tokens.state_value[at] = 0.0f;
    tokens.state_score[at] = -INFINITY;
  }
}

// Advances the slots that change: all if a span closes, else those of the call's tokens.
inline void advance_all(
    thread const Tokens& tokens,
    constant CompressorParams& p,
    bool closes,
    int thread_index,
    int n_threads) {
  const int width = width_of(p);
  const int first = closes ? 0 : p.start % p.ratio;
  const int n_phases = closes ? p.ratio : p.n_tokens;
  for (int i = thread_index; i < n_phases * width; i += n_threads) {
    advance(tokens, p, first + i / width, i % width);
  }
}

template <typename T, int kSlices>
[[kernel, max_total_threads_per_threadgroup(kCompressorThreads)]] void compressor_append(
    const device float* value [[buffer(kCompressorValue)]],
    const device float* gate [[buffer(kCompressorGate)]],
    const device float* ape [[buffer(kCompressorApe)]],
    const device float* norm [[buffer(kCompressorNorm)]],
    const device float* rotation [[buffer(kCompressorRotation)]],
    device float* state_value [[buffer(kCompressorStateValue)]],
    device float* state_score [[buffer(kCompressorStateScore)]],
    device T* rows [[buffer(kCompressorRows)]],
    constant CompressorParams& p [[buffer(kCompressorParams)]],
    uint group [[threadgroup_position_in_grid]],
    uint thread_index [[thread_index_in_threadgroup]],
    uint n_threads [[threads_per_threadgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  threadgroup PooledRow<kSlices> pooled;
  const Tokens tokens{value, gate, ape, state_value, state_score};
  const int n_closed = closed_spans(p.start, p.n_tokens, p.ratio);
  const int span = p.start / p.ratio + int(group);
  if (n_closed > 0) {
    for (int i = int(thread_index); i < p.dim; i += int(n_threads)) {
      pooled.values[i] = float(T(pool(tokens, p, span, i)));
    }
  }
  threadgroup_barrier(mem_flags::mem_device | mem_flags::mem_threadgroup);

  if (n_closed <= 1) {
    advance_all(tokens, p, n_closed > 0, int(thread_index), int(n_threads));
  }
  if (n_closed > 0 && simdgroup == 0) {
    LaneRow<kSlices> row = load_pooled(pooled, p.dim, lane);
    rms_norm(row, p.dim, p.eps);
    weigh(row, norm, p.dim, lane);
    rotate_tail(row, p.dim, rotation + size_t(group) * 2 * p.pairs, p.pairs, lane);
    round_trip(row, p.dim, p.pairs, p.round_trip, lane);
    store_row(rows + (size_t(p.first_row) + span) * p.dim, row, p.dim, lane);
  }
}

[[kernel]] void compressor_advance(
    const device float* value [[buffer(kCompressorValue)]],
    const device float* gate [[buffer(kCompressorGate)]],
    const device float* ape [[buffer(kCompressorApe)]],
    device float* state_value [[buffer(kCompressorStateValue)]],
    device float* state_score [[buffer(kCompressorStateScore)]],
    constant CompressorParams& p [[buffer(kCompressorParams)]],
    uint thread_index [[thread_position_in_grid]],
    uint n_threads [[threads_per_grid]]) {
  const Tokens tokens{value, gate, ape, state_value, state_score};
  advance_all(tokens, p, true, int(thread_index), int(n_threads));
}

#ifdef DSV4_EVERY_KERNEL
// clang-format off
instantiate_kernel(compressor_append, bfloat_4, bfloat, 4)
instantiate_kernel(compressor_append, bfloat_2, bfloat, 2)
instantiate_kernel(compressor_append, bfloat_1, bfloat, 1)
instantiate_kernel(compressor_append, float_4, float, 4)
instantiate_kernel(compressor_append, float_2, float, 2)
instantiate_kernel(compressor_append, float_1, float, 1)
// clang-format on
#endif
