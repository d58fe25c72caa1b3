#include "hyper_cpu.h"

#include <cmath>

#include "row_math.h"

namespace mlx_dsv4::DSV4_ISA {
namespace {

constexpr int kTileTokens = 4;
constexpr int kTileRows = 4;
constexpr int kMaxComb = kHyperMaxStreams * kHyperMaxStreams;

// m[t, j] = sum_i fn[j, i] * x[t, i]. Every sum has the same order whatever the tile's size.
template <int kTokens, int kRows>
void dots(const float* x, const float* fn, float* m, int64_t n, int n_outputs) {
  F32x16 sums[kTokens][kRows];
  for (auto& row : sums) {
    for (auto& sum : row) {
      sum = simd::set1(0);
    }
  }
  for (int64_t i = 0; i < n; i += 16) {
    F32x16 values[kTokens];
    for (int t = 0; t < kTokens; ++t) {
      values[t] = simd::load(x + t * n + i);
    }
    for (int j = 0; j < kRows; ++j) {
      const F32x16 weight = simd::load(fn + j * n + i);
      for (int t = 0; t < kTokens; ++t) {
        sums[t][j] = simd::fma(weight, values[t], sums[t][j]);
      }
    }
  }
  for (int t = 0; t < kTokens; ++t) {
    for (int j = 0; j < kRows; ++j) {
      m[t * n_outputs + j] = simd::reduce_add(sums[t][j]);
    }
  }
}

void product(
    const float* streams,
    const float* fn,
    float* m,
    int64_t n_tokens,
    HyperParams p,
    int64_t begin,
    int64_t end) {
  const int64_t n = int64_t{p.n_streams} * p.dim;
  const int64_t tiles_per_token = (p.n_outputs + kTileRows - 1) / kTileRows;
  for (int64_t tile = begin; tile < end; ++tile) {
    const int64_t t = tile / tiles_per_token * kTileTokens;
    const int j = static_cast<int>(tile % tiles_per_token) * kTileRows;
    const int64_t tokens = n_tokens - t < kTileTokens ? n_tokens - t : kTileTokens;
    const int rows = p.n_outputs - j < kTileRows ? p.n_outputs - j : kTileRows;
    const float* x = streams + t * n;
    const float* weights = fn + j * n;
    float* out = m + t * p.n_outputs + j;
    if (tokens == kTileTokens && rows == kTileRows) {
      dots<kTileTokens, kTileRows>(x, weights, out, n, p.n_outputs);
      continue;
    }
    for (int64_t token = 0; token < tokens; ++token) {
      if (rows == kTileRows) {
        dots<1, kTileRows>(
            x + token * n, weights, out + token * p.n_outputs, n, p.n_outputs);
        continue;
      }
      for (int row = 0; row < rows; ++row) {
        float* sum = out + token * p.n_outputs + row;
        dots<1, 1>(x + token * n, weights + row * n, sum, n, p.n_outputs);
      }
    }
  }
}

// 1 / sqrt(mean(row^2) + eps) over all streams of a token.
float inverse_rms(const float* row, int n, float eps) {
  F32x16 squares = simd::set1(0);
  for (int i = 0; i < n; i += 16) {
    const F32x16 x = simd::load(row + i);
    squares = simd::fma(x, x, squares);
  }
  return 1.0f / std::sqrt(simd::reduce_add(squares) / static_cast<float>(n) + eps);
}

// x = rmsnorm(sum_s weights[s] * stream[s]) * norm
void collapse(
    const float* streams,
    const float* weights,
    const float* norm,
    float* x,
    HyperParams p) {
  for (int i = 0; i < p.dim; i += 16) {
    F32x16 sum = simd::mul(simd::set1(weights[0]), simd::load(streams + i));
    for (int s = 1; s < p.n_streams; ++s) {
      const F32x16 value = simd::load(streams + int64_t{s} * p.dim + i);
      sum = simd::fma(simd::set1(weights[s]), value, sum);
    }
    simd::store(x + i, sum);
  }
  rms_norm(x, norm, p.dim, p.norm_eps);
}

// to = m * factor + base
void logits(float* to, const float* m, const float* base, float factor, int n) {
  for (int j = 0; j < n; ++j) {
    to[j] = m[j] * factor + base[j];
  }
}

// Softmax over the destinations of each source, + eps. `comb` has room for whole vectors.
void softmax_rows(float* comb, int n_streams, float eps) {
  for (int s = 0; s < n_streams; ++s) {
    float* row = comb + s * n_streams;
    float top = row[0];
    for (int d = 1; d < n_streams; ++d) {
      top = row[d] > top ? row[d] : top;
    }
    for (int d = 0; d < n_streams; ++d) {
      row[d] -= top;
    }
  }
  for (int i = 0; i < n_streams * n_streams; i += 16) {
    simd::store(comb + i, simd::exp(simd::load(comb + i)));
  }
  for (int s = 0; s < n_streams; ++s) {
    float* row = comb + s * n_streams;
    float sum = row[0];
    for (int d = 1; d < n_streams; ++d) {
      sum += row[d];
    }
    for (int d = 0; d < n_streams; ++d) {
      row[d] = row[d] / sum + eps;
    }
  }
}

// Divides each of n lines of n values, `next` apart, by its sum + eps.
void divide_by_sums(float* comb, int n, int line, int next, float eps) {
  for (int i = 0; i < n; ++i) {
    float* first = comb + i * line;
    float sum = first[0];
    for (int j = 1; j < n; ++j) {
      sum += first[j * next];
    }
    for (int j = 0; j < n; ++j) {
      first[j * next] /= sum + eps;
    }
  }
}

void sinkhorn(float* comb, int n_streams, float eps, int iterations) {
  divide_by_sums(comb, n_streams, 1, n_streams, eps);
  for (int i = 1; i < iterations; ++i) {
    divide_by_sums(comb, n_streams, n_streams, 1, eps);
    divide_by_sums(comb, n_streams, 1, n_streams, eps);
  }
}

void pre(
    const float* streams,
    const float* m,
    const float* base,
    const float* scale,
    const float* norm,
    float* x,
    float* post,
    float* comb,
    HyperParams p,
    int64_t begin,
    int64_t end) {
  const int n_streams = p.n_streams, n_comb = n_streams * n_streams;
  for (int64_t t = begin; t < end; ++t) {
    const float* token = streams + t * n_streams * p.dim;
    const float* outputs = m + t * p.n_outputs;
    const float r = inverse_rms(token, n_streams * p.dim, p.norm_eps);
    float gates[2 * kHyperMaxStreams] = {}, mixing[kMaxComb] = {};
    logits(gates, outputs, base, r * scale[0], n_streams);
    logits(
        gates + n_streams,
        outputs + n_streams,
        base + n_streams,
        r * scale[1],
        n_streams);
    logits(mixing, outputs + 2 * n_streams, base + 2 * n_streams, r * scale[2], n_comb);
    simd::store(gates, simd::sigmoid(simd::load(gates)));
    softmax_rows(mixing, n_streams, p.hyper_eps);
    sinkhorn(mixing, n_streams, p.hyper_eps, p.iterations);
    for (int s = 0; s < n_streams; ++s) {
      post[t * n_streams + s] = 2 * gates[n_streams + s];
      gates[s] += p.hyper_eps;
    }
    std::memcpy(comb + t * n_comb, mixing, sizeof(float) * n_comb);
    collapse(token, gates, norm, x + t * p.dim, p);
  }
}

void head(
    const float* streams,
    const float* m,
    const float* base,
    const float* scale,
    const float* norm,
    float* x,
    HyperParams p,
    int64_t begin,
    int64_t end) {
  for (int64_t t = begin; t < end; ++t) {
    const float* token = streams + t * p.n_streams * p.dim;
    const float r = inverse_rms(token, p.n_streams * p.dim, p.norm_eps);
    float gates[2 * kHyperMaxStreams] = {};
    logits(gates, m + t * p.n_outputs, base, r * scale[0], p.n_streams);
    simd::store(gates, simd::sigmoid(simd::load(gates)));
    for (int s = 0; s < p.n_streams; ++s) {
      gates[s] += p.hyper_eps;
    }
    collapse(token, gates, norm, x + t * p.dim, p);
  }
}

void post(
    const float* streams,
    const float* y,
    const float* post,
    const float* comb,
    float* out,
    HyperPostParams p,
    int64_t begin,
    int64_t end) {
  const int n_streams = p.n_streams;
  for (int64_t t = begin; t < end; ++t) {
    const float* token = streams + t * n_streams * p.dim;
    const float* into = post + t * n_streams;
    const float* mixing = comb + t * n_streams * n_streams;
    float* result = out + t * n_streams * p.dim;
    for (int i = 0; i < p.dim; i += 16) {
      const F32x16 value = simd::load(y + t * p.dim + i);
      for (int d = 0; d < n_streams; ++d) {
        F32x16 sum = simd::mul(simd::set1(into[d]), value);
        for (int s = 0; s < n_streams; ++s) {
          const F32x16 stream = simd::load(token + int64_t{s} * p.dim + i);
          sum = simd::fma(simd::set1(mixing[s * n_streams + d]), stream, sum);
        }
        simd::store(result + int64_t{d} * p.dim + i, sum);
      }
    }
  }
}

}  // namespace

const HyperKernels& kernels(const HyperKernels*) {
  static constexpr HyperKernels table{kTileTokens, kTileRows, product, pre, head, post};
  return table;
}

}  // namespace mlx_dsv4::DSV4_ISA
