// Numbers that are the same for the same seed on every machine, and memory that ends where it says.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <memory>

namespace fuzz {

// Source: splitmix64 of Vigna, the generator that seeds xoshiro.
class Random {
 public:
  Random(uint64_t seed, uint64_t index) : state_(seed * 0x9E3779B97F4A7C15u + index) {
    state_ = next();
  }
  uint64_t next() {
    uint64_t z = state_ += 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
  }
  int below(int n) { return static_cast<int>(next() % static_cast<uint64_t>(n)); }
  int between(int first, int last) { return first + below(last - first + 1); }
  bool one_in(int n) { return below(n) == 0; }
  template <typename T>
  T choice(std::initializer_list<T> values) {
    return values.begin()[below(static_cast<int>(values.size()))];
  }

 private:
  uint64_t state_;
};

// `n` elements on the heap, not one byte more behind them; they may begin at any address.
template <typename T>
class Exact {
 public:
  explicit Exact(int64_t n, int shift = 0)
      : size_(n), shift_(shift), bytes_(new uint8_t[shift + n * sizeof(T)]()) {}
  T* data() { return reinterpret_cast<T*>(bytes_.get() + shift_); }
  const T* data() const { return reinterpret_cast<const T*>(bytes_.get() + shift_); }
  T& operator[](int64_t i) { return data()[i]; }
  T operator[](int64_t i) const { return data()[i]; }
  int64_t size() const { return size_; }

 private:
  int64_t size_;
  int shift_;
  std::unique_ptr<uint8_t[]> bytes_;
};

}  // namespace fuzz
