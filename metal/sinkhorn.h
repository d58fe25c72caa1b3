// The mixing matrix of a token, S x S for S <= 8, in the registers of one simdgroup.
#pragma once

#include "common.h"

using namespace metal;

// Element (s, d) is value s / 4 of lane s % 4 * 8 + d. The rest reaches no element.
template <int S>
struct Comb {
  enum { kValues = (S + 3) / 4, kLaneRows = 4 };
  float values[kValues];

  // Sums over the destinations of each source, ascending.
  void row_sums(thread float* sums, uint lane) const thread {
    for (int i = 0; i < kValues; ++i) {
      sums[i] = 0.0f;
      for (int d = 0; d < S; ++d) {
        sums[i] += simd_shuffle(values[i], ushort((lane & 24) + d));
      }
    }
  }

  // The sum over the sources of this lane's destination, ascending.
  float column_sum(uint lane) const thread {
    float sum = 0.0f;
    for (int s = 0; s < S; ++s) {
      const ushort owner = ushort(s % kLaneRows * 8 + int(lane & 7));
      sum += simd_shuffle(values[s / kLaneRows], owner);
    }
    return sum;
  }

  void softmax_rows(float eps, uint lane) thread {
    for (int i = 0; i < kValues; ++i) {
      float top = simd_shuffle(values[i], ushort(lane & 24));
      for (int d = 1; d < S; ++d) {
        top = max(top, simd_shuffle(values[i], ushort((lane & 24) + d)));
      }
      values[i] = precise::exp(values[i] - top);
    }
    float sums[kValues];
    row_sums(sums, lane);
    for (int i = 0; i < kValues; ++i) {
      values[i] = values[i] / sums[i] + eps;
    }
  }

  void divide_rows(float eps, uint lane) thread {
    float sums[kValues];
    row_sums(sums, lane);
    for (int i = 0; i < kValues; ++i) {
      values[i] /= sums[i] + eps;
    }
  }

  void divide_columns(float eps, uint lane) thread {
    const float sum = column_sum(lane) + eps;
    for (int i = 0; i < kValues; ++i) {
      values[i] /= sum;
    }
  }

  // Alternates the two, columns first and last.
  void sinkhorn(int iterations, float eps, uint lane) thread {
    divide_columns(eps, lane);
    for (int i = 1; i < iterations; ++i) {
      divide_rows(eps, lane);
      divide_columns(eps, lane);
    }
  }
};
