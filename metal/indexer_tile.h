// Device only: scores of a tile of index rows for one token. Each simdgroup holds 16 rows in
// registers and multiplies them with the token's queries, which lie in threadgroup memory.
#pragma once

#include "indexer.h"
#include "matrix_lanes.h"
#include "packed_values.h"

using namespace metal;

DSV4_CONST int kPassHeads = 64;  // heads that a simdgroup sums at one time
DSV4_CONST int kHeadTiles = kPassHeads / kMatrixDim;
DSV4_CONST int kRowTiles = kIndexerSimdgroupRows / kMatrixDim;
// The four lanes that share a row of a matrix load four dims each: two matrices' columns.
DSV4_CONST int kStepDims = 16;
// One matrix of padding puts the dims of a matrix into different banks.
DSV4_CONST int kHeadPitch = kPassHeads + kMatrixDim;

// How a value waits to become f32, and how many dims of rows and queries wait.
template <typename T>
struct Held;

template <>
struct Held<float> {
  using Value = float;
  static constant constexpr int kDims = 64;
};

template <>
struct Held<bfloat> {
  using Value = ushort;
  static constant constexpr int kDims = 128;
};

inline float2 widen(float2 pair) { return pair; }
inline float2 widen(ushort2 pair) { return as_type<float2>(uint2(pair) << 16); }

// Queries as [dim][head], in the order of dims that load_rows() gives.
template <typename T>
struct ScoresMemory {
  typename Held<T>::Value queries[Held<T>::kDims * kHeadPitch];
};
static_assert(sizeof(ScoresMemory<float>) <= 32768, "threadgroup memory");
static_assert(sizeof(ScoresMemory<bfloat>) <= 32768, "threadgroup memory");

// A lane's part of its simdgroup's rows.
template <typename T>
struct HeldRows {
  static constant constexpr int kSteps = Held<T>::kDims / kStepDims;
  vec<typename Held<T>::Value, 4> of[kRowTiles][kSteps];
};

// Products of rows and heads.
struct Dots {
  simdgroup_float8x8 of[kHeadTiles][kRowTiles];
};

// NaN stays NaN.
inline float relu(float x) { return x < 0.0f ? 0.0f : x; }

// Dims [0, n_dims) of the first `count` heads at q; other heads are zero.
template <typename T>
inline void stage_queries(
    threadgroup ScoresMemory<T>& memory,
    const device T* q,
    int count,
    int dim,
    int n_dims,
    int thread_index) {
  using Four = vec<typename Held<T>::Value, 4>;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (int i = thread_index; i < n_dims / 4 * kPassHeads; i += kIndexerThreads) {
    const int quarter = i % 4, head = i / 4 % kPassHeads, step = i / (4 * kPassHeads);
    const device T* from = q + size_t(head) * dim + kStepDims * step + 4 * quarter;
    const Four values = head < count ? stored_four(from) : Four(0);
    auto to = memory.queries + (kStepDims * step + 2 * quarter) * kHeadPitch + head;
    to[0] = values.x;
    to[kHeadPitch] = values.y;
    to[kMatrixDim * kHeadPitch] = values.z;
    to[(kMatrixDim + 1) * kHeadPitch] = values.w;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
}

// Dims [0, n_dims) of the first `count` rows; other rows are zero.
template <typename T>
inline void load_rows(
    thread HeldRows<T>& held,
    const device T* rows,
    int count,
    int dim,
    int n_dims,
    MatrixLane mine) {
  using Four = vec<typename Held<T>::Value, 4>;
#pragma unroll
  for (int j = 0; j < kRowTiles; ++j) {
    const int row = kMatrixDim * j + mine.row;
    const device T* from = rows + size_t(row) * dim + 2 * mine.column;
#pragma unroll
    for (int s = 0; s < HeldRows<T>::kSteps; ++s) {
      const bool exists = row < count && kStepDims * s < n_dims;
      held.of[j][s] = exists ? stored_four(from + kStepDims * s) : Four(0);
    }
  }
}

inline void clear(thread Dots& dots) {
#pragma unroll
  for (int i = 0; i < kHeadTiles * kRowTiles; ++i) {
    dots.of[i / kRowTiles][i % kRowTiles] = matrix_of(float2(0.0f));
  }
}

// Adds the products of the matrices that begin a step, or of those that end it.
template <typename T>
inline void add_half_step(
    thread Dots& dots,
    thread const HeldRows<T>& held,
    const threadgroup typename Held<T>::Value* queries,
    int n_heads,
    int step,
    bool ends) {
  using Two = vec<typename Held<T>::Value, 2>;
  simdgroup_float8x8 rows[kRowTiles];
#pragma unroll
  for (int j = 0; j < kRowTiles; ++j) {
    const vec<typename Held<T>::Value, 4> four = held.of[j][step];
    rows[j] = matrix_of(widen(ends ? Two(four.zw) : Two(four.xy)));
  }
#pragma unroll
  for (int i = 0; i < kHeadTiles; ++i) {
    if (kMatrixDim * i < n_heads) {
      const simdgroup_float8x8 heads =
          matrix_of(widen(*(const threadgroup Two*)(queries + kMatrixDim * i)));
#pragma unroll
      for (int j = 0; j < kRowTiles; ++j) {
        simdgroup_multiply_accumulate(dots.of[i][j], rows[j], heads, dots.of[i][j]);
      }
    }
  }
}

// Adds the products of the rows with one token's heads over the dims that are held.
template <typename T>
inline void add_products(
    thread Dots& dots,
    thread const HeldRows<T>& held,
    const threadgroup ScoresMemory<T>& memory,
    int n_heads,
    int n_dims,
    MatrixLane mine) {
  auto queries = memory.queries + mine.row * kHeadPitch + mine.column;
#pragma unroll
  for (int s = 0; s < HeldRows<T>::kSteps; ++s) {
    if (kStepDims * s < n_dims) {
      auto first = queries + kStepDims * s * kHeadPitch;
      add_half_step(dots, held, first, n_heads, s, false);
      add_half_step(dots, held, first + kMatrixDim * kHeadPitch, n_heads, s, true);
    }
  }
}

// A lane's sums of its rows over its columns of the heads.
struct HeadSums {
  float2 of[kRowTiles];
};

// Adds what the heads at w give. Heads that do not exist are left out: zero times infinity is
// NaN.
inline void add_heads(
    thread HeadSums& sums,
    thread Dots& dots,
    const device float* w,
    float scale,
    int n_heads,
    MatrixLane mine) {
#pragma unroll
  for (int i = 0; i < kHeadTiles; ++i) {
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      const int head = kMatrixDim * i + mine.column + c;
      if (head < n_heads) {
        const float weight = w[head] * scale;
#pragma unroll
        for (int j = 0; j < kRowTiles; ++j) {
          const float dot = dots.of[i][j].thread_elements()[c];
          sums.of[j][c] = fma(relu(dot), weight, sums.of[j][c]);
        }
      }
    }
  }
}

// Sum over the heads: the four lanes that share a row differ in bits 0 and 3.
inline float add_columns(float2 sums) {
  float sum = sums.x + sums.y;
  sum += simd_shuffle_xor(sum, ushort(1));
  return sum + simd_shuffle_xor(sum, ushort(8));
}

// Scores of the simdgroup's rows from first_row on; the token sees n_seen of them.
inline void store_scores(
    device float* out,
    thread const HeadSums& sums,
    int first_row,
    int n_seen,
    int n_rows,
    MatrixLane mine) {
#pragma unroll
  for (int j = 0; j < kRowTiles; ++j) {
    const float sum = add_columns(sums.of[j]);
    const int row = kMatrixDim * j + mine.row;
    if (mine.column == 0 && first_row + row < n_rows) {
      out[first_row + row] = row < n_seen ? sum : -INFINITY;
    }
  }
}

// What a simdgroup scores, and what it holds from one piece of work to the next.
template <typename T>
struct Scorer {
  HeldRows<T> rows;
  bool keeps_rows, keeps_queries;  // whether the next piece of work has the same
  bool has_rows, has_queries;      // whether they are there already
  int thread_index;
  MatrixLane mine;
};

// Sums over all heads of one token for the simdgroup's rows, the first `count` of which are
// loaded; none if `sees` is false. Every thread of the threadgroup calls it.
template <typename T>
inline HeadSums sum_heads(
    thread Scorer<T>& scorer,
    threadgroup ScoresMemory<T>& memory,
    const device T* q,
    const device float* w,
    const device T* rows,
    int count,
    bool sees,
    constant IndexerScoresParams& p) {
  constexpr int kDims = Held<T>::kDims;
  HeadSums sums = {};
  for (int h = 0; h < p.n_heads; h += kPassHeads) {
    const int n_heads = p.n_heads - h;
    Dots dots;
    clear(dots);
    for (int d = 0; d < p.dim; d += kDims) {
      const int n_dims = min(kDims, p.dim - d);
      if (!scorer.has_queries) {
        const device T* heads = q + size_t(h) * p.dim + d;
        stage_queries(memory, heads, n_heads, p.dim, n_dims, scorer.thread_index);
        scorer.has_queries = scorer.keeps_queries;
      }
      if (!sees) {
        continue;
      }
      if (!scorer.has_rows) {
        load_rows(scorer.rows, rows + d, count, p.dim, n_dims, scorer.mine);
        scorer.has_rows = scorer.keeps_rows;
      }
      add_products(dots, scorer.rows, memory, n_heads, n_dims, scorer.mine);
    }
    add_heads(sums, dots, w + h, p.scale, n_heads, scorer.mine);
  }
  return sums;
}
