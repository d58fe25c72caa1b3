// Device only: pieces of the attention kernels: the rows of a query, a tile of them in
// threadgroup memory, its scores.
#pragma once

#include "attention.h"
#include "matrix_lanes.h"
#include "packed_values.h"
#include "window.h"

using namespace metal;

// ---- sums in matrices

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

// Column c of matrix f of a simdgroup's 8 * kDims dims is dim kDims * c + f, so that a lane's
// elements of all of them are these neighbouring dims of one row.
template <int kDims>
struct LaneDims {
  float4 of[kDims / 2];

  float2 pair(int f) const {
    const int next = kDims + f;
    return float2(of[f / 4][f % 4], of[next / 4][next % 4]);
  }
};

// ---- rows

DSV4_CONST int kNoRow = INT_MIN;          // -1 in `selected`, or past the end of the list
DSV4_CONST int kHiddenRow = INT_MIN + 1;  // selected, but its query may not see it

// The rows that one query sees, in the order in which they are summed. An entry is
// attention_kv[entry], rows[~entry] for a negative one, or one of the two above.
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

  int entry(int i) const {
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

  // Entries of the tile from `first` on, lane i has the i-th.
  int tile_entry(int first, uint lane) const {
    return entry(first + int(lane) % attention_tile_rows(sizeof(T)));
  }

  const device T* row(int found) const {
    if (found == kNoRow || found == kHiddenRow) {
      return nullptr;
    }
    return found < 0 ? rows + size_t(~found) * D : attention_kv + size_t(found) * D;
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

// From one head's scores to the next's, in a step of n_tokens.
inline int score_pitch(constant AttentionParams& p, uint n_tokens, int tile_rows) {
  const int last = p.start + int(n_tokens) - 1;
  return attention_score_pitch(
      attention_list_rows(last, p.window, p.ratio, p.n_selected), tile_rows);
}

// Whether a tile has work to do; its entries are those of the simdgroup's lanes.
inline bool names_rows(int entry) { return simd_any(entry != kNoRow); }

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

// ---- a tile in threadgroup memory

// Rows end in zeros up to a whole block of dims. The pitches spread what a simdgroup reads at
// a time evenly over 32 banks.
template <typename T, int D>
struct AttentionTile {
  static constant constexpr int kRows = attention_tile_rows(sizeof(T));
  static constant constexpr int kBlocks = ceil_div(D, kAttentionDotBlock);
  static constant constexpr int kRowDims = kBlocks * kAttentionDotBlock;
  static constant constexpr int kRowPitch = kRowDims + 16;
  static constant constexpr int kScorePitch = kRows == 8 ? 8 : kRows + 8;

  typename FourValues<T>::Aligned rows[kRows * kRowPitch / 4];
  float scores[2]
              [kAttentionHeads * kScorePitch];  // of half the blocks each; [0]: weights
  float factors[kAttentionHeads];               // of the sums so far; at last, totals
  float masks[kRows];                           // replaces scores where it is not 0
};
static_assert(
    sizeof(AttentionTile<bfloat, kAttentionMaxDim>) <= 32768, "threadgroup memory");
static_assert(
    sizeof(AttentionTile<float, kAttentionMaxDim>) <= 32768, "threadgroup memory");

// Dims [dim, dim + 4) of a row of the tile.
template <typename T, int D>
float4 tile_four(const threadgroup AttentionTile<T, D>& tile, int row, int dim) {
  return FourValues<T>::widen(
      tile.rows[(row * AttentionTile<T, D>::kRowPitch + dim) / 4]);
}

inline float mask_of(int entry) {
  return entry == kNoRow ? -INFINITY : (entry == kHiddenRow ? NAN : 0.0f);
}

// Copies the rows of a tile's entries, one row by one simdgroup; no row is zeros.
template <typename T, int D>
void stage_rows(
    thread const RowList<T, D>& list,
    int entry,
    threadgroup AttentionTile<T, D>& tile,
    uint simdgroup,
    uint n_simdgroups,
    uint lane) {
  using Tile = AttentionTile<T, D>;
  using Piece = typename FourValues<T>::Aligned;
  for (int r = int(simdgroup); r < Tile::kRows; r += int(n_simdgroups)) {
    const int found = simd_shuffle(entry, ushort(r));
    const device T* from = list.row(found);
    for (int d = 4 * int(lane); d < Tile::kRowDims; d += 4 * kSimdWidth) {
      Piece piece = Piece(0);
      if (from != nullptr && d < D) {
        piece = stored_four(from + d);
      }
      tile.rows[(r * Tile::kRowPitch + d) / 4] = piece;
    }
    if (lane == 0) {
      tile.masks[r] = mask_of(found);
    }
  }
}

// Products of eight heads with the tile: simdgroup 2h + i takes every other block of dims from
// block i on, for heads [8h, 8h + 8). `q` holds n_heads; the rest of the eight are zero. In
// step s of a block row and column i of a matrix are dim 4i + s, so that a lane reads
// neighbours.
template <typename T, int D>
void multiply_queries(
    const device T* q,
    int n_heads,
    threadgroup AttentionTile<T, D>& tile,
    uint simdgroup,
    MatrixLane mine) {
  using Tile = AttentionTile<T, D>;
  constexpr int kMatrices = Tile::kRows / kMatrixDim;
  const int head = int(simdgroup) / 2 * kMatrixDim + mine.row;
  const int parity = int(simdgroup) % 2;
  const device T* query = q + size_t(head) * D;
  MatrixSums<1, kMatrices> sums;
  clear(sums);
  for (int block = parity; block < Tile::kBlocks; block += 2) {
    const int first_dim = block * kAttentionDotBlock;
    const int query_dim = first_dim + 4 * mine.column;
    float4 left[2] = {float4(0.0f), float4(0.0f)};
    if (head < n_heads && query_dim < D) {
      left[0] = FourValues<T>::widen(stored_four(query + query_dim));
      left[1] = FourValues<T>::widen(stored_four(query + query_dim + 4));
    }
    float4 right[kMatrices][2];
#pragma unroll
    for (int j = 0; j < kMatrices; ++j) {
      const int row = j * kMatrixDim + mine.column;
      right[j][0] = tile_four(tile, row, first_dim + 4 * mine.row);
      right[j][1] = tile_four(tile, row + 1, first_dim + 4 * mine.row);
    }
#pragma unroll
    for (int s = 0; s < 4; ++s) {
      const simdgroup_float8x8 queries = matrix_of(float2(left[0][s], left[1][s]));
#pragma unroll
      for (int j = 0; j < kMatrices; ++j) {
        const simdgroup_float8x8 keys = matrix_of(float2(right[j][0][s], right[j][1][s]));
        simdgroup_multiply_accumulate(sums.of[0][j], queries, keys, sums.of[0][j]);
      }
    }
  }
  threadgroup float* scores = tile.scores[parity] + (head - mine.row) * Tile::kScorePitch;
#pragma unroll
  for (int j = 0; j < kMatrices; ++j) {
    simdgroup_store(sums.of[0][j], scores + j * kMatrixDim, Tile::kScorePitch);
  }
}

// Scores of one head and two neighbouring rows of the tile: -inf where there is no row, NaN
// where the query may not see it.
template <typename T, int D>
float2 pair_of_scores(threadgroup AttentionTile<T, D>& tile, int head, int column) {
  const float scale = 1.0f / precise::sqrt(float(D));
  float2 pair;
  for (int c = 0; c < 2; ++c) {
    const int at = head * AttentionTile<T, D>::kScorePitch + column + c;
    const float mask = tile.masks[column + c];
    pair[c] = mask == 0.0f ? (tile.scores[0][at] + tile.scores[1][at]) * scale : mask;
  }
  return pair;
}
