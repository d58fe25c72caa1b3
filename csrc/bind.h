// What a family's bind_<family>() needs; signatures and keyword names only, no prose.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

namespace mlx_dsv4 {
namespace nb = nanobind;
using namespace nb::literals;
}  // namespace mlx_dsv4
