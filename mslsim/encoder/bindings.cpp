// The module _sim: the ops of this package with their Metal code on the simulator.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bind.h"
#include "control.h"
#include "cuda_driver.h"
#include "encoder_bindings.h"
#include "families.h"
#include "mlx/array.h"
#include "simulated.h"

namespace mlx_dsv4 {

// DSV4_EACH_FAMILY(X) lists the kernel families of CMakeLists.txt.
#define DSV4_DECLARE_BIND(family) void bind_##family(nb::module_&);
DSV4_EACH_FAMILY(DSV4_DECLARE_BIND)

}  // namespace mlx_dsv4

namespace mslsim {
namespace {

namespace nb = nanobind;
using namespace nb::literals;

void set_order(const std::string& order) {
  if (order == "forward") {
    control().order = Order::kForward;
  } else if (order == "reverse") {
    control().order = Order::kReverse;
  } else if (order == "random") {
    control().order = Order::kRandom;
  } else {
    throw nb::value_error("order must be 'forward', 'reverse' or 'random'");
  }
}

void set_mode(const std::string& mode) {
  if (mode != "fast" && mode != "check" && mode != "cov" && mode != "cuda") {
    throw nb::value_error("mode must be 'fast', 'check', 'cov' or 'cuda'");
  }
  control().mode = mode;
}

// A Python callable with its exceptions as plain messages; called while the GIL may be released.
template <typename... Args>
std::function<std::string(Args...)> from_python(nb::object callable) {
  if (callable.is_none()) {
    return nullptr;
  }
  return [callable](Args... args) {
    const nb::gil_scoped_acquire gil;
    try {
      return nb::cast<std::string>(callable(args...));
    } catch (const nb::python_error& error) {
      throw std::runtime_error(nb::str(error.value()).c_str());
    }
  };
}

void set_python_compiler(nb::object compile) {
  set_compiler(
      from_python<const std::string&, const std::string&, const std::string&>(
          std::move(compile)));
}

void set_python_symbolizer(nb::object symbolize) {
  set_symbolizer(from_python<const std::string&, uint64_t>(std::move(symbolize)));
}

nb::dict as_dict(const LaunchRecord& launch) {
  nb::list bindings;
  for (const auto& bound : launch.bindings) {
    bindings.append(nb::make_tuple(bound.index, bound.kind, bound.n_bytes));
  }
  nb::dict fields;
  fields["kernel"] = launch.kernel;
  fields["grid"] = launch.grid;
  fields["threadgroup"] = launch.threadgroup;
  fields["grid_is_threads"] = launch.grid_is_threads;
  fields["bindings"] = bindings;
  fields["gpu_us"] = launch.gpu_us;
  return fields;
}

nb::list launched() {
  nb::list all;
  for (const auto& launch : launches()) {
    all.append(as_dict(launch));
  }
  return all;
}

void bind_simulator(nb::module_& m) {
  m.def("simulate", &simulate, "a"_a);
  m.def("set_mode", &set_mode, "mode"_a);
  m.def("mode", [] { return control().mode; });
  m.def("set_order", &set_order, "order"_a);
  m.def("set_seed", [](uint32_t seed) { control().seed = seed; }, "seed"_a);
  m.def(
      "set_timeout", [](double seconds) { control().timeout_s = seconds; }, "seconds"_a);
  m.def("set_repeats", [](int n) { control().repeats = n; }, "n"_a);
  m.def("cuda_unavailable", &cuda::unavailable);
  m.def("set_workers", [](int n) { control().workers = n; }, "n"_a);
  m.def("set_compiler", &set_python_compiler, "compile"_a.none());
  m.def("set_symbolizer", &set_python_symbolizer, "symbolize"_a.none());
  m.def("launches", &launched);
  m.def("clear_launches", &clear_launches);
  m.def("reset_encoders", &reset_encoders);
}

}  // namespace
}  // namespace mslsim

NB_MODULE(_sim, m) {
  using namespace mlx_dsv4;
  nb::module_::import_("mlx.core");
  mslsim::bind_simulator(m);
  mslsim::bind_encoder(m);
#define DSV4_BIND(family) bind_##family(m);
  DSV4_EACH_FAMILY(DSV4_BIND)
}
