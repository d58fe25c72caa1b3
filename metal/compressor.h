// Launch contract of the compressor kernels, included by csrc/compressor*.cpp.
#pragma once

#include "common.h"

enum CompressorBuffer {
  kCompressorValue,       // [T, c * D] f32
  kCompressorGate,        // [T, c * D] f32
  kCompressorApe,         // [ratio, c * D] f32
  kCompressorNorm,        // [D] f32
  kCompressorRotation,    // [closed spans, R/2, 2] f32
  kCompressorStateValue,  // [c * ratio, c * D] f32, written in place
  kCompressorStateScore,  // [c * ratio, c * D] f32, written in place
  kCompressorRows,        // [*, D] bf16 or f32, written in place
  kCompressorParams,
};

// Threads of a threadgroup, at most: one per feature of V4-Flash.
DSV4_CONST int kCompressorThreads = 512;

DSV4_CONST int kCompressorAdvanceThreads = 256;

struct CompressorParams {
  int32_t dim;         // D
  int32_t overlap;     // 1: c = 2, a span also pools the previous one; 0: c = 1
  int32_t ratio;       // tokens per span
  int32_t n_tokens;    // T
  int32_t start;       // pos of the first token
  int32_t first_row;   // row of span 0
  int32_t pairs;       // R / 2
  int32_t round_trip;  // enum RoundTrip
  float eps;
};
static_assert(sizeof(CompressorParams) == 36, "layout is shared with the GPU");

// Spans whose last token is among the n_tokens from `start` on.
constexpr int closed_spans(int start, int n_tokens, int ratio) {
  return (start + n_tokens) / ratio - start / ratio;
}
