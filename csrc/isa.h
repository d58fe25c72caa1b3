// Instruction sets: every *_cpu.cpp is compiled once per set and picked at run time.
#pragma once

#include <string>
#include <vector>

#if defined(__aarch64__)
#define DSV4_EACH_ISA(X, ...) X(scalar, __VA_ARGS__) X(neon, __VA_ARGS__)
#elif defined(__x86_64__)
#define DSV4_EACH_ISA(X, ...) \
  X(scalar, __VA_ARGS__) X(avx2, __VA_ARGS__) X(avx512, __VA_ARGS__)
#else
#define DSV4_EACH_ISA(X, ...) X(scalar, __VA_ARGS__)
#endif

namespace mlx_dsv4 {

#define DSV4_NAME_ISA(isa, unused) isa,
enum class Isa { DSV4_EACH_ISA(DSV4_NAME_ISA, ) };
#undef DSV4_NAME_ISA

// The best set this CPU has, unless set_isa chose another one.
Isa active_isa();
std::string isa_name();
// Those this CPU can run, weakest first.
std::vector<std::string> available_isas();
// Raises std::invalid_argument for a set that this CPU or this build lacks.
void set_isa(const std::string& name);

}  // namespace mlx_dsv4
