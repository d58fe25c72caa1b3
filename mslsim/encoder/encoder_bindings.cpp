#include "encoder_bindings.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "mlx/backend/metal/device.h"
#include "mlx/mlx.h"

namespace mslsim {
namespace {

namespace nb = nanobind;
namespace mx = mlx::core;
using namespace nb::literals;
using Size = std::tuple<uint64_t, uint64_t, uint64_t>;
using Encoder = mx::metal::CommandEncoder;
using Pipeline = MTL::ComputePipelineState;

MTL::Size size(const Size& s) {
  return MTL::Size(std::get<0>(s), std::get<1>(s), std::get<2>(s));
}

Pipeline* pipeline(
    const std::string& library, const std::string& source, const std::string& kernel) {
  auto& device = mx::metal::device(mx::Device::cpu);
  auto* built = device.get_library(library, [&] { return source; });
  return device.get_kernel(kernel, built);
}

void set_bytes(Encoder& encoder, const nb::bytes& bytes, int index) {
  encoder.set_bytes(static_cast<const char*>(bytes.data()), bytes.size(), index);
}

// An evaluated array of zeros that kernels may write.
mx::array zeros(const std::vector<int>& shape, mx::Dtype dtype) {
  mx::array a = mx::zeros(mx::Shape(shape.begin(), shape.end()), dtype, mx::Device::cpu);
  a.eval();
  return a;
}

}  // namespace

void bind_encoder(nb::module_& m) {
  nb::class_<Pipeline>(m, "Pipeline")
      .def_prop_ro("name", &Pipeline::name)
      .def_prop_ro("max_threads", &Pipeline::maxTotalThreadsPerThreadgroup);
  m.def(
      "pipeline",
      &pipeline,
      "library"_a,
      "source"_a,
      "kernel"_a,
      nb::rv_policy::reference);
  nb::class_<Encoder>(m, "Encoder")
      .def("set_pipeline", &Encoder::set_compute_pipeline_state, "pipeline"_a)
      .def("set_input", &Encoder::set_input_array, "a"_a, "index"_a, "offset"_a = 0)
      .def("set_output", &Encoder::set_output_array, "a"_a, "index"_a, "offset"_a = 0)
      .def("set_bytes", &set_bytes, "bytes"_a, "index"_a)
      .def(
          "set_threadgroup_bytes",
          &Encoder::set_threadgroup_memory_length,
          "n_bytes"_a,
          "index"_a)
      .def("barrier", &Encoder::barrier)
      .def("add_temporary", &Encoder::add_temporary, "a"_a)
      .def("begin_primitive", &Encoder::begin_primitive, "inputs"_a)
      .def("end_primitive", &Encoder::end_primitive, "outputs"_a)
      .def(
          "dispatch_threadgroups",
          [](Encoder& encoder, const Size& grid, const Size& group) {
            encoder.dispatch_threadgroups(size(grid), size(group));
          },
          "grid"_a,
          "group"_a)
      .def(
          "dispatch_threads",
          [](Encoder& encoder, const Size& grid, const Size& group) {
            encoder.dispatch_threads(size(grid), size(group));
          },
          "grid"_a,
          "group"_a);
  m.def(
      "encoder",
      [] { return &mx::metal::get_command_encoder(mx::default_stream(mx::Device::cpu)); },
      nb::rv_policy::reference);
  m.def("zeros", &zeros, "shape"_a, "dtype"_a);
}

}  // namespace mslsim
