// Turns arrays that an op of this module made into arrays that the simulator computes.
#pragma once

#include "mlx/array.h"

namespace mslsim {

// Every primitive of this module in the graph of `a`, as far as it is unevaluated, runs its
// eval_gpu() on the simulator when the array is evaluated.
void simulate(const mlx::core::array& a);

}  // namespace mslsim
