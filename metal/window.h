// Launch contract of the window kernels, included by csrc/window*.cpp.
#pragma once

#include "common.h"

enum WindowRowsBuffer {
  kWindowRowsKv,        // [T, D] f32
  kWindowRowsNorm,      // [D] f32
  kWindowRowsRotation,  // [T, R/2, 2] f32
  kWindowRowsOut,       // [T, D] bf16 or f32
  kWindowRowsParams,
};

enum WindowWriteBuffer {
  kWindowWriteRows,         // [T, D] bf16 or f32
  kWindowWriteAttentionKv,  // [W + N, D], written in place
  kWindowWriteParams,
};

// The slot of a position in the ring of a layer.
constexpr int window_slot(int pos, int window) { return pos % window; }

// First of a step's rows that is written: two older rows would share a slot with newer ones.
constexpr int first_written_row(int n_tokens, int window) {
  return n_tokens > window ? n_tokens - window : 0;
}

// window_write copies words of so many values where D is a multiple of it, else of one.
DSV4_CONST int kWindowWordValues = 4;
DSV4_CONST int kWindowWriteThreads = 256;

struct WindowRowsParams {
  int32_t n_tokens;    // T
  int32_t dim;         // D
  int32_t pairs;       // R / 2
  int32_t round_trip;  // enum RoundTrip
  float eps;
};
static_assert(sizeof(WindowRowsParams) == 20, "layout is shared with the GPU");

struct WindowWriteParams {
  int32_t dim;       // D; words of a row on the GPU
  int32_t n_tokens;  // T
  int32_t start;     // pos of rows[0]
  int32_t window;    // W
};
static_assert(sizeof(WindowWriteParams) == 16, "layout is shared with the GPU");
