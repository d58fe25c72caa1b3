#include "ceilings_cpu.h"

#include "simd.h"

namespace mlx_dsv4::DSV4_ISA {
namespace {

uint32_t sum_words(const uint32_t* words, int64_t n) {
  I32x16 sums[4];
  for (I32x16& sum : sums) {
    sum = simd::set1_int(0);
  }
  for (int64_t i = 0; i < n; i += 64) {
    for (int j = 0; j < 4; ++j) {
      const auto* lanes = reinterpret_cast<const float*>(words + i + 16 * j);
      sums[j] = simd::add_int(sums[j], simd::bits(simd::load(lanes)));
    }
  }
  const I32x16 all =
      simd::add_int(simd::add_int(sums[0], sums[1]), simd::add_int(sums[2], sums[3]));
  uint32_t lanes[16], sum = 0;
  simd::store(reinterpret_cast<float*>(lanes), simd::from_bits(all));
  for (const uint32_t lane : lanes) {
    sum += lane;
  }
  return sum;
}

// As many as hide the latency of one another, in fewer than the registers of any set.
constexpr int kChains = 12;

float multiply_adds(int64_t n, float factor) {
  simd::Part chains[kChains];
  float lanes[16];
  simd::store(lanes, simd::set1(factor));
  const simd::Part factors = simd::load_part(lanes);
  for (simd::Part& chain : chains) {
    chain = factors;
  }
  for (int64_t i = 0; i < n; ++i) {
    for (simd::Part& chain : chains) {
      chain = simd::fma_part(chain, factors, factors);
    }
  }
  float sum = 0;
  for (const simd::Part& chain : chains) {
    simd::store_part(lanes, chain);
    sum += lanes[0];
  }
  return sum;
}

// Sums of 16 lanes that fill half of the registers.
constexpr int kHalf = simd::kRegisters * simd::kPartLanes / 32;
constexpr int kWidened = kHalf > 0 ? kHalf : 1;

// As kernels do with bfloat16: every 16 of them are loaded from the nearest cache and widened.
float widened_multiply_adds(int64_t n, const uint16_t* rows) {
  F32x16 chains[kWidened];
  for (F32x16& chain : chains) {
    chain = simd::set1(0.5f);
  }
  const F32x16 factors = simd::set1(0.5f);
  for (int64_t i = 0; i < n; ++i) {
    const uint16_t* row = rows + i % kWidenedRounds * kWidened * 16;
    for (int j = 0; j < kWidened; ++j) {
      chains[j] = simd::fma(simd::load_bf16(row + 16 * j), factors, chains[j]);
    }
  }
  float lanes[16], sum = 0;
  for (const F32x16& chain : chains) {
    simd::store(lanes, chain);
    sum += lanes[0];
  }
  return sum;
}

constexpr CeilingKernels kKernels{
    sum_words,
    multiply_adds,
    kChains * simd::kPartLanes,
    widened_multiply_adds,
    kWidened * 16};

}  // namespace

const CeilingKernels& kernels(const CeilingKernels*) { return kKernels; }

}  // namespace mlx_dsv4::DSV4_ISA
