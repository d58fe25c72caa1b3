// Hyper-connections: collapse the residual streams before a sublayer, expand after it.
//
//   m = fn . h,  r = 1 / sqrt(mean(h^2) + norm_eps)            over all S * D values of h
//   pre = sigmoid(m[0:S] r c0 + b) + eps,  post = 2 sigmoid(m[S:2S] r c1 + b)
//   comb = Sinkhorn(softmax_d(m[2S:] r c2 + b) + eps)          [source s, destination d]
//   x = rmsnorm(sum_s pre[s] h[s]) * norm,  h'[d] = post[d] y + sum_s comb[s, d] h[s]
//
// Shapes    h [T, S, D]   fn [J, S D]   partials [T, segments, J + 1]   x, y [T, D]
//           post [T, S]   comb [T, S, S]   all f32   S <= 8   D a multiple of 16
// Threads   hyper_dots, once per segment and tile of tokens: a simdgroup owns 4 rows of
//           fn, its lane l dims 4l .. 4l+3 of each 128.  hyper_pre, hyper_head: one
//           threadgroup per token; 8 simdgroups collapse, a ninth does Sinkhorn.
//           hyper_post: a thread owns 4 dims of all streams
// Traffic   fn once per tile of 8 tokens; h twice (later from cache where it fits);
//           x twice; partials 4 (J + 1) bytes per segment, twice.  hyper_post: all once
// Numerics  f32, fused multiply-adds; lanes 16, 8, 4, 2, 1 apart are added, then segments
//           ascending: one order for every T
// Page      docs/kernels/hyper.md

#include "hyper.h"
#include "packed_values.h"
#include "sinkhorn.h"

using namespace metal;

// What the simdgroups of a token tell each other.
struct HyperScratch {
  float dots[kHyperMaxStreams * (2 + kHyperMaxStreams) + 1];
  float squares[kHyperCollapseSimdgroups];
};
static_assert(sizeof(HyperScratch) <= 32768, "threadgroup memory of every Apple GPU");

inline float4 load_four_or_zero(const device float* values, int i, int end) {
  return i < end ? load_four(values + i) : float4(0.0f);
}

// sum + a . b, in one order.
inline float add_products(float sum, float4 a, float4 b) {
  sum = fma(a.x, b.x, sum);
  sum = fma(a.y, b.y, sum);
  sum = fma(a.z, b.z, sum);
  return fma(a.w, b.w, sum);
}

// Sums each of N values (a power of two up to 32) over the lanes; lane l gets the sum of
// l % N. The pairs are those of N = 1; below N lanes apart each keeps half of the values.
template <int N>
inline float sum_lanes(thread float (&values)[N], uint lane) {
#pragma unroll
  for (int apart = kSimdWidth / 2; apart > 0; apart /= 2) {
    const bool upper = (int(lane) & apart) != 0;
    const int kept = apart < N ? apart : N;
#pragma unroll
    for (int i = 0; i < kept; ++i) {
      const float other = apart < N ? values[i + apart] : values[i];
      const float mine = upper ? other : values[i];
      const float sent = upper ? values[i] : other;
      values[i] = mine + simd_shuffle_xor(sent, ushort(apart));
    }
  }
  return values[0];
}

// One segment of the products of kTokens tokens with up to 4 rows of fn.
template <int kTokens>
inline float dots_of_block(
    const device float* streams,
    const device float* fn,
    int n,
    int begin,
    int n_tokens,
    int n_rows,
    uint lane) {
  float sums[kHyperBlockRows * kTokens] = {};
  for (int i = 0; i < kHyperSegment; i += 4 * kSimdWidth) {
    const int k = begin + i + 4 * int(lane);
    float4 x[kTokens];
#pragma unroll
    for (int t = 0; t < kTokens; ++t) {
      x[t] = load_four_or_zero(streams + size_t(t) * n, k, t < n_tokens ? n : 0);
    }
#pragma unroll
    for (int j = 0; j < kHyperBlockRows; ++j) {
      const float4 weight = load_four_or_zero(fn + size_t(j) * n, k, j < n_rows ? n : 0);
#pragma unroll
      for (int t = 0; t < kTokens; ++t) {
        sums[j * kTokens + t] = add_products(sums[j * kTokens + t], weight, x[t]);
      }
    }
  }
  return sum_lanes<kHyperBlockRows * kTokens>(sums, lane);
}

// One segment of the tokens' sums of squares.
template <int kTokens>
inline float squares_of_block(
    const device float* streams, int n, int begin, int n_tokens, uint lane) {
  float sums[kTokens] = {};
  for (int i = 0; i < kHyperSegment; i += 4 * kSimdWidth) {
    const int k = begin + i + 4 * int(lane);
#pragma unroll
    for (int t = 0; t < kTokens; ++t) {
      const float4 x =
          load_four_or_zero(streams + size_t(t) * n, k, t < n_tokens ? n : 0);
      sums[t] = add_products(sums[t], x, x);
    }
  }
  return sum_lanes<kTokens>(sums, lane);
}

template <int kTokens>
[[kernel]] void hyper_dots(
    const device float* streams [[buffer(kHyperDotsStreams)]],
    const device float* fn [[buffer(kHyperDotsFn)]],
    device float* partials [[buffer(kHyperDotsPartials)]],
    constant HyperDotsParams& p [[buffer(kHyperDotsParams)]],
    uint2 group [[threadgroup_position_in_grid]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint n_simdgroups [[simdgroups_per_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  const int segment = int(group.x), first_token = int(group.y) * kTokens;
  const int n_tokens = min(kTokens, p.n_tokens - first_token);
  const int begin = segment * kHyperSegment;
  const int squares = hyper_blocks(p.n_outputs) - 1;
  streams += size_t(first_token) * p.n;
  partials += (size_t(first_token) * hyper_segments(p.n) + segment) * (p.n_outputs + 1);
  for (int block = int(simdgroup); block <= squares; block += int(n_simdgroups)) {
    const int row = block * kHyperBlockRows;
    const int n_rows = min(kHyperBlockRows, p.n_outputs - row);
    const float sum =
        block == squares
            ? squares_of_block<kTokens>(streams, p.n, begin, n_tokens, lane)
            : dots_of_block<kTokens>(
                  streams, fn + size_t(row) * p.n, p.n, begin, n_tokens, n_rows, lane);
    const int t = int(lane) % kTokens, j = int(lane) / kTokens;
    if (t < n_tokens && j < (block == squares ? 1 : n_rows)) {
      const int column = block == squares ? p.n_outputs : row + j;
      partials[size_t(t) * hyper_segments(p.n) * (p.n_outputs + 1) + column] = sum;
    }
  }
}

// The products and the sum of squares of a token, segments ascending.
inline void add_segments(
    const device float* partials,
    int n_outputs,
    int n_segments,
    threadgroup HyperScratch& scratch,
    int thread_index) {
  const int n = n_outputs + 1;
  if (thread_index < n) {
    float sum = 0.0f;
    for (int i = 0; i < n_segments; ++i) {
      sum += partials[i * n + thread_index];
    }
    scratch.dots[thread_index] = sum;
  }
}

inline float inverse_rms(float squares, int n, float eps) {
  return 1.0f / precise::sqrt(squares / float(n) + eps);
}

inline float sigmoid(float x) { return 1.0f / (1.0f + precise::exp(-x)); }

// x = sum_s pre[s] * stream[s], not yet normed, and the squares of this simdgroup's part.
template <int S>
inline void collapse(
    const device float* streams,
    const device float* base,
    float factor,
    device float* x,
    threadgroup HyperScratch& scratch,
    constant HyperParams& p,
    int simdgroup,
    uint lane) {
  float pre[S];
  for (int s = 0; s < S; ++s) {
    pre[s] = sigmoid(scratch.dots[s] * factor + base[s]) + p.hyper_eps;
  }
  float squares[1] = {};
  const int next = 4 * kSimdWidth * kHyperCollapseSimdgroups;
  for (int i = 4 * (simdgroup * kSimdWidth + int(lane)); i < p.dim; i += next) {
    float4 sum = pre[0] * load_four(streams + i);
    for (int s = 1; s < S; ++s) {
      sum = fma(float4(pre[s]), load_four(streams + size_t(s) * p.dim + i), sum);
    }
    store_four(x + i, sum);
    squares[0] = add_products(squares[0], sum, sum);
  }
  const float sum = sum_lanes<1>(squares, lane);
  if (lane == 0) {
    scratch.squares[simdgroup] = sum;
  }
}

// x = rmsnorm(x) * norm; each thread finds what it stored.
inline void norm_collapsed(
    device float* x,
    const device float* norm,
    threadgroup HyperScratch& scratch,
    constant HyperParams& p,
    int simdgroup,
    uint lane) {
  float squares = scratch.squares[0];
  for (int i = 1; i < kHyperCollapseSimdgroups; ++i) {
    squares += scratch.squares[i];
  }
  const float factor = inverse_rms(squares, p.dim, p.norm_eps);
  const int next = 4 * kSimdWidth * kHyperCollapseSimdgroups;
  for (int i = 4 * (simdgroup * kSimdWidth + int(lane)); i < p.dim; i += next) {
    store_four(x + i, load_four(x + i) * factor * load_four(norm + i));
  }
}

// post and comb of a token, by one simdgroup.
template <int S>
inline void mix(
    const device float* base,
    const device float* scale,
    float r,
    device float* post,
    device float* comb,
    threadgroup HyperScratch& scratch,
    constant HyperParams& p,
    uint lane) {
  if (lane < S) {
    const int j = S + int(lane);
    post[lane] = 2.0f * sigmoid(scratch.dots[j] * (r * scale[1]) + base[j]);
  }
  const int d = int(lane) % 8;
  Comb<S> mixing;
  for (int i = 0; i < Comb<S>::kValues; ++i) {
    const int s = i * Comb<S>::kLaneRows + int(lane) / 8;
    const int j = 2 * S + s * S + d;
    const bool exists = s < S && d < S;
    mixing.values[i] = exists ? scratch.dots[j] * (r * scale[2]) + base[j] : 0.0f;
  }
  mixing.softmax_rows(p.hyper_eps, lane);
  mixing.sinkhorn(p.iterations, p.hyper_eps, lane);
  for (int i = 0; i < Comb<S>::kValues; ++i) {
    const int s = i * Comb<S>::kLaneRows + int(lane) / 8;
    if (s < S && d < S) {
      comb[s * S + d] = mixing.values[i];
    }
  }
}

template <int S>
[[kernel]] void hyper_pre(
    const device float* streams [[buffer(kHyperPreStreams)]],
    const device float* partials [[buffer(kHyperPrePartials)]],
    const device float* base [[buffer(kHyperPreBase)]],
    const device float* scale [[buffer(kHyperPreScale)]],
    const device float* norm [[buffer(kHyperPreNorm)]],
    device float* x [[buffer(kHyperPreX)]],
    device float* post [[buffer(kHyperPrePost)]],
    device float* comb [[buffer(kHyperPreComb)]],
    constant HyperParams& p [[buffer(kHyperPreParams)]],
    uint t [[threadgroup_position_in_grid]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  threadgroup HyperScratch scratch;
  const int n = S * p.dim, n_segments = hyper_segments(n);
  const int thread_index = int(simdgroup) * kSimdWidth + int(lane);
  partials += size_t(t) * n_segments * (p.n_outputs + 1);
  add_segments(partials, p.n_outputs, n_segments, scratch, thread_index);
  threadgroup_barrier(mem_flags::mem_threadgroup);

  const float r = inverse_rms(scratch.dots[p.n_outputs], n, p.norm_eps);
  const bool collapses = simdgroup < kHyperCollapseSimdgroups;
  streams += size_t(t) * n;
  x += size_t(t) * p.dim;
  if (collapses) {
    collapse<S>(streams, base, r * scale[0], x, scratch, p, int(simdgroup), lane);
  } else {
    post += size_t(t) * S;
    comb += size_t(t) * S * S;
    mix<S>(base, scale, r, post, comb, scratch, p, lane);
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (collapses) {
    norm_collapsed(x, norm, scratch, p, int(simdgroup), lane);
  }
}

template <int S>
[[kernel]] void hyper_head(
    const device float* streams [[buffer(kHyperHeadStreams)]],
    const device float* partials [[buffer(kHyperHeadPartials)]],
    const device float* base [[buffer(kHyperHeadBase)]],
    const device float* scale [[buffer(kHyperHeadScale)]],
    const device float* norm [[buffer(kHyperHeadNorm)]],
    device float* x [[buffer(kHyperHeadX)]],
    constant HyperParams& p [[buffer(kHyperHeadParams)]],
    uint t [[threadgroup_position_in_grid]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  threadgroup HyperScratch scratch;
  const int n = S * p.dim, n_segments = hyper_segments(n);
  const int thread_index = int(simdgroup) * kSimdWidth + int(lane);
  partials += size_t(t) * n_segments * (S + 1);
  add_segments(partials, S, n_segments, scratch, thread_index);
  threadgroup_barrier(mem_flags::mem_threadgroup);

  const float factor = inverse_rms(scratch.dots[S], n, p.norm_eps) * scale[0];
  streams += size_t(t) * n;
  x += size_t(t) * p.dim;
  collapse<S>(streams, base, factor, x, scratch, p, int(simdgroup), lane);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  norm_collapsed(x, norm, scratch, p, int(simdgroup), lane);
}

template <int S>
[[kernel]] void hyper_post(
    const device float* streams [[buffer(kHyperPostStreams)]],
    const device float* y [[buffer(kHyperPostY)]],
    const device float* post [[buffer(kHyperPostPost)]],
    const device float* comb [[buffer(kHyperPostComb)]],
    device float* out [[buffer(kHyperPostOut)]],
    constant HyperPostParams& p [[buffer(kHyperPostParams)]],
    uint2 group [[threadgroup_position_in_grid]],
    uint thread_index [[thread_index_in_threadgroup]]) {
  const size_t t = group.y;
  const int i = 4 * (int(group.x) * kHyperPostThreads + int(thread_index));
  if (i >= p.dim) {
    return;
  }
  streams += t * S * p.dim + i;
  out += t * S * p.dim + i;
  post += t * S;
  comb += t * S * S;
  float4 h[S];
  for (int s = 0; s < S; ++s) {
    h[s] = load_four(streams + size_t(s) * p.dim);
  }
  const float4 value = load_four(y + t * p.dim + i);
  for (int d = 0; d < S; ++d) {
    float4 sum = post[d] * value;
    for (int s = 0; s < S; ++s) {
      sum = fma(float4(comb[s * S + d]), h[s], sum);
    }
    store_four(out + size_t(d) * p.dim, sum);
  }
}

#ifdef DSV4_EVERY_KERNEL
// clang-format off
instantiate_kernel(hyper_dots, 1, 1)
instantiate_kernel(hyper_dots, 8, kHyperTileTokens)
instantiate_kernel(hyper_pre, 4, 4)
instantiate_kernel(hyper_head, 4, 4)
instantiate_kernel(hyper_post, 4, 4)
// clang-format on
#endif
