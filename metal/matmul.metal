// Products with matrices stored as GGUF blocks, and decoded rows of them.
//
//   matmul   out[t, n] = sum_k x[t, g K + k] W[n, k],   g = n / (N / groups)
//   embed    out[t, :] = W[tokens[t], :], NaN where tokens[t] is no row
//
// Shapes    x [T, groups * K] X   weight [N, row_bytes] u8   out [T, N] f32
//           tokens [T] i32   weight [V, row_bytes] u8   out [T, K] f32
//           X is float or bfloat; blocks of any enum BlockFormat
// Threads   matmul_few: a simdgroup computes 16 rows x 8 tokens over every parts-th segment of
//           512 values; grid (rows / few_rows, ceil(T / 8), groups) of (32, 8)
//           matmul_many: 32 rows x 32 tokens;
//           grid (ceil(T / 32), rows / many_rows, groups) of (32, 4)
//           embed: a thread decodes 8 values; grid (ceil(K / 8 / 256), T) of 256
// Traffic   matmul_few: N * row_bytes per 8 tokens, x from the caches
//           matmul_many: N * row_bytes per 32 tokens, T * K * sizeof(X) per many_rows rows
// Numerics  f32 products and sums; the order of tile_products.h in both launches
// Page      docs/kernels/matmul.md

#include "matmul.h"
#include "tile_products.h"

// The rows of x of tokens [first, n) for this lane's columns; a row of x has `groups` parts.
template <int kTokenTiles>
inline TokenColumns<kTokenTiles> token_columns(int first, int n, MatrixLane at) {
  TokenColumns<kTokenTiles> columns;
  for (int j = 0; j < kTokenTiles; ++j) {
    for (int c = 0; c < 2; ++c) {
      const int token = first + kFragment * j + at.column + c;
      columns.rows[j][c] = token < n ? token : -1;
    }
  }
  return columns;
}

// One tile of the rows of a group, times the tokens from `first_token` on.
template <int kFormat, int kRowTiles, int kTokenTiles, typename X>
inline void multiply_tile(
    const device X* x,
    const device uchar* weight,
    device float* out,
    constant MatmulParams& p,
    int group,
    int first_token,
    threadgroup Partial<kRowTiles, kTokenTiles>* partials,
    TilePart own) {
  const int group_rows = p.n_rows / p.groups, n_bytes = int(row_bytes(kFormat, p.k));
  const int first_row = own.tile * kRowTiles * kFragment;
  const int row = group * group_rows + first_row;
  const MatrixLane at = matrix_lane(own.lane);
  const WeightRows weights = {
      weight + size_t(row) * n_bytes, n_bytes, group_rows - first_row};
  const TokenColumns<kTokenTiles> columns =
      token_columns<kTokenTiles>(first_token, p.n_tokens, at);
  const Totals<kRowTiles, kTokenTiles> totals = sum_tile<kFormat, kRowTiles>(
      weights,
      x + size_t(group) * p.k,
      size_t(p.groups) * p.k,
      columns,
      ceil_div(p.n_tokens - first_token, kFragment),
      p.k,
      partials,
      own);
  if (own.part == 0) {
    store_tile(totals, columns, out + row, size_t(p.n_rows), weights.n, at);
  }
}

template <typename X, int kFormat>
[[kernel]] void matmul_few(
    const device X* x [[buffer(kMatmulX)]],
    const device uchar* weight [[buffer(kMatmulWeight)]],
    device float* out [[buffer(kMatmulOut)]],
    constant MatmulParams& p [[buffer(kMatmulParams)]],
    uint3 at [[threadgroup_position_in_grid]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  threadgroup Partial<kFewRowTiles, 1> partials[kFewSimdgroups];
  static_assert(sizeof(partials) <= 32768, "threadgroup memory");
  const TilePart own = tile_part(few_parts(p.k), kFewSimdgroups, at.x, simdgroup, lane);
  multiply_tile<kFormat>(
      x, weight, out, p, int(at.z), int(at.y) * kFewTokens, partials, own);
}

template <typename X, int kFormat>
[[kernel]] void matmul_many(
    const device X* x [[buffer(kMatmulX)]],
    const device uchar* weight [[buffer(kMatmulWeight)]],
    device float* out [[buffer(kMatmulOut)]],
    constant MatmulParams& p [[buffer(kMatmulParams)]],
    uint3 at [[threadgroup_position_in_grid]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  threadgroup Partial<kManyRowTiles, kManyTokenTiles> partials[kManySimdgroups];
  static_assert(sizeof(partials) <= 32768, "threadgroup memory");
  const int parts = many_parts(p.k, p.n_rows / p.groups, p.groups, p.n_tokens);
  const TilePart own = tile_part(parts, kManySimdgroups, at.y, simdgroup, lane);
  multiply_tile<kFormat>(
      x, weight, out, p, int(at.z), int(at.x) * kManyTokens, partials, own);
}

// Values [first, first + 4) of a row of n values.
inline void store_four(device float* row, int first, int n, float4 values) {
  for (int i = 0; i < kSlotValues && first + i < n; ++i) {
    row[first + i] = values[i];
  }
}

template <int kFormat>
[[kernel]] void embed(
    const device int* tokens [[buffer(kEmbedTokens)]],
    const device uchar* weight [[buffer(kEmbedWeight)]],
    device float* out [[buffer(kEmbedOut)]],
    constant EmbedParams& p [[buffer(kEmbedParams)]],
    uint2 threadgroup_at [[threadgroup_position_in_grid]],
    uint thread_at [[thread_index_in_threadgroup]]) {
  const int at = int(threadgroup_at.x) * kEmbedThreads + int(thread_at);
  const int block = at / kLanesPerBlock, q = at % kLanesPerBlock;
  if (block >= ceil_div(p.k, kBlockValues)) {
    return;
  }
  const int token = tokens[threadgroup_at.y];
  float4 slots[2] = {float4(NAN), float4(NAN)};
  if (token >= 0 && token < p.n_rows) {
    BlockValues<kFormat>::decode(
        weight + size_t(token) * size_t(row_bytes(kFormat, p.k)), block, q, p.k, slots);
  }
  out += size_t(threadgroup_at.y) * p.k;
  for (int s = 0; s < 2; ++s) {
    const int start = BlockValues<kFormat>::slot_start(2 * q + s);
    store_four(out, block * kBlockValues + start, p.k, slots[s]);
  }
}

#ifdef DSV4_EVERY_KERNEL
instantiate_kernel(matmul_few, float_0, float, kFormatF32);
instantiate_kernel(matmul_few, float_1, float, kFormatF16);
instantiate_kernel(matmul_few, float_8, float, kFormatQ8_0);
instantiate_kernel(matmul_few, float_30, float, kFormatBF16);
instantiate_kernel(matmul_few, float_39, float, kFormatMXFP4);
instantiate_kernel(matmul_few, float_2, float, kFormatQ4_0);
instantiate_kernel(matmul_few, float_3, float, kFormatQ4_1);
instantiate_kernel(matmul_few, float_6, float, kFormatQ5_0);
instantiate_kernel(matmul_few, float_7, float, kFormatQ5_1);
instantiate_kernel(matmul_few, float_10, float, kFormatQ2_K);
instantiate_kernel(matmul_few, float_11, float, kFormatQ3_K);
instantiate_kernel(matmul_few, float_12, float, kFormatQ4_K);
instantiate_kernel(matmul_few, float_13, float, kFormatQ5_K);
instantiate_kernel(matmul_few, float_14, float, kFormatQ6_K);
instantiate_kernel(matmul_few, float_16, float, kFormatIQ2_XXS);
instantiate_kernel(matmul_few, float_17, float, kFormatIQ2_XS);
instantiate_kernel(matmul_few, float_18, float, kFormatIQ3_XXS);
instantiate_kernel(matmul_few, float_19, float, kFormatIQ1_S);
instantiate_kernel(matmul_few, float_20, float, kFormatIQ4_NL);
instantiate_kernel(matmul_few, float_21, float, kFormatIQ3_S);
instantiate_kernel(matmul_few, float_22, float, kFormatIQ2_S);
instantiate_kernel(matmul_few, float_23, float, kFormatIQ4_XS);
instantiate_kernel(matmul_few, float_29, float, kFormatIQ1_M);
instantiate_kernel(matmul_few, bfloat_0, bfloat, kFormatF32);
instantiate_kernel(matmul_few, bfloat_1, bfloat, kFormatF16);
instantiate_kernel(matmul_few, bfloat_8, bfloat, kFormatQ8_0);
instantiate_kernel(matmul_few, bfloat_30, bfloat, kFormatBF16);
instantiate_kernel(matmul_few, bfloat_39, bfloat, kFormatMXFP4);
instantiate_kernel(matmul_many, float_0, float, kFormatF32);
instantiate_kernel(matmul_many, float_1, float, kFormatF16);
instantiate_kernel(matmul_many, float_8, float, kFormatQ8_0);
instantiate_kernel(matmul_many, float_30, float, kFormatBF16);
instantiate_kernel(matmul_many, float_39, float, kFormatMXFP4);
instantiate_kernel(matmul_many, float_2, float, kFormatQ4_0);
instantiate_kernel(matmul_many, float_3, float, kFormatQ4_1);
instantiate_kernel(matmul_many, float_6, float, kFormatQ5_0);
instantiate_kernel(matmul_many, float_7, float, kFormatQ5_1);
instantiate_kernel(matmul_many, float_10, float, kFormatQ2_K);
instantiate_kernel(matmul_many, float_11, float, kFormatQ3_K);
instantiate_kernel(matmul_many, float_12, float, kFormatQ4_K);
instantiate_kernel(matmul_many, float_13, float, kFormatQ5_K);
instantiate_kernel(matmul_many, float_14, float, kFormatQ6_K);
instantiate_kernel(matmul_many, float_16, float, kFormatIQ2_XXS);
instantiate_kernel(matmul_many, float_17, float, kFormatIQ2_XS);
instantiate_kernel(matmul_many, float_18, float, kFormatIQ3_XXS);
instantiate_kernel(matmul_many, float_19, float, kFormatIQ1_S);
instantiate_kernel(matmul_many, float_20, float, kFormatIQ4_NL);
instantiate_kernel(matmul_many, float_21, float, kFormatIQ3_S);
instantiate_kernel(matmul_many, float_22, float, kFormatIQ2_S);
instantiate_kernel(matmul_many, float_23, float, kFormatIQ4_XS);
instantiate_kernel(matmul_many, float_29, float, kFormatIQ1_M);
instantiate_kernel(matmul_many, bfloat_0, bfloat, kFormatF32);
instantiate_kernel(matmul_many, bfloat_1, bfloat, kFormatF16);
instantiate_kernel(matmul_many, bfloat_8, bfloat, kFormatQ8_0);
instantiate_kernel(matmul_many, bfloat_30, bfloat, kFormatBF16);
instantiate_kernel(matmul_many, bfloat_39, bfloat, kFormatMXFP4);
instantiate_kernel(embed, 0, kFormatF32);
instantiate_kernel(embed, 1, kFormatF16);
instantiate_kernel(embed, 8, kFormatQ8_0);
instantiate_kernel(embed, 30, kFormatBF16);
instantiate_kernel(embed, 39, kFormatMXFP4);
instantiate_kernel(embed, 2, kFormatQ4_0);
instantiate_kernel(embed, 3, kFormatQ4_1);
instantiate_kernel(embed, 6, kFormatQ5_0);
instantiate_kernel(embed, 7, kFormatQ5_1);
instantiate_kernel(embed, 10, kFormatQ2_K);
instantiate_kernel(embed, 11, kFormatQ3_K);
instantiate_kernel(embed, 12, kFormatQ4_K);
instantiate_kernel(embed, 13, kFormatQ5_K);
instantiate_kernel(embed, 14, kFormatQ6_K);
instantiate_kernel(embed, 16, kFormatIQ2_XXS);
instantiate_kernel(embed, 17, kFormatIQ2_XS);
instantiate_kernel(embed, 18, kFormatIQ3_XXS);
instantiate_kernel(embed, 19, kFormatIQ1_S);
instantiate_kernel(embed, 20, kFormatIQ4_NL);
instantiate_kernel(embed, 21, kFormatIQ3_S);
instantiate_kernel(embed, 22, kFormatIQ2_S);
instantiate_kernel(embed, 23, kFormatIQ4_XS);
instantiate_kernel(embed, 29, kFormatIQ1_M);
#endif
