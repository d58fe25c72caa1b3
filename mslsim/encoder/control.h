// How simulated kernels are compiled and run, and what was launched.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace mslsim {

enum class Order { kForward, kReverse, kRandom };

struct Control {
  // "fast": guard pages, divergence and deadlock; "check": races, bounds, uninitialised reads as
  // well; "cov": check and line coverage; "cuda": cubins, on an NVIDIA GPU.
  std::string mode = "fast";
  Order order = Order::kForward;
  uint32_t seed = 0;
  double timeout_s = 60;
  int workers = 2;
  int repeats = 0;  // further runs of each launch on an NVIDIA GPU, which are timed

  bool checks() const { return mode == "check" || mode == "cov"; }
  bool on_cuda() const { return mode == "cuda"; }
};

Control& control();

// Compiles the source of a library in a mode; returns the path of the shared object.
using Compiler = std::function<std::string(
    const std::string& name, const std::string& source, const std::string& mode)>;
void set_compiler(Compiler compiler);
const Compiler& compiler();

// Names the source lines of an offset into a compiled library, innermost first.
using Symbolizer =
    std::function<std::string(const std::string& library, uint64_t offset)>;
void set_symbolizer(Symbolizer symbolizer);
const Symbolizer& symbolizer();

struct BoundArgument {
  int index;
  std::string kind;  // "input", "output" or "bytes"
  uint64_t n_bytes;
};

struct LaunchRecord {
  std::string kernel;
  std::vector<uint64_t> grid;
  std::vector<uint64_t> threadgroup;
  bool grid_is_threads;
  std::vector<BoundArgument> bindings;
  double gpu_us = 0;  // of one run, where Control::repeats asks for it
};

// Every dispatch since clear_launches(), in order, whatever its outcome.
const std::vector<LaunchRecord>& launches();
void record_launch(LaunchRecord record);
void record_time(double gpu_us);  // of the last launch
void clear_launches();

// Forgets what was bound and which memory was read and written, on every stream.
void reset_encoders();

}  // namespace mslsim
