// Panel products: up to kPanelRows rows of a packed matrix times any tokens.
//
// Every product is summed the same way, whatever the tile and the number of tokens: lane l of
// one accumulator takes k = l, l + 16, ... by fma(x, w, sum), then reduce_add. Rows of x are
// packed (packed_stride), so whole lanes can be read. Only *_cpu.cpp may include it.
#pragma once

#include "blocks_cpu.h"
#include "panel.h"

namespace mlx_dsv4::DSV4_ISA {

// Tiles whose sums stay in registers.
constexpr bool kManyRegisters = simd::kRegisters >= 32;
constexpr int kTileRows = kManyRegisters ? 4 : 2;
constexpr int kTileTokens = kManyRegisters ? 6 : 2;
// Up to this many tokens a row is decoded in registers; beyond, its values go through memory.
constexpr int kFusedTokens = kManyRegisters ? 4 : 2;

struct PackedRows {
  const uint8_t* data;
  int64_t stride_bytes;
  int format;  // enum BlockFormat
  int k;
  int n;  // at most kPanelRows
};

using Products = float (*)[kPanelRows];  // [token][row]

template <typename Blocks, int kRows, int kTokens>
void multiply_fused(
    const PackedRows& w, int first_row, const float* const* x, Products out) {
  constexpr int kStep = Blocks::kElements;
  const uint8_t* rows = w.data + first_row * w.stride_bytes;
  F32x16 sums[kRows][kTokens];
  for (int r = 0; r < kRows; ++r) {
    for (int t = 0; t < kTokens; ++t) {
      sums[r][t] = simd::set1(0);
    }
  }
  F32x16 values[kStep / 16];
  int i = 0;
  for (; i + kStep <= w.k; i += kStep, rows += Blocks::kBytes) {
    for (int r = 0; r < kRows; ++r) {
      Blocks::decode(rows + r * w.stride_bytes, values);
      for (int j = 0; j < kStep / 16; ++j) {
        for (int t = 0; t < kTokens; ++t) {
          sums[r][t] = simd::fma(simd::load(x[t] + i + 16 * j), values[j], sums[r][t]);
        }
      }
    }
  }
  for (int r = 0; r < kRows; ++r) {
    if (i < w.k) {
      decode_tail<Blocks>(rows + r * w.stride_bytes, w.k - i, values);
    }
    for (int t = 0; t < kTokens; ++t) {
      if (i < w.k) {
        sums[r][t] = simd::fma(simd::load(x[t] + i), values[0], sums[r][t]);
      }
      out[t][first_row + r] = simd::reduce_add(sums[r][t]);
    }
  }
}

template <typename Blocks, int kTokens>
void multiply_few(
    const PackedRows& w, const float* const* x, int n_tokens, Products out) {
  if constexpr (kTokens > 1) {
    if (n_tokens < kTokens) {
      return multiply_few<Blocks, kTokens - 1>(w, x, n_tokens, out);
    }
  }
  constexpr int kRows = kManyRegisters || kTokens == 1 ? 4 : 2;
  int row = 0;
  for (; row + kRows <= w.n; row += kRows) {
    multiply_fused<Blocks, kRows, kTokens>(w, row, x, out);
  }
  for (; row < w.n; ++row) {
    multiply_fused<Blocks, 1, kTokens>(w, row, x, out);
  }
}

// Adds `depth` terms to the sums of kTileRows x kTokens products.
template <int kTokens>
void add_tile(
    const float (*w)[kPanelDepth + 16],
    const float* const* x,
    int first,
    int depth,
    float* sums) {
  F32x16 tile[kTileRows][kTokens];
  for (int r = 0; r < kTileRows; ++r) {
    for (int t = 0; t < kTokens; ++t) {
      tile[r][t] = first == 0 ? simd::set1(0) : simd::load(sums + 16 * (r * kTokens + t));
    }
  }
  const float* columns[kTokens];
  for (int t = 0; t < kTokens; ++t) {
    columns[t] = x[t] + first;
  }
  for (int i = 0; i < depth; i += 16) {
    F32x16 values[kTileRows];
    for (int r = 0; r < kTileRows; ++r) {
      values[r] = simd::load(w[r] + i);
    }
    for (int t = 0; t < kTokens; ++t) {
      const F32x16 column = simd::load(columns[t] + i);
      for (int r = 0; r < kTileRows; ++r) {
        tile[r][t] = simd::fma(column, values[r], tile[r][t]);
      }
    }
  }
  for (int r = 0; r < kTileRows; ++r) {
    for (int t = 0; t < kTokens; ++t) {
      simd::store(sums + 16 * (r * kTokens + t), tile[r][t]);
    }
  }
}

// Adds `depth` terms to the sums of n_rows x n_tokens products, n_tokens <= kTokens.
template <int kTokens>
void add_tiles(
    int n_rows,
    int n_tokens,
    const float* const* x,
    int first,
    int depth,
    PanelScratch& scratch,
    float* sums) {
  if constexpr (kTokens > 1) {
    if (n_tokens < kTokens) {
      return add_tiles<kTokens - 1>(n_rows, n_tokens, x, first, depth, scratch, sums);
    }
  }
  for (int row = 0; row < n_rows; row += kTileRows) {
    add_tile<kTokens>(scratch.weights + row, x, first, depth, sums + 16 * row * kTokens);
  }
}

// The rows' values [first, first + depth) in scratch memory; zero rows complete the last tile.
inline void decode_panel(
    const PackedRows& w, int first, int depth, int n_rows, PanelScratch& scratch) {
  with_blocks(w.format, [&](auto blocks) {
    for (int r = 0; r < w.n; ++r) {
      decode_values<decltype(blocks)>(
          w.data + r * w.stride_bytes, first, depth, scratch.weights[r]);
    }
  });
  for (int r = w.n; r < n_rows; ++r) {
    std::memset(scratch.weights[r], 0, sizeof(scratch.weights[r]));
  }
}

inline void multiply_many(
    const PackedRows& w,
    const float* const* x,
    int n_tokens,
    PanelScratch& scratch,
    Products out) {
  const int n_rows = (w.n + kTileRows - 1) / kTileRows * kTileRows;
  for (int first = 0; first < w.k; first += kPanelDepth) {
    const int left = w.k - first;
    const int depth = left < kPanelDepth ? left : kPanelDepth;
    decode_panel(w, first, depth, n_rows, scratch);
    for (int t = 0; t < n_tokens; t += kTileTokens) {
      const int n = n_tokens - t < kTileTokens ? n_tokens - t : kTileTokens;
      float* sums = scratch.sums + 16 * n_rows * t;
      add_tiles<kTileTokens>(n_rows, n, x + t, first, depth, scratch, sums);
    }
  }
  for (int t = 0; t < n_tokens; ++t) {
    const int in_tile = t % kTileTokens, tile = t - in_tile;
    const int n = n_tokens - tile < kTileTokens ? n_tokens - tile : kTileTokens;
    for (int r = 0; r < w.n; ++r) {
      const int row = r / kTileRows * kTileRows;
      const int at = n_rows * tile + row * n + (r - row) * n + in_tile;
      out[t][r] = simd::reduce_add(simd::load(scratch.sums + 16 * at));
    }
  }
}

// out[t][r] = row r of w times x[t], for n_tokens <= kPanelTokens packed rows of x.
inline void multiply_panel(
    const PackedRows& w,
    const float* const* x,
    int n_tokens,
    PanelScratch& scratch,
    Products out) {
  if (n_tokens > kFusedTokens) {
    return multiply_many(w, x, n_tokens, scratch, out);
  }
  with_blocks(w.format, [&](auto blocks) {
    multiply_few<decltype(blocks), kFusedTokens>(w, x, n_tokens, out);
  });
}

// Packs `n` rows of k values: float32, zeros up to whole lanes.
template <typename Row>
void pack_rows(const Row* rows, int64_t n, int k, float* packed) {
  for (int64_t i = 0; i < n; ++i, rows += k, packed += packed_stride(k)) {
    int j = 0;
    for (; j + 16 <= k; j += 16) {
      simd::store(packed + j, simd::load_row(rows + j));
    }
    if (j < k) {
      Row tail[16] = {};
      std::memcpy(tail, rows + j, sizeof(Row) * (k - j));
      simd::store(packed + j, simd::load_row(tail));
    }
  }
}

}  // namespace mlx_dsv4::DSV4_ISA
