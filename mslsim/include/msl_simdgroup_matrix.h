// <metal_simdgroup_matrix>: 8x8 matrices, two elements per lane.
#pragma once

#include "msl_simdgroups.h"

namespace metal {
namespace _msl {

// The row of a lane's elements and the column of the first; the second is to its right. Apple
// does not document the places, but shaders that use thread_elements() rely on them.
MSL_INLINE uint row_of(uint lane) { return (lane / 4 & 4) + lane / 2 % 4; }
MSL_INLINE uint column_of(uint lane) { return (lane / 4 & 2) * 2 + lane % 2 * 2; }

struct LaneOperands {
  float a[2], b[2], c[2];
};

}  // namespace _msl
}  // namespace metal

#ifdef __CUDA__
#include "msl_cuda_matrix_product.h"
#else
#include "msl_matrix_product.h"
#endif

namespace metal {

template <class T, int Columns = 8, int Rows = 8>
struct simdgroup_matrix {
  static_assert(Columns == 8 && Rows == 8, "simdgroup matrices are 8x8");
  using storage_type = vec<T, 2>;
  vec<T, 2> elements;

  simdgroup_matrix() = default;
  MSL_INLINE explicit simdgroup_matrix(T diagonal) {
    const uint lane = _msl::lane_id();
    const uint row = _msl::row_of(lane), column = _msl::column_of(lane);
    elements =
        vec<T, 2>(row == column ? diagonal : T(0), row == column + 1 ? diagonal : T(0));
  }
  MSL_INLINE vec<T, 2>& thread_elements() { return elements; }
  MSL_INLINE const vec<T, 2>& thread_elements() const { return elements; }
};

template <class T, int Columns = 8, int Rows = 8>
MSL_INLINE simdgroup_matrix<T, Columns, Rows> make_filled_simdgroup_matrix(T value) {
  simdgroup_matrix<T, Columns, Rows> matrix;
  matrix.elements = vec<T, 2>(value, value);
  return matrix;
}
template <class T, int Columns = 8, int Rows = 8>
MSL_INLINE simdgroup_matrix<T, Columns, Rows> make_diagonal_simdgroup_matrix(T value) {
  return simdgroup_matrix<T, Columns, Rows>(value);
}

// Where a lane's elements lie in memory: `at` and `next` elements on.
namespace _msl {
struct Place {
  ulong at, next;
};
MSL_INLINE Place place(ulong elements_per_row, ulong2 origin, bool transposed) {
  const uint lane = lane_id();
  const ulong row = row_of(lane), column = column_of(lane);
  return transposed
             ? Place{(origin.y + column) * elements_per_row + origin.x + row, elements_per_row}
             : Place{(origin.y + row) * elements_per_row + origin.x + column, 1};
}
}  // namespace _msl

template <class T, class Source>
MSL_INLINE void simdgroup_load(
    simdgroup_matrix<T>& matrix,
    const Source* source,
    ulong elements_per_row = 8,
    ulong2 origin = ulong2(0, 0),
    bool transposed = false) {
  static_assert(
      is_same_v<remove_cv_t<Source>, T>, "simdgroup_load: element types differ");
  const _msl::Place place = _msl::place(elements_per_row, origin, transposed);
  _msl::converge();
  matrix.elements.s[0] = source[place.at];
  matrix.elements.s[1] = source[place.at + place.next];
}
template <class T, class Target>
MSL_INLINE void simdgroup_store(
    const simdgroup_matrix<T>& matrix,
    Target* target,
    ulong elements_per_row = 8,
    ulong2 origin = ulong2(0, 0),
    bool transposed = false) {
  static_assert(is_same_v<Target, T>, "simdgroup_store: element types differ");
  const _msl::Place place = _msl::place(elements_per_row, origin, transposed);
  _msl::converge();
  target[place.at] = matrix.elements.s[0];
  target[place.at + place.next] = matrix.elements.s[1];
}

template <class D, class A, class B, class C>
MSL_INLINE void simdgroup_multiply_accumulate(
    simdgroup_matrix<D>& d,
    const simdgroup_matrix<A>& a,
    const simdgroup_matrix<B>& b,
    const simdgroup_matrix<C>& c) {
  const _msl::LaneOperands mine{
      {float(a.elements.s[0]), float(a.elements.s[1])},
      {float(b.elements.s[0]), float(b.elements.s[1])},
      {float(c.elements.s[0]), float(c.elements.s[1])}};
  float sums[2];
  _msl::multiply_accumulate(mine, sums);
  d.elements.s[0] = D(sums[0]);
  d.elements.s[1] = D(sums[1]);
}
template <class D, class A, class B>
MSL_INLINE void simdgroup_multiply(
    simdgroup_matrix<D>& d, const simdgroup_matrix<A>& a, const simdgroup_matrix<B>& b) {
  simdgroup_multiply_accumulate(d, a, b, make_filled_simdgroup_matrix<float>(0.0f));
}
template <class T>
MSL_INLINE simdgroup_matrix<T> operator*(
    const simdgroup_matrix<T>& a, const simdgroup_matrix<T>& b) {
  simdgroup_matrix<T> d;
  simdgroup_multiply(d, a, b);
  return d;
}

}  // namespace metal

typedef metal::simdgroup_matrix<float> simdgroup_float8x8;
typedef metal::simdgroup_matrix<half> simdgroup_half8x8;
typedef metal::simdgroup_matrix<bfloat> simdgroup_bfloat8x8;
namespace metal {
using ::simdgroup_bfloat8x8;
using ::simdgroup_float8x8;
using ::simdgroup_half8x8;
}  // namespace metal
