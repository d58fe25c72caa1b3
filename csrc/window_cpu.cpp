#include "window_cpu.h"

#include "row_math.h"

namespace mlx_dsv4::DSV4_ISA {
namespace {

template <typename Row>
void rows(
    const float* kv,
    const float* norm,
    const float* rotation,
    Row* out,
    float* scratch,
    WindowRowsParams p,
    int64_t begin,
    int64_t end) {
  for (int64_t t = begin; t < end; ++t) {
    load_row(scratch, kv + t * p.dim, p.dim);
    rms_norm(scratch, norm, p.dim, p.eps);
    rotate_tail(scratch, p.dim, rotation + t * 2 * p.pairs, p.pairs, false);
    round_trip(scratch, p.dim, p.pairs, p.round_trip);
    store_row(out + t * p.dim, scratch, p.dim);
  }
}

}  // namespace

const WindowKernels& kernels(const WindowKernels*) {
  static constexpr WindowKernels table{rows<float>, rows<uint16_t>};
  return table;
}

}  // namespace mlx_dsv4::DSV4_ISA
