// The simulated command encoder, driven from Python.
#pragma once

#include <nanobind/nanobind.h>

namespace mslsim {

void bind_encoder(nanobind::module_& m);

}  // namespace mslsim
