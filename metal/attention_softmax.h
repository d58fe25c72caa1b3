// Device only: softmax of attention while tiles of rows pass, and what becomes of a sum.
#pragma once

#include "attention_tile.h"

using namespace metal;

// Softmax of one head so far; the same in the four lanes that share its row of a matrix.
struct Softmax {
  float top;    // largest score
  float total;  // sum of exp(score - top)
};

// The sink is there from the start and has no value.
inline Softmax start_softmax(float sink) { return Softmax{sink, 1.0f}; }

// One head's scores of a tile, then its weights: a lane's two columns of each matrix.
template <int kMatrices>
struct TileScores {
  float2 of[kMatrices];
};

// Turns scores into weights; returns the factor of everything summed before.
template <int kMatrices>
float fold_scores(thread Softmax& softmax, thread TileScores<kMatrices>& scores) {
  float top = softmax.top;
  for (int j = 0; j < kMatrices; ++j) {
    top = fmax(top, fmax(scores.of[j].x, scores.of[j].y));
  }
  // Lanes that differ in bits 0 and 3 hold the other columns of the same row.
  top = fmax(top, simd_shuffle_xor(top, ushort(1)));
  top = fmax(top, simd_shuffle_xor(top, ushort(8)));
  const float factor = top == softmax.top ? 1.0f : precise::exp(softmax.top - top);
  float sum = 0.0f;
  for (int j = 0; j < kMatrices; ++j) {
    scores.of[j].x = precise::exp(scores.of[j].x - top);
    scores.of[j].y = precise::exp(scores.of[j].y - top);
    sum += scores.of[j].x;
    sum += scores.of[j].y;
  }
  sum += simd_shuffle_xor(sum, ushort(1));
  sum += simd_shuffle_xor(sum, ushort(8));
  softmax.top = top;
  softmax.total = fma(softmax.total, factor, sum);
  return factor;
}

// Softmax of a tile's scores of one head, whose lanes each hold `column` and the next: leaves
// weights and factors in the tile.
template <typename T, int D>
void soften_tile(
    thread Softmax& softmax,
    threadgroup AttentionTile<T, D>& tile,
    int head,
    int column) {
  using Tile = AttentionTile<T, D>;
  TileScores<Tile::kRows / kMatrixDim> scores;
  for (int j = 0; j < Tile::kRows / kMatrixDim; ++j) {
    scores.of[j] = pair_of_scores(tile, head, j * kMatrixDim + column);
  }
  const float factor = fold_scores(softmax, scores);
  threadgroup float* weights = tile.scores[0] + head * Tile::kScorePitch + column;
  for (int j = 0; j < Tile::kRows / kMatrixDim; ++j) {
    weights[j * kMatrixDim] = scores.of[j].x;
    weights[j * kMatrixDim + 1] = scores.of[j].y;
  }
  if (column == 0) {
    tile.factors[head] = factor;
  }
}

// Multiplies a head's sums so far.
template <int kRows, int kDims>
void scale_sums(thread MatrixSums<kRows, kDims>& sums, int row_tile, float factor) {
#pragma unroll
  for (int f = 0; f < kDims; ++f) {
    sums.of[row_tile][f].thread_elements()[0] *= factor;
    sums.of[row_tile][f].thread_elements()[1] *= factor;
  }
}

// sums += weights * values: eight rows, the weights of eight heads.
template <int kRows, int kDims>
void add_rows(
    thread MatrixSums<kRows, kDims>& sums,
    int row_tile,
    simdgroup_float8x8 weights,
    thread const LaneDims<kDims>& values) {
#pragma unroll
  for (int f = 0; f < kDims; ++f) {
    const simdgroup_float8x8 right = matrix_of(values.pair(f));
    simdgroup_multiply_accumulate(
        sums.of[row_tile][f], weights, right, sums.of[row_tile][f]);
  }
}

// Two neighbouring dims of the output from their sums; the last 2 * n_pairs are rotated back.
template <typename T, int D>
float2 finish(
    float2 sums, float total, int dim, const device float* rotation, int n_pairs) {
  const float2 x = sums / total;
  const int first_rotated = D - 2 * n_pairs;
  if (dim < first_rotated) {
    return x;
  }
  const float cosine = rotation[dim - first_rotated];
  const float sine = -rotation[dim - first_rotated + 1];
  return float2(fma(x.x, cosine, -(x.y * sine)), fma(x.x, sine, x.y * cosine));
}

// Stores a lane's sums of one head, the first of them dim `dim` of the row at `out`.
template <typename T, int D, int kRows, int kDims>
void store_head(
    thread MatrixSums<kRows, kDims>& sums,
    int row_tile,
    float total,
    int dim,
    const device float* rotation,
    int n_pairs,
    device T* out) {
  float values[2 * kDims];
#pragma unroll
  for (int i = 0; i < 2 * kDims; ++i) {
    values[i] = sums.of[row_tile][i % kDims].thread_elements()[i / kDims];
  }
#pragma unroll
  for (int i = 0; i < 2 * kDims; i += 4) {
    if (dim + i < D) {
      const float2 left = finish<T, D>(
          float2(values[i], values[i + 1]), total, dim + i, rotation, n_pairs);
      const float2 right = finish<T, D>(
          float2(values[i + 2], values[i + 3]), total, dim + i + 2, rotation, n_pairs);
      store_four(out + dim + i, float4(left, right));
    }
  }
}
