// Sums of a tile of weight rows times a tile of tokens, in 8x8 fragments: the one arithmetic of
// every product with blocks, so that bits depend neither on the tile nor on the launch.
//
//   segment s   values [512 s, 512 (s + 1)) of a row; its blocks ascend, four steps each: in
//               step i a fragment takes value i of each of the block's eight slots
//   total       0 + segment 0 + segment 1 + ..., in f32
//
// A fragment has eight weight rows or eight tokens. Rows past the end and columns without a
// token are zeros that nobody stores, so a token's NaN stays in its column.
#pragma once

#include "block_values.h"
#include "matmul.h"
#include "matrix_lanes.h"

#define DSV4_UNROLL _Pragma("clang loop unroll(full)")

using Fragment = simdgroup_float8x8;

DSV4_CONST int kSegmentBlocks = kSegmentValues / kBlockValues;

inline float2 lane_elements(thread Fragment& f) {
  return float2(f.thread_elements()[0], f.thread_elements()[1]);
}

// Rows [0, n) from `first` on; a tile may reach past them.
struct WeightRows {
  const device uchar* first;
  int n_bytes;  // of a row
  int n;
};

// Rows of x for this lane's two columns of each token fragment; -1: no token.
template <int kTokenTiles>
struct TokenColumns {
  int rows[kTokenTiles][2];
};

// This lane's slot of one block of x, for its columns.
template <int kTokenTiles>
struct TokenSlots {
  float4 of[kTokenTiles][2];
};

// A tile's sums over one segment.
template <int kRowTiles, int kTokenTiles>
struct Sums {
  Fragment of[kRowTiles][kTokenTiles];
};

// A tile's sums over the segments so far, this lane's elements.
template <int kRowTiles, int kTokenTiles>
struct Totals {
  float2 of[kRowTiles][kTokenTiles];
};

// A simdgroup's Sums on their way to the simdgroup that adds them up.
template <int kRowTiles, int kTokenTiles>
struct Partial {
  float2 of[kRowTiles][kTokenTiles][kSimdWidth];
};

template <int kRowTiles, int kTokenTiles>
inline void clear(thread Sums<kRowTiles, kTokenTiles>& sums) {
  DSV4_UNROLL
  for (int i = 0; i < kRowTiles; ++i) {
    DSV4_UNROLL
    for (int j = 0; j < kTokenTiles; ++j) {
      sums.of[i][j] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
    }
  }
}

template <int kRowTiles, int kTokenTiles>
inline void clear(thread Totals<kRowTiles, kTokenTiles>& totals) {
  DSV4_UNROLL
  for (int i = 0; i < kRowTiles; ++i) {
    DSV4_UNROLL
    for (int j = 0; j < kTokenTiles; ++j) {
      totals.of[i][j] = float2(0.0f);
    }
  }
}

// Rows of x have `stride` values, k of them in this product.
template <int kFormat, typename X, int kTokenTiles>
inline TokenSlots<kTokenTiles> load_tokens(
    const device X* x,
    size_t stride,
    thread const TokenColumns<kTokenTiles>& columns,
    int k,
    int block,
    MatrixLane at) {
  constexpr bool kWhole = block_elements(kFormat) > 1;
  const int first = block * kBlockValues + BlockValues<kFormat>::slot_start(at.row);
  TokenSlots<kTokenTiles> slots;
  DSV4_UNROLL
  for (int j = 0; j < kTokenTiles; ++j) {
    DSV4_UNROLL
    for (int c = 0; c < 2; ++c) {
      const int row = columns.rows[j][c];
      slots.of[j][c] =
          row < 0 ? float4(0.0f) : four_values<kWhole>(x + row * stride, first, k);
    }
  }
  return slots;
}

// sums += weights times tokens over one block. Token tiles from n_token_tiles on are empty.
template <int kFormat, int kRowTiles, int kTokenTiles>
inline void multiply_block(
    thread Sums<kRowTiles, kTokenTiles>& sums,
    thread const WeightRows& weights,
    thread const TokenSlots<kTokenTiles>& tokens,
    int n_token_tiles,
    int k,
    int block,
    MatrixLane at) {
  DSV4_UNROLL
  for (int i = 0; i < kRowTiles; ++i) {
    const int row = kFragment * i + at.row;
    float4 slots[2] = {float4(0.0f), float4(0.0f)};
    if (row < weights.n) {
      const device uchar* bytes = weights.first + row * weights.n_bytes;
      BlockValues<kFormat>::decode(bytes, block, at.column / 2, k, slots);
    }
    DSV4_UNROLL
    for (int step = 0; step < kSlotValues; ++step) {
      const Fragment w = matrix_of(float2(slots[0][step], slots[1][step]));
      DSV4_UNROLL
      for (int j = 0; j < kTokenTiles; ++j) {
        if (j < n_token_tiles) {
          const Fragment x =
              matrix_of(float2(tokens.of[j][0][step], tokens.of[j][1][step]));
          simdgroup_multiply_accumulate(sums.of[i][j], w, x, sums.of[i][j]);
        }
      }
    }
  }
}

// A tile of weight rows, and which of its simdgroups this is: it sums every parts-th segment.
struct TilePart {
  int tile;
  int part;
  int parts;
  int simdgroup;  // of the threadgroup
  int lane;
};

// `parts` simdgroups for each tile; `at`: which threadgroup of the rows this is.
inline TilePart tile_part(
    int parts, int n_simdgroups, uint at, uint simdgroup, uint lane) {
  const int s = int(simdgroup);
  return TilePart{
      int(at) * (n_simdgroups / parts) + s / parts, s % parts, parts, s, int(lane)};
}

// totals += the sums of one segment, which this simdgroup holds.
template <int kRowTiles, int kTokenTiles>
inline void add_own_segment(
    thread Totals<kRowTiles, kTokenTiles>& totals,
    thread Sums<kRowTiles, kTokenTiles>& sums) {
  DSV4_UNROLL
  for (int i = 0; i < kRowTiles; ++i) {
    DSV4_UNROLL
    for (int j = 0; j < kTokenTiles; ++j) {
      totals.of[i][j] += lane_elements(sums.of[i][j]);
    }
  }
}

// totals += the sums of n consecutive segments, which the simdgroups from this one on hold.
// Every thread of the threadgroup calls it; only part 0 of a tile gets the totals.
template <int kRowTiles, int kTokenTiles>
inline void add_segments(
    thread Totals<kRowTiles, kTokenTiles>& totals,
    thread Sums<kRowTiles, kTokenTiles>& sums,
    threadgroup Partial<kRowTiles, kTokenTiles>* partials,
    int n,
    TilePart own) {
  threadgroup Partial<kRowTiles, kTokenTiles>* from = partials + own.simdgroup;
  DSV4_UNROLL
  for (int i = 0; i < kRowTiles; ++i) {
    DSV4_UNROLL
    for (int j = 0; j < kTokenTiles; ++j) {
      from->of[i][j][own.lane] = lane_elements(sums.of[i][j]);
    }
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (int s = 0; s < (own.part == 0 ? n : 0); ++s) {
    DSV4_UNROLL
    for (int i = 0; i < kRowTiles; ++i) {
      DSV4_UNROLL
      for (int j = 0; j < kTokenTiles; ++j) {
        totals.of[i][j] += from[s].of[i][j][own.lane];
      }
    }
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
}

// The totals of a tile, valid in its part 0. Every thread of the threadgroup calls it. Tiles
// of one part need no partials.
template <int kFormat, int kRowTiles, int kTokenTiles, typename X>
inline Totals<kRowTiles, kTokenTiles> sum_tile(
    thread const WeightRows& weights,
    const device X* x,
    size_t stride,
    thread const TokenColumns<kTokenTiles>& columns,
    int n_token_tiles,
    int k,
    threadgroup Partial<kRowTiles, kTokenTiles>* partials,
    TilePart own) {
  const MatrixLane at = matrix_lane(own.lane);
  const int segments = n_segments(k);
  const int blocks = weights.n > 0 ? ceil_div(k, kBlockValues) : 0;
  Totals<kRowTiles, kTokenTiles> totals;
  clear(totals);
  for (int first = 0; first < segments; first += own.parts) {
    Sums<kRowTiles, kTokenTiles> sums;
    clear(sums);
    const int begin = (first + own.part) * kSegmentBlocks;
    for (int block = begin; block < min(begin + kSegmentBlocks, blocks); ++block) {
      const TokenSlots<kTokenTiles> tokens =
          load_tokens<kFormat>(x, stride, columns, k, block, at);
      multiply_block<kFormat>(sums, weights, tokens, n_token_tiles, k, block, at);
    }
    if (own.parts == 1) {
      add_own_segment(totals, sums);
    } else {
      add_segments(totals, sums, partials, min(own.parts, segments - first), own);
    }
  }
  return totals;
}

// out[t, r] for the tile's rows and this lane's tokens; `out` points at the tile's first row.
template <int kRowTiles, int kTokenTiles>
inline void store_tile(
    thread const Totals<kRowTiles, kTokenTiles>& totals,
    thread const TokenColumns<kTokenTiles>& columns,
    device float* out,
    size_t stride,
    int n_rows,
    MatrixLane at) {
  DSV4_UNROLL
  for (int i = 0; i < kRowTiles; ++i) {
    const int row = kFragment * i + at.row;
    DSV4_UNROLL
    for (int j = 0; j < kTokenTiles; ++j) {
      for (int c = 0; c < 2; ++c) {
        if (row < n_rows && columns.rows[j][c] >= 0) {
          out[columns.rows[j][c] * stride + row] = totals.of[i][j][c];
        }
      }
    }
  }
}
