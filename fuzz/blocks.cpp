// Random and mutated blocks through the CPU kernels, in memory that ends where they do.
//
//   fuzz_blocks SEED SECONDS [FIRST [COUNT]]
//
// Every input goes through every instruction set of this machine. Beside what the sanitizers see:
// rows decode alike alone and together, and into numbers where their scales are numbers; products
// are those of a plain loop over the decoded rows, however they are cut into calls; a token or an
// expert that is not there gives NaN. The first finding ends the run and says how to repeat it.

#include <sanitizer/common_interface_defs.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <numeric>
#include <string>

#include "../csrc/expert_slots.h"
#include "../csrc/matmul_cpu.h"
#include "../csrc/scratch.h"
#include "block_bytes.h"

namespace fuzz {
namespace {

using namespace mlx_dsv4;
using Floats = Exact<float>;

unsigned long long seed, input;
std::string isa;

void say_how_to_repeat() {
  std::fprintf(
      stderr,
      "kernels: %s; again: build/fuzz/fuzz_blocks %llu 1e9 %llu 1\n",
      isa.c_str(),
      seed,
      input);
}

// A mistake found by what stands here; sanitizers have theirs, see below.
[[noreturn]] void fail(
    const char* what, int format, int64_t at, float got, float expected) {
  std::fprintf(
      stderr,
      "input %llu: %s: type %d, element %lld: got %g, expected %g\n",
      input,
      what,
      format,
      static_cast<long long>(at),
      got,
      expected);
  say_how_to_repeat();
  std::exit(1);
}

void expect_same(
    const char* what, int format, const Floats& got, const Floats& expected) {
  for (int64_t i = 0; i < got.size(); ++i) {
    if (!same(got[i], expected[i])) {
      fail(what, format, i, got[i], expected[i]);
    }
  }
}

// fn(begin, end) over [0, n) in pieces of any size.
template <typename Fn>
void in_pieces(Random& random, int64_t n, Fn fn) {
  for (int64_t begin = 0; begin < n;) {
    const int64_t left = n - begin;
    const int64_t size =
        random.one_in(2) ? left : random.between(1, static_cast<int>(left));
    fn(begin, begin + size);
    begin += size;
  }
}

PanelScratch& scratch() {
  static const auto memory = std::make_unique<PanelScratch>();
  return *memory;
}

int random_k(Random& random, int format) {
  if (is_plain(format)) {
    return random.one_in(8) ? random.between(500, 1100) : random.between(1, 70);
  }
  const int most = block_elements(format) == 256 ? 4 : 20;
  return block_elements(format) * random.between(1, random.one_in(4) ? most : 2);
}

Floats random_floats(Random& random, int64_t n) {
  Floats values(n);
  const bool wild = random.one_in(8);
  for (int64_t i = 0; i < n; ++i) {
    values[i] = static_cast<float>(random.between(-999, 999)) / 256;
    if (wild && random.one_in(50)) {
      values[i] = std::bit_cast<float>(static_cast<uint32_t>(random.next()));
    }
  }
  return values;
}

// Decoding.

Floats embedded(
    const Exact<int32_t>& tokens, const Bytes& rows, EmbedParams p, Random* cut) {
  Floats out(tokens.size() * p.k);
  const auto embed = [&](int64_t begin, int64_t end) {
    cpu_kernels<MatmulKernels>().embed(
        tokens.data(), rows.data(), out.data(), p, begin, end);
  };
  cut ? in_pieces(*cut, tokens.size(), embed) : embed(0, tokens.size());
  return out;
}

void check_numbers(int format, const Bytes& rows, const Floats& values) {
  const int elements = block_elements(format), n = block_bytes(format);
  for (int64_t i = 0; i < values.size(); ++i) {
    const uint8_t* block = rows.data() + i / elements * n;
    const bool finite = scales_are_finite(format, block);
    if (finite ? !std::isfinite(values[i])
               : is_plain(format) && std::isfinite(values[i])) {
      fail("a number of finite scales must be one", format, i, values[i], 0);
    }
  }
}

// The rows' values, as the first instruction set decodes them.
Floats decode(Random& random, const Bytes& rows, EmbedParams p) {
  Exact<int32_t> tokens(p.n_rows);
  std::iota(tokens.data(), tokens.data() + p.n_rows, 0);
  Floats values = embedded(tokens, rows, p, nullptr);
  check_numbers(p.format, rows, values);
  expect_same("rows alone", p.format, embedded(tokens, rows, p, &random), values);

  Exact<int32_t> any(random.between(1, 9));
  for (int64_t i = 0; i < any.size(); ++i) {
    constexpr int32_t kLeast = std::numeric_limits<int32_t>::min();
    any[i] = random.one_in(2)
                 ? random.below(p.n_rows)
                 : random.choice({-1, p.n_rows, p.n_rows + 1, kLeast, ~kLeast});
  }
  const Floats looked_up = embedded(any, rows, p, &random);
  for (int64_t i = 0; i < looked_up.size(); ++i) {
    const int32_t token = any[i / p.k];
    const bool there = token >= 0 && token < p.n_rows;
    const float expected = there ? values[int64_t{token} * p.k + i % p.k] : NAN;
    if (!same(looked_up[i], expected)) {
      fail("a row that is looked up", p.format, i, looked_up[i], expected);
    }
  }
  return values;
}

// Products.

// Lane l takes k = l, l + 16, ...; then lanes are added in halves.
float plain_product(const float* x, const float* w, int k) {
  float lanes[16] = {};
  for (int i = 0; i < (k + 15) / 16 * 16; ++i) {
    lanes[i % 16] = std::fma(i < k ? x[i] : 0, i < k ? w[i] : 0, lanes[i % 16]);
  }
  for (int half = 8; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) {
      lanes[i] += lanes[i + half];
    }
  }
  return lanes[0];
}

Floats plain_products(const Floats& x, const Floats& w, const MatmulParams& p) {
  Floats out(int64_t{p.n_tokens} * p.n_rows);
  const int group_rows = p.n_rows / p.groups;
  for (int64_t t = 0; t < p.n_tokens; ++t) {
    for (int64_t row = 0; row < p.n_rows; ++row) {
      const float* of_group = x.data() + (t * p.groups + row / group_rows) * p.k;
      out[t * p.n_rows + row] = plain_product(of_group, w.data() + row * p.k, p.k);
    }
  }
  return out;
}

Floats multiplied(
    Random& random, const Floats& x, const Bytes& rows, const MatmulParams& p) {
  const auto& kernels = cpu_kernels<MatmulKernels>();
  const int64_t packed_rows = int64_t{p.n_tokens} * p.groups;
  Floats packed(packed_rows * packed_stride(p.k)), out(int64_t{p.n_tokens} * p.n_rows);
  in_pieces(random, packed_rows, [&](int64_t begin, int64_t end) {
    kernels.pack_f32(x.data(), packed.data(), p.k, begin, end);
  });
  in_pieces(random, p.n_rows, [&](int64_t begin, int64_t end) {
    kernels.multiply(
        packed.data(), rows.data(), out.data(), scratch(), p, p.n_tokens, begin, end);
  });
  return out;
}

void try_matrix(Random& random) {
  const int format = kFormats[random.below(std::size(kFormats))];
  const int k = random_k(random, format), groups = random.choice({1, 1, 1, 2, 3});
  const int n_rows = groups * random.between(1, random.one_in(4) ? 40 : 6);
  const int n_tokens = random.one_in(16) ? 200 : random.between(1, 9);
  const Bytes rows = random_rows(random, format, n_rows, k);
  const Floats x = random_floats(random, int64_t{n_tokens} * groups * k);
  const MatmulParams p{n_rows, k, groups, format, n_tokens};
  Floats values(0), products(0);
  for (const std::string& name : available_isas()) {
    set_isa(isa = name);
    Floats decoded = decode(random, rows, {n_rows, k, format});
    if (values.size() == 0) {
      values = std::move(decoded);
      products = plain_products(x, values, p);
    } else {
      expect_same("rows on another instruction set", format, decoded, values);
    }
    expect_same("products", format, multiplied(random, x, rows, p), products);
  }
}

// Experts.

struct Bank {
  Bytes gate, up, down;
  Floats x, weights;
  Exact<int32_t> ids;
};

// Tokens [first, first + n) of a call.
Floats combined(Random& random, const Bank& bank, ExpertsParams p, int64_t first, int n) {
  const auto& kernels = cpu_kernels<ExpertsKernels>();
  const int32_t* ids = bank.ids.data() + first * p.used;
  p.n_tokens = n;
  const Slots slots = sort_slots(ids, bank.weights.data() + first * p.used, n, p);
  Floats packed(n * packed_stride(p.dim)), out(int64_t{n} * p.dim);
  Floats h(int64_t{n} * p.used * packed_stride(p.hidden));
  const ExpertsCall call{
      packed.data(),
      h.data(),
      out.data(),
      bank.gate.data(),
      bank.up.data(),
      bank.down.data(),
      slots.groups.data(),
      slots.tokens.data(),
      slots.weights.data(),
      static_cast<int64_t>(slots.groups.size()),
      n,
      p};
  in_pieces(random, n, [&](int64_t begin, int64_t end) {
    kernels.pack(bank.x.data() + first * p.dim, packed.data(), p.dim, begin, end);
  });
  const int64_t panels = (p.hidden + kPanelRows - 1) / kPanelRows;
  in_pieces(random, call.n_groups * panels, [&](int64_t begin, int64_t end) {
    kernels.hidden(call, scratch(), begin, end);
  });
  in_pieces(
      random, (p.dim + kPanelRows - 1) / kPanelRows, [&](int64_t begin, int64_t end) {
        kernels.combine(call, scratch(), begin, end);
      });
  store_nan(ids, out.data(), n, p);
  return out;
}

void expect_nan_for_strangers(
    const Bank& bank, const ExpertsParams& p, const Floats& out) {
  for (int64_t i = 0; i < bank.ids.size(); ++i) {
    const float value = out[i / p.used * p.dim + p.dim - 1];
    if (!is_expert(bank.ids[i], p) && !std::isnan(value)) {
      fail("a token of no expert", p.gate_format, i, value, NAN);
    }
  }
}

void try_experts(Random& random) {
  const auto any_format = [&] { return kFormats[random.below(std::size(kFormats))]; };
  const int gate = any_format(), up = any_format(), down = any_format();
  const int dim =
      std::lcm(block_elements(gate), block_elements(up)) * (gate == up ? 2 : 1);
  const int hidden = block_elements(down) * (is_plain(down) ? random.between(1, 70) : 1);
  const int n_tokens = random.one_in(8) ? 70 : random.between(1, 7);
  const ExpertsParams p{
      random.between(1, 4),
      random.between(1, 3),
      dim,
      hidden,
      gate,
      up,
      down,
      2.5f,
      n_tokens};
  const int64_t n_ids = int64_t{n_tokens} * p.used;
  Bank bank{
      random_rows(random, gate, p.n_experts * hidden, dim),
      random_rows(random, up, p.n_experts * hidden, dim),
      random_rows(random, down, p.n_experts * dim, hidden),
      random_floats(random, int64_t{n_tokens} * dim),
      random_floats(random, n_ids),
      Exact<int32_t>(n_ids)};
  for (int64_t i = 0; i < n_ids; ++i) {
    constexpr int32_t kLeast = std::numeric_limits<int32_t>::min();
    bank.ids[i] = random.one_in(8) ? random.choice({-1, p.n_experts, kLeast, ~kLeast})
                                   : random.below(p.n_experts);
  }
  Floats first(0);
  for (const std::string& name : available_isas()) {
    set_isa(isa = name);
    Floats out = combined(random, bank, p, 0, n_tokens);
    expect_nan_for_strangers(bank, p, out);
    const int t = random.below(n_tokens);
    const Floats alone = combined(random, bank, p, t, 1);
    for (int i = 0; i < dim; ++i) {
      if (!same(alone[i], out[int64_t{t} * dim + i])) {
        fail("a token alone", gate, i, alone[i], out[int64_t{t} * dim + i]);
      }
    }
    if (first.size() == 0) {
      first = std::move(out);
    } else {
      expect_same("experts on another instruction set", gate, out, first);
    }
  }
}

int run(double seconds, unsigned long long begin, unsigned long long count) {
  __sanitizer_set_death_callback(say_how_to_repeat);
  using Clock = std::chrono::steady_clock;
  const auto end = Clock::now() + std::chrono::duration<double>(seconds);
  for (input = begin; input - begin < count && Clock::now() < end; ++input) {
    Random random(seed, input);
    random.one_in(4) ? try_experts(random) : try_matrix(random);
  }
  std::printf("blocks: %llu on", input - begin);
  for (const std::string& name : available_isas()) {
    std::printf(" %s", name.c_str());
  }
  std::printf("\n");
  return 0;
}

}  // namespace
}  // namespace fuzz

// Called by the sanitizer of undefined behaviour, which has no other way to say that it ends.
extern "C" __attribute__((visibility("default"))) void __ubsan_on_report() {
  fuzz::say_how_to_repeat();
}

int main(int n_arguments, char** arguments) {
  const auto number = [&](int i, unsigned long long absent) {
    return n_arguments > i ? std::strtoull(arguments[i], nullptr, 10) : absent;
  };
  fuzz::seed = number(1, 0);
  const double seconds = n_arguments > 2 ? std::strtod(arguments[2], nullptr) : 10;
  return fuzz::run(seconds, number(3, 0), number(4, ~0ull));
}
