#include "control.h"

#include <utility>

namespace mslsim {
namespace {

// Never destroyed: they may own Python callables, which outlive the interpreter otherwise.
Compiler& the_compiler = *new Compiler;
Symbolizer& the_symbolizer = *new Symbolizer;
std::vector<LaunchRecord> the_launches;

}  // namespace

Control& control() {
  static Control the_control;
  return the_control;
}

void set_compiler(Compiler compiler) { the_compiler = std::move(compiler); }

const Compiler& compiler() { return the_compiler; }

void set_symbolizer(Symbolizer symbolizer) { the_symbolizer = std::move(symbolizer); }

const Symbolizer& symbolizer() { return the_symbolizer; }

const std::vector<LaunchRecord>& launches() { return the_launches; }

void record_launch(LaunchRecord record) { the_launches.push_back(std::move(record)); }

void record_time(double gpu_us) { the_launches.back().gpu_us = gpu_us; }

void clear_launches() { the_launches.clear(); }

}  // namespace mslsim
