// Window: the row of each token, and the ring that keeps the newest of them.
//
//   row[t]         = round(rope_t(norm * kv[t] / sqrt(mean(kv[t]^2) + eps)))
//   ring[p mod W]  = row of position p, the newest W rows only
//
// Shapes    kv [T, D] f32   norm [D] f32   rotation [T, R/2, 2] f32   out, rows [T, D] T_
//           attention_kv [W + N, D] T_   T_ is bfloat or float; D a multiple of 16 up to
//           2048 for rows, any for the write
// Threads   window_rows: one simdgroup per token, lane l owns dims 4l .. 4l + 3 of each 128;
//           grid (ceil(T / 4), 1, 1) of threadgroups (128, 1, 1)
//           window_write: one thread per word of four values (one where D % 4 is not 0);
//           grid (ceil(words / 256), min(T, W), 1)
// Traffic   window_rows: 4 D bytes read and 2 D written per token; window_write: 2 D each
// Numerics  f32; a lane sums the squares of its dims ascending by fused multiply-add, then
//           lanes 16, 8, 4, 2, 1 apart are added; words are copied bit for bit
// Page      docs/kernels/window.md

#include "window.h"
#include "row_math.h"

using namespace metal;

template <typename T, int kSlices>
[[kernel]] void window_rows(
    const device float* kv [[buffer(kWindowRowsKv)]],
    const device float* norm [[buffer(kWindowRowsNorm)]],
    const device float* rotation [[buffer(kWindowRowsRotation)]],
    device T* out [[buffer(kWindowRowsOut)]],
    constant WindowRowsParams& p [[buffer(kWindowRowsParams)]],
    uint group [[threadgroup_position_in_grid]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  const int t = int(group) * kRowsPerGroup + int(simdgroup);
  if (t >= p.n_tokens) {
    return;
  }
  LaneRow<kSlices> row = load_row<kSlices>(kv + size_t(t) * p.dim, p.dim, lane);
  rms_norm(row, p.dim, p.eps);
  weigh(row, norm, p.dim, lane);
  rotate_tail(row, p.dim, rotation + size_t(t) * 2 * p.pairs, p.pairs, lane);
  round_trip(row, p.dim, p.pairs, p.round_trip, lane);
  store_row(out + size_t(t) * p.dim, row, p.dim, lane);
}

template <typename Word>
[[kernel]] void window_write(
    const device Word* rows [[buffer(kWindowWriteRows)]],
    device Word* attention_kv [[buffer(kWindowWriteAttentionKv)]],
    constant WindowWriteParams& p [[buffer(kWindowWriteParams)]],
    uint2 at [[thread_position_in_grid]]) {
  const int word = int(at.x);
  if (word >= p.dim) {
    return;
  }
  const int t = first_written_row(p.n_tokens, p.window) + int(at.y);
  const int slot = window_slot(p.start + t, p.window);
  attention_kv[size_t(slot) * p.dim + word] = rows[size_t(t) * p.dim + word];
}

#ifdef DSV4_EVERY_KERNEL
// clang-format off
instantiate_kernel(window_rows, bfloat_4, bfloat, 4)
instantiate_kernel(window_rows, bfloat_2, bfloat, 2)
instantiate_kernel(window_rows, float_4, float, 4)
instantiate_kernel(window_rows, float_2, float, 2)
instantiate_kernel(window_write, packed_ushort4, packed_ushort4)
instantiate_kernel(window_write, packed_uint4, packed_uint4)
// clang-format on
#endif
