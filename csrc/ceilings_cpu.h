// What the CPU can do at most: loops that do nothing but load, or nothing but multiply and add.
#pragma once

#include <cstdint>

#include "kernel_table.h"

namespace mlx_dsv4 {

constexpr int kWidenedRounds = 16;

struct CeilingKernels {
  // The sum of n 32-bit words, n a multiple of 64.
  uint32_t (*sum_words)(const uint32_t* words, int64_t n);
  // n rounds of independent fused multiply-adds; a number that depends on all of them.
  float (*multiply_adds)(int64_t n, float factor);
  int per_round;
  // The same of products of bfloat16: in kWidenedRounds rounds each value is read once.
  float (*widened_multiply_adds)(int64_t n, const uint16_t* bfloat16);
  int widened_per_round;
};

DSV4_KERNEL_TABLE(CeilingKernels)

}  // namespace mlx_dsv4
