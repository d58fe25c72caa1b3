// Pieces of the attention kernels: the rows of a query, scores of a tile of them, softmax, and
// what becomes of a sum.
#pragma once

#include "attention.h"
#include "window.h"

using namespace metal;

// What a lane holds of a simdgroup_matrix: two neighbouring columns of one row.
struct MatrixLane {
  int row;
  int column;
};

inline MatrixLane matrix_lane(uint lane) {
  const int quad = int(lane) / 4;
  MatrixLane mine;
  mine.row = (quad & 4) + (int(lane) / 2) % 4;
  mine.column = (quad & 2) * 2 + (int(lane) % 2) * 2;
  return mine;
}

template <typename M>
void set_elements(thread M& matrix, float2 values) {
  matrix.thread_elements()[0] = values.x;
  matrix.thread_elements()[1] = values.y;
}

template <typename M>
float2 elements(thread M& matrix) {
  return float2(matrix.thread_elements()[0], matrix.thread_elements()[1]);
}

template <typename M>
void scale_elements(thread M& matrix, float factor) {
  matrix.thread_elements()[0] *= factor;
  matrix.thread_elements()[1] *= factor;
}

template <int kRows, int kColumns>
struct MatrixSums {
  simdgroup_float8x8 of[kRows][kColumns];
};

template <int kRows, int kColumns>
void clear(thread MatrixSums<kRows, kColumns>& sums) {
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
#pragma unroll
    for (int j = 0; j < kColumns; ++j) {
      sums.of[i][j] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
    }
  }
}

DSV4_CONST int kNoRow = INT_MIN;          // -1 in `selected`, or past the end of the list
DSV4_CONST int kHiddenRow = INT_MIN + 1;  // selected, but its query may not see it

// The rows that one query sees, in the order in which they are summed.
template <typename T, int D>
struct RowList {
  const device T* rows;
  const device T* attention_kv;
  const device int* selected;
  int first_pos;  // of its window
  int start;
  int window;
  int n_window;
  int n_selected;
  int n_visible;
  int size;

  // attention_kv[at], or rows[~at] for a negative one; or no row.
  int at(int i) const {
    if (i >= size) {
      return kNoRow;
    }
    if (i < n_window) {
      const int pos = first_pos + i;
      return pos < start ? window_slot(pos, window) : ~(pos - start);
    }
    const int row = n_selected > 0 ? selected[i - n_window] : i - n_window;
    if (row >= 0 && row < n_visible) {
      return window + row;
    }
    return row == -1 ? kNoRow : kHiddenRow;
  }

  const device T* row(int i) const {
    const int found = at(i);
    if (found == kNoRow || found == kHiddenRow) {
      return nullptr;
    }
    return found < 0 ? rows + size_t(~found) * D : attention_kv + size_t(found) * D;
  }

  // Whether any of the tile's entries names a row: the whole simdgroup asks.
  bool has_rows(int first, uint lane) const {
    return simd_any(at(first + int(lane) % attention_tile_rows(sizeof(T))) != kNoRow);
  }
};

template <typename T, int D>
RowList<T, D> list_rows(
    const device T* rows,
    const device T* attention_kv,
    const device int* selected,
    constant AttentionParams& p,
    int token) {
  const int pos = p.start + token;
  RowList<T, D> list;
  list.rows = rows;
  list.attention_kv = attention_kv;
  list.selected = selected + size_t(token) * p.n_selected;
  list.n_window = attention_window_rows(pos, p.window);
  list.first_pos = pos - list.n_window + 1;
  list.start = p.start;
  list.window = p.window;
  list.n_selected = p.n_selected;
  list.n_visible = visible_rows(pos, p.ratio);
  list.size = attention_list_rows(pos, p.window, p.ratio, p.n_selected);
  return list;
}

// Threadgroup memory. Pitches spread the rows of a matrix over all banks.
template <typename T, int D>
struct AttentionTile {
  static constant constexpr int kRows = attention_tile_rows(sizeof(T));
  static constant constexpr int kRowPitch = D + 8;
  static constant constexpr int kScorePitch = kRows == 8 ? 8 : kRows + 8;

  alignas(16) T rows[kRows * kRowPitch];
  float scores[2][kAttentionHeads * kScorePitch];  // of half the dims each; [0]: weights
  float factors[kAttentionHeads];                  // of the sums so far; at last, totals
};

// Copies list entries [first, first + kRows); where there is no row, zeros.
template <typename T, int D>
void stage_rows(
    thread const RowList<T, D>& list,
    int first,
    threadgroup AttentionTile<T, D>& tile,
    int thread_index,
    int n_threads) {
  using Piece = vec<T, 4>;
  constexpr int kPieces = D / 4;
  for (int i = thread_index; i < AttentionTile<T, D>::kRows * kPieces; i += n_threads) {
    const int row = i / kPieces;
    const int dim = 4 * (i % kPieces);
    const device T* from = list.row(first + row);
    threadgroup T* to = tile.rows + row * AttentionTile<T, D>::kRowPitch + dim;
    *(threadgroup Piece*)to =
        from == nullptr ? Piece(T(0)) : *(const device Piece*)(from + dim);
  }
}

// Products of eight heads with the tile over half the dims: simdgroup 2h + i makes half i of
// heads [8h, 8h + 8). `q` holds n_heads; the rest of the eight are zero.
template <typename T, int D>
void multiply_queries(
    const device T* q,
    int n_heads,
    threadgroup AttentionTile<T, D>& tile,
    uint simdgroup,
    MatrixLane mine) {
  using Tile = AttentionTile<T, D>;
  constexpr int kMatrices = Tile::kRows / kMatrixDim;
  const int first_head = int(simdgroup) / 2 * kMatrixDim;
  const int half_index = int(simdgroup) % 2;
  const int first_dim = half_index * (D / 2);
  const bool is_head = first_head + mine.row < n_heads;
  const device T* query = q + size_t(first_head + mine.row) * D + first_dim + mine.column;
  const threadgroup T* rows = tile.rows + first_dim;
  MatrixSums<1, kMatrices> sums;
  clear(sums);
  for (int d = 0; d < D / 2; d += kMatrixDim) {
    simdgroup_matrix<T, 8, 8> queries;
    queries.thread_elements()[0] = is_head ? query[d] : T(0);
    queries.thread_elements()[1] = is_head ? query[d + 1] : T(0);
#pragma unroll
    for (int j = 0; j < kMatrices; ++j) {
      simdgroup_matrix<T, 8, 8> keys;
      const threadgroup T* from = rows + j * kMatrixDim * Tile::kRowPitch + d;
      simdgroup_load(keys, from, Tile::kRowPitch, ulong2(0, 0), true);
      simdgroup_multiply_accumulate(sums.of[0][j], queries, keys, sums.of[0][j]);
    }
  }
  threadgroup float* scores = tile.scores[half_index] + first_head * Tile::kScorePitch;
#pragma unroll
  for (int j = 0; j < kMatrices; ++j) {
    simdgroup_store(sums.of[0][j], scores + j * kMatrixDim, Tile::kScorePitch);
  }
}

inline float masked_score(float score, int at) {
  return at == kNoRow ? -INFINITY : (at == kHiddenRow ? NAN : score);
}

// Scores of one head and two neighbouring rows of the tile: -inf where there is no row, NaN
// where the query may not see it.
template <typename T, int D>
float2 pair_of_scores(
    threadgroup AttentionTile<T, D>& tile,
    thread const RowList<T, D>& list,
    int first,
    int head,
    int column) {
  const float scale = 1.0f / precise::sqrt(float(D));
  const int at = head * AttentionTile<T, D>::kScorePitch + column;
  const float left = (tile.scores[0][at] + tile.scores[1][at]) * scale;
  const float right = (tile.scores[0][at + 1] + tile.scores[1][at + 1]) * scale;
  return float2(
      masked_score(left, list.at(first + column)),
      masked_score(right, list.at(first + column + 1)));
}

// Softmax of one head while tiles pass; the same in the four lanes that share its row of a
// matrix. The sink is there from the start and has no value.
struct Softmax {
  float top;    // largest score so far
  float total;  // sum of exp(score - top)
};

inline Softmax start_softmax(float sink) {
  Softmax softmax;
  softmax.top = sink;
  softmax.total = sink == -INFINITY ? 0.0f : 1.0f;
  return softmax;
}

inline float softmax_weight(float score, float top) {
  return score == -INFINITY ? 0.0f : precise::exp(score - top);
}

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
    scores.of[j].x = softmax_weight(scores.of[j].x, top);
    scores.of[j].y = softmax_weight(scores.of[j].y, top);
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
    thread const RowList<T, D>& list,
    int first,
    int head,
    int column) {
  using Tile = AttentionTile<T, D>;
  TileScores<Tile::kRows / kMatrixDim> scores;
  for (int j = 0; j < Tile::kRows / kMatrixDim; ++j) {
    scores.of[j] = pair_of_scores(tile, list, first, head, j * kMatrixDim + column);
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

// The heads of a threadgroup: [first, first + n) of the token's.
struct HeadBlock {
  int token;
  int first;
  int n;
  size_t first_row;  // of q and out
};

inline HeadBlock head_block(constant AttentionParams& p, uint3 group) {
  HeadBlock heads;
  heads.token = int(group.z);
  heads.first = int(group.y) * kAttentionHeads;
  heads.n = min(p.n_heads - heads.first, kAttentionHeads);
  heads.first_row = size_t(heads.token) * p.n_heads + heads.first;
  return heads;
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

template <typename T>
void store_pair(device T* out, float2 pair) {
  out[0] = T(pair.x);
  out[1] = T(pair.y);
}
