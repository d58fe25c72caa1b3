#include <atomic>
#include <vector>

#include "bind.h"
#include "ceilings_cpu.h"
#include "check.h"
#include "pool.h"

namespace mlx_dsv4 {
namespace {

constexpr int64_t kWordsPerStep = 64;
constexpr int64_t kStepsPerPiece = 1 << 14;  // 4 MiB

uint32_t read_all(const mx::array& words) {
  constexpr auto op = "read_all";
  check_dtype(op, "words", words, mx::uint32);
  if (!words.is_available() || !words.flags().row_contiguous ||
      words.size() % kWordsPerStep != 0) {
    reject(
        op,
        "words must be evaluated, row-contiguous and a multiple of ",
        kWordsPerStep,
        "; got ",
        words.shape());
  }
  const auto* data = words.data<uint32_t>();
  const auto sum_words = cpu_kernels<CeilingKernels>().sum_words;
  const auto steps = static_cast<int64_t>(words.size()) / kWordsPerStep;
  std::atomic<uint32_t> sum{0};
  parallel_for(steps, kStepsPerPiece, [&](int64_t begin, int64_t end) {
    sum += sum_words(data + begin * kWordsPerStep, (end - begin) * kWordsPerStep);
  });
  return sum;
}

void check_rounds(const char* op, int64_t rounds) {
  if (rounds < 1) {
    reject(op, "rounds must be at least 1; got ", rounds);
  }
}

// Every thread's share is one piece.
int64_t multiply_adds(int64_t rounds) {
  check_rounds("multiply_adds", rounds);
  const CeilingKernels& kernels = cpu_kernels<CeilingKernels>();
  const int threads = num_threads();
  parallel_for(threads, 1, [&](int64_t begin, int64_t end) {
    kernels.multiply_adds((end - begin) * rounds, 0.5f);
  });
  return threads * rounds * kernels.per_round;
}

int64_t widened_multiply_adds(int64_t rounds) {
  check_rounds("widened_multiply_adds", rounds);
  const CeilingKernels& kernels = cpu_kernels<CeilingKernels>();
  const std::vector<uint16_t> halves(
      kWidenedRounds * kernels.widened_per_round, 0x3f00);  // 0.5
  const int threads = num_threads();
  parallel_for(threads, 1, [&](int64_t begin, int64_t end) {
    kernels.widened_multiply_adds((end - begin) * rounds, halves.data());
  });
  return threads * rounds * kernels.widened_per_round;
}

}  // namespace

void bind_ceilings(nb::module_& m) {
  m.def("read_all", &read_all, "words"_a, nb::call_guard<nb::gil_scoped_release>());
  m.def(
      "multiply_adds",
      &multiply_adds,
      "rounds"_a,
      nb::call_guard<nb::gil_scoped_release>());
  m.def(
      "widened_multiply_adds",
      &widened_multiply_adds,
      "rounds"_a,
      nb::call_guard<nb::gil_scoped_release>());
}

}  // namespace mlx_dsv4
