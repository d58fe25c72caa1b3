#include "bind.h"
#include "check.h"
#include "families.h"
#include "isa.h"
#include "mapped_file.h"
#include "metal_library.h"
#include "mlx/allocator.h"
#include "mlx/version.h"
#include "pool.h"

#define DSV4_QUOTE_(x) #x
#define DSV4_QUOTE(x) DSV4_QUOTE_(x)

namespace mlx_dsv4 {

constexpr const char* kBuiltForMlx = DSV4_QUOTE(MLX_VERSION_MAJOR) "." DSV4_QUOTE(
    MLX_VERSION_MINOR) "." DSV4_QUOTE(MLX_VERSION_PATCH);

// DSV4_EACH_FAMILY(X) lists the kernel families of CMakeLists.txt.
#define DSV4_DECLARE_BIND(family) void bind_##family(nb::module_&);
DSV4_EACH_FAMILY(DSV4_DECLARE_BIND)
void bind_ceilings(nb::module_& m);

// Memory that the system hands out page by page as it is first written.
mx::array uninitialized(const std::vector<int>& shape, mx::Dtype dtype) {
  const size_t n_bytes = checked_bytes("uninitialized", shape, dtype.size());
  return mx::array(
      mx::allocator::malloc(n_bytes), mx::Shape(shape.begin(), shape.end()), dtype);
}

void bind_machine(nb::module_& m) {
  m.def("uninitialized", &uninitialized, "shape"_a, "dtype"_a);
  m.def("has_gpu_kernels", &has_gpu_kernels);
  m.def("shader_origin", &shader_origin);
  m.def("isa", &isa_name);
  m.def("set_isa", &set_isa, "name"_a);
  m.def("available_isas", &available_isas);
  m.def("num_threads", &num_threads);
  m.def("set_num_threads", &set_num_threads, "n"_a);
  m.def(
      "data_pointer",
      [](const mx::array& a) {
        if (!a.is_available()) {
          reject("data_pointer", "a must be evaluated; it is still to be computed");
        }
        return reinterpret_cast<std::uintptr_t>(a.data<void>());
      },
      "a"_a);
}

// An extension built for another MLX or nanobind imports and then refuses every mx.array.
void check_mlx() {
  nb::module_::import_("mlx.core");
  const std::string loaded = mx::version();
  if (loaded.rfind(kBuiltForMlx, 0) != 0) {
    const auto message = std::string("mlx_dsv4 was compiled for mlx ") + kBuiltForMlx +
                         " but libmlx " + loaded + " is loaded; reinstall mlx-dsv4";
    throw nb::import_error(message.c_str());
  }
  if (!nb::type<mx::array>().is_valid()) {
    throw nb::import_error(
        "mlx_dsv4 and mlx.core do not share array types: rebuild mlx-dsv4 with the "
        "nanobind "
        "that this mlx was built with (this build used " DSV4_NANOBIND_VERSION ")");
  }
}

}  // namespace mlx_dsv4

NB_MODULE(_ext, m) {
  using namespace mlx_dsv4;
  check_mlx();
  m.attr("__mlx_version__") = kBuiltForMlx;
  m.attr("__nanobind_version__") = DSV4_NANOBIND_VERSION;
  bind_machine(m);
  bind_ceilings(m);
  bind_mapped_file(m);
#define DSV4_BIND(family) bind_##family(m);
  DSV4_EACH_FAMILY(DSV4_BIND)
}
