#include "metal_library.h"

#include <dlfcn.h>

#include <cstdlib>
#include <filesystem>
#include <string_view>

#include "metal_sources.h"
#include "mlx/backend/metal/device.h"

namespace mlx_dsv4 {
namespace {

namespace fs = std::filesystem;

// Forces one of the two origins; for tests and for reports of errors.
constexpr auto kOriginVariable = "MLX_DSV4_SHADERS";
constexpr auto kLibraryFile = "mlx_dsv4.metallib";

fs::path library_path() {
  Dl_info info;
  if (dladdr(reinterpret_cast<void*>(&library_path), &info) == 0) {
    return {};
  }
  return fs::path(info.dli_fname).parent_path() / kLibraryFile;
}

bool library_wanted() {
  const char* origin = std::getenv(kOriginVariable);
  const std::string_view wanted = origin == nullptr ? "" : origin;
  if (wanted != "" && wanted != "source" && wanted != "library") {
    throw std::runtime_error(
        std::string(kOriginVariable) + " must be source or library; got " + origin);
  }
  return wanted == "library" || (wanted != "source" && fs::exists(library_path()));
}

bool use_library() {
  static const bool use = library_wanted();
  return use;
}

const ShaderSource& shader_source(const std::string& family) {
  for (const auto& source : kShaderSources) {
    if (family == source.family) {
      return source;
    }
  }
  throw std::runtime_error("no shader source of the kernel family " + family);
}

bool built_ahead(const ShaderSource& source, const std::string& name) {
  const auto names = std::string(" ") + source.built_ahead + " ";
  return names.find(" " + name + " ") != std::string::npos;
}

std::string join(const std::vector<std::string>& parts, const char* separator) {
  std::string joined;
  for (const auto& part : parts) {
    joined += (joined.empty() ? "" : separator) + part;
  }
  return joined;
}

// MLX keeps libraries by name alone, in one map for every extension of the process: the name
// holds a hash of the source.
MTL::Library* compile(
    mx::metal::Device& device,
    const ShaderSource& source,
    const std::string& name,
    const std::string& instantiation) {
  const auto library = std::string("mlx_dsv4_") + name + "_" + source.hash;
  return device.get_library(library, [&] {
    return std::string(source.text) + "#line 1 \"instantiation\"\n" + instantiation +
           "\n";
  });
}

}  // namespace

MTL::ComputePipelineState* metal_kernel(
    mx::Stream stream,
    const std::string& family,
    const std::string& function,
    const std::vector<std::string>& arguments) {
  auto& device = mx::metal::device(stream.device);
  const auto& source = shader_source(family);
  auto name = function;
  std::string instantiation;
  if (!arguments.empty()) {
    name += "_" + join(arguments, "_");
    const auto kernel = function + "<" + join(arguments, ", ") + ">";
    instantiation = "template [[host_name(\"" + name + "\")]] [[kernel]] decltype(" +
                    kernel + ") " + kernel + ";";
  }
  auto* library = use_library() && built_ahead(source, name)
                      ? device.get_library("mlx_dsv4", library_path().string())
                      : compile(device, source, name, instantiation);
  return device.get_kernel(name, library);
}

std::string metal_type(mx::Dtype dtype) {
  switch (dtype) {
    case mx::bfloat16:
      return "bfloat";
    case mx::float16:
      return "half";
    case mx::float32:
      return "float";
    default:
      throw std::runtime_error("no Metal kernel takes this element type");
  }
}

bool has_gpu_kernels() { return true; }

std::string shader_origin() {
  return use_library()
             ? "built ahead of time: " + library_path().string()
             : "compiled from the sources inside the extension, each kernel on first use";
}

}  // namespace mlx_dsv4
