// How a family's CPU kernels reach its primitives.
//
//   csrc/<family>_cpu.h    struct <Family>Kernels of function pointers, DSV4_KERNEL_TABLE(it)
//   csrc/<family>_cpu.cpp  compiled once per instruction set with DSV4_ISA set to its name;
//                          defines DSV4_ISA::kernels(const <Family>Kernels*)
//   csrc/<family>.cpp      calls cpu_kernels<<Family>Kernels>()
//
// *_cpu.cpp includes neither MLX nor the standard containers: an inline function compiled
// there with wide instructions could be the copy that the linker keeps for everybody.
#pragma once

#if defined(DSV4_ISA)

#define DSV4_KERNEL_TABLE(Table)      \
  namespace DSV4_ISA {                \
  const Table& kernels(const Table*); \
  }

#else

#include "isa.h"

namespace mlx_dsv4 {
template <typename Table>
const Table& cpu_kernels();
}  // namespace mlx_dsv4

#define DSV4_DECLARE_IN(set, Table)   \
  namespace set {                     \
  const Table& kernels(const Table*); \
  }
#define DSV4_CASE_IN(set, Table) \
  case Isa::set:                 \
    return set::kernels(static_cast<const Table*>(nullptr));

#define DSV4_KERNEL_TABLE(Table)                                 \
  DSV4_EACH_ISA(DSV4_DECLARE_IN, Table)                          \
  template <>                                                    \
  inline const Table& cpu_kernels<Table>() {                     \
    switch (active_isa()) { DSV4_EACH_ISA(DSV4_CASE_IN, Table) } \
    return scalar::kernels(static_cast<const Table*>(nullptr));  \
  }

#endif
