// Panel products: up to kPanelRows rows of a packed matrix times any tokens.
//
// Every product is summed the same way, whatever the tile and the number of tokens: lane l of
// one accumulator takes k = l, l + 16, ... by fma(x, w, sum), then reduce_add. Rows of x are
// packed (packed_stride), so whole lanes can be read. Only *_cpu.cpp may include it.
#pragma once

#include <utility>

#include "blocks_cpu.h"
#include "panel.h"

namespace mlx_dsv4::DSV4_ISA {

// Tiles whose sums stay in registers, beside a column of x and one value of w.
constexpr int kTileRows = 4;
constexpr int kTileTokens = simd::kRegisters >= 32 ? 6 : 3;
// Up to this many tokens a row is decoded in registers; beyond, its values go through memory.
constexpr int kWholeSums = simd::kRegisters * simd::kPartLanes / 16;
constexpr int kFusedTokens = kWholeSums >= 32 ? 4 : 2;

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
  constexpr int kStep = Blocks::kStep;
  const uint8_t* rows = w.data + first_row * w.stride_bytes;
  F32x16 sums[kRows][kTokens];
  for (int r = 0; r < kRows; ++r) {
    for (int t = 0; t < kTokens; ++t) {
      sums[r][t] = simd::set1(0);
    }
  }
  typename Blocks::Scales scales[kRows];
  F32x16 values[kStep / 16];
  int i = 0;
  for (; i + Blocks::kElements <= w.k; i += Blocks::kElements, rows += Blocks::kBytes) {
    for (int r = 0; r < kRows; ++r) {
      for (int line = 0; line < Blocks::kBytes; line += 64) {
        __builtin_prefetch(rows + (r + kRows) * w.stride_bytes + line, 0, 2);
      }
      scales[r].load(rows + r * w.stride_bytes);
    }
    // Written out, so that where a part lies in its block is known to the compiler.
#pragma GCC unroll 8
    for (int part = 0; part < Blocks::kElements / kStep; ++part) {
      for (int r = 0; r < kRows; ++r) {
        Blocks::decode(rows + r * w.stride_bytes, scales[r], part, values);
        for (int j = 0; j < kStep / 16; ++j) {
          for (int t = 0; t < kTokens; ++t) {
            sums[r][t] = simd::fma(
                simd::load(x[t] + i + part * kStep + 16 * j), values[j], sums[r][t]);
          }
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
  constexpr int kRows = kWholeSums >= 32 || kTokens == 1 ? 4 : 2;
  int row = 0;
  for (; row + kRows <= w.n; row += kRows) {
    multiply_fused<Blocks, kRows, kTokens>(w, row, x, out);
  }
  for (; row < w.n; ++row) {
    multiply_fused<Blocks, 1, kTokens>(w, row, x, out);
  }
}

// fn(0), ..., fn(n - 1), written out so that arrays indexed by it are registers.
template <typename Fn, int... i>
[[gnu::always_inline]] inline void unroll(Fn fn, std::integer_sequence<int, i...>) {
  (fn(i), ...);
}
template <int n, typename Fn>
[[gnu::always_inline]] inline void unrolled(Fn fn) {
  unroll(fn, std::make_integer_sequence<int, n>{});
}

// Adds `depth` terms to the sums of kTileRows x kTokens products, some lanes at a time.
template <int kTokens>
void add_tile(
    const float (*w)[kPanelDepth + 16],
    const float* const* x,
    int first,
    int depth,
    float* sums) {
  constexpr int kProducts = kTileRows * kTokens;
  for (int lane = 0; lane < 16; lane += simd::kPartLanes) {
    simd::Part tile[kProducts];
    const float* columns[kTokens];
    unrolled<kTokens>([&](int t) { columns[t] = x[t] + first; });
    if (first == 0) {
      unrolled<kProducts>([&](int i) { tile[i] = simd::zero_part(); });
    } else {
      unrolled<kProducts>(
          [&](int i) { tile[i] = simd::load_part(sums + 16 * i + lane); });
    }
    for (int k = lane; k < depth; k += 16) {
      simd::Part column[kTokens];
      unrolled<kTokens>([&](int t) { column[t] = simd::load_part(columns[t] + k); });
      unrolled<kTileRows>([&](int r) {
        const simd::Part value = simd::load_part(w[r] + k);
        unrolled<kTokens>([&](int t) {
          simd::Part& sum = tile[r * kTokens + t];
          sum = simd::fma_part(column[t], value, sum);
        });
      });
    }
    unrolled<kProducts>([&](int i) { simd::store_part(sums + 16 * i + lane, tile[i]); });
  }
}

// add_tile for n_tokens <= kTokens.
template <int kTokens>
void add_part_tile(
    int n_tokens,
    const float (*w)[kPanelDepth + 16],
    const float* const* x,
    int first,
    int depth,
    float* sums) {
  if constexpr (kTokens > 1) {
    if (n_tokens < kTokens) {
      return add_part_tile<kTokens - 1>(n_tokens, w, x, first, depth, sums);
    }
  }
  add_tile<kTokens>(w, x, first, depth, sums);
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

inline int at_most(int n, int most) { return n < most ? n : most; }

inline void multiply_many(
    const PackedRows& w,
    const float* const* x,
    int n_tokens,
    PanelScratch& scratch,
    Products out) {
  const int n_rows = (w.n + kTileRows - 1) / kTileRows * kTileRows;
  // A tile of w stays in the L1 cache for two tiles of x.
  constexpr int kPairTokens = 2 * kTileTokens;
  for (int first = 0; first < w.k; first += kPanelDepth) {
    const int depth = at_most(w.k - first, kPanelDepth);
    decode_panel(w, first, depth, n_rows, scratch);
    for (int pair = 0; pair < n_tokens; pair += kPairTokens) {
      const int end = at_most(n_tokens, pair + kPairTokens);
      for (int row = 0; row < n_rows; row += kTileRows) {
        for (int t = pair; t < end; t += kTileTokens) {
          const int n = at_most(end - t, kTileTokens);
          float* sums = scratch.sums + 16 * (n_rows * t + row * n);
          add_part_tile<kTileTokens>(n, scratch.weights + row, x + t, first, depth, sums);
        }
      }
    }
  }
  for (int t = 0; t < n_tokens; ++t) {
    const int in_tile = t % kTileTokens, tile = t - in_tile;
    const int n = at_most(n_tokens - tile, kTileTokens);
    for (int r = 0; r < w.n; ++r) {
      // Within a tile rows come first, so row r is n sums after row r - 1.
      const int at = n_rows * tile + r * n + in_tile;
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
