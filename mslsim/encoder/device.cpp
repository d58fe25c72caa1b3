// Device, Library and ComputePipelineState of the shim.
#include "mlx/backend/metal/device.h"

#include <stdexcept>
#include <utility>

#include "control.h"
#include "cuda_launch.h"
#include "mlx/backend/metal/utils.h"
#include "pipelines.h"

namespace mslsim {

Pipelines::Pipelines(std::string name, std::string source)
    : name_(std::move(name)), source_(std::move(source)) {}

const std::string& Pipelines::compiled(const std::string& mode) {
  auto found = paths_.find(mode);
  if (found == paths_.end()) {
    if (!compiler()) {
      throw std::runtime_error("[metal::Device] the simulator has no compiler");
    }
    std::string path;
    try {
      path = compiler()(name_, source_, mode);
    } catch (const std::exception& error) {
      throw std::runtime_error(
          std::string("[metal::Device] Unable to build metal library from source\n") +
          error.what());
    }
    found = paths_.emplace(mode, std::move(path)).first;
  }
  return found->second;
}

const msl_kernel* Pipelines::kernel(
    const std::string& name, const Constants& constants, const std::string& mode) {
  if (mode == "cuda") {
    return cuda_kernel(name, constants);
  }
  const msl_library* library = open(compiled(mode), constants);
  for (int i = 0; i < msl_kernel_count(library); ++i) {
    if (msl_kernel_at(library, i)->name == name) {
      return msl_kernel_at(library, i);
    }
  }
  fail_to_load(name);
}

const msl_kernel* Pipelines::cuda_kernel(
    const std::string& name, const Constants& constants) {
  if (!constants.empty()) {
    throw std::runtime_error(
        "[cuda] " + name + " is given " + std::to_string(constants.size()) +
        " function constants; a cubin has none");
  }
  const auto* kernel = cuda::kernel(compiled("cuda"), name);
  if (kernel == nullptr) {
    fail_to_load(name);
  }
  return kernel;
}

void Pipelines::fail_to_load(const std::string& name) const {
  throw std::runtime_error(
      "[metal::Device] Unable to load kernel " + name + ": library " + name_ +
      " has no function of that name");
}

const msl_library* Pipelines::open(const std::string& path, const Constants& constants) {
  std::vector<msl_constant> values;
  std::string key;
  for (const auto& c : constants) {
    values.push_back({c.index, nullptr, c.integer, c.real});
    key += std::to_string(c.index) + '=' + std::to_string(c.integer) + '/' +
           std::to_string(c.real) + ' ';
  }
  auto& library = opened_[{path, key}];
  if (library == nullptr) {
    library = msl_open(path.c_str(), static_cast<int>(values.size()), values.data());
    if (library == nullptr) {
      throw std::runtime_error(std::string("[metal::Device] ") + msl_open_error());
    }
  }
  return library;
}

}  // namespace mslsim

namespace MTL {
namespace {

template <typename T>
ComputePipelineState::Constant as(const void* data, NS::UInteger index) {
  T value;
  std::memcpy(&value, data, sizeof(T));
  return {
      static_cast<int>(index),
      static_cast<uint64_t>(static_cast<int64_t>(value)),
      static_cast<double>(value)};
}

ComputePipelineState::Constant read_constant(
    const void* data, DataType type, NS::UInteger index) {
  switch (type) {
    case DataTypeBool:
      return as<bool>(data, index);
    case DataTypeChar:
      return as<int8_t>(data, index);
    case DataTypeUChar:
      return as<uint8_t>(data, index);
    case DataTypeShort:
      return as<int16_t>(data, index);
    case DataTypeUShort:
      return as<uint16_t>(data, index);
    case DataTypeInt:
      return as<int32_t>(data, index);
    case DataTypeUInt:
      return as<uint32_t>(data, index);
    case DataTypeFloat:
      return as<float>(data, index);
    default:
      throw std::runtime_error("[metal::Device] unsupported type of a function constant");
  }
}

}  // namespace

Library::Library(std::string name, std::string source)
    : name_(name),
      pipelines_(
          std::make_unique<mslsim::Pipelines>(std::move(name), std::move(source))) {}

Library::~Library() = default;

ComputePipelineState::ComputePipelineState(
    Library* library, std::string name, const Constants& constants)
    : library_(library), name_(std::move(name)) {
  for (const auto& [data, type, index] : constants) {
    constants_.push_back(read_constant(data, type, index));
  }
}

NS::UInteger ComputePipelineState::maxTotalThreadsPerThreadgroup() const {
  const auto* kernel =
      library_->pipelines().kernel(name_, constants_, mslsim::control().mode);
  return kernel->max_threads > 0 ? kernel->max_threads : MSL_MAX_THREADS;
}

}  // namespace MTL

namespace mlx::core::metal {

MTL::Library* Device::get_library(
    const std::string& name,
    const CompileOptions&,
    const std::function<std::string(void)>& builder) {
  auto& library = libraries_[name];
  if (library == nullptr) {
    auto made = std::make_unique<MTL::Library>(name, builder());
    made->pipelines().compiled(mslsim::control().mode);
    library = std::move(made);
  }
  return library.get();
}

MTL::Library* Device::get_library(const std::string&, const std::string& path) {
  throw std::runtime_error(
      "[metal::Device] Unable to load metal library from " + path +
      ": the simulator compiles sources");
}

void Device::clear_library(const std::string& name) {
  const auto found = libraries_.find(name);
  if (found == libraries_.end()) {
    return;
  }
  std::erase_if(kernels_, [&](const auto& entry) {
    return entry.first.first == found->second.get();
  });
  libraries_.erase(found);
}

MTL::ComputePipelineState* Device::get_kernel(
    const std::string& base_name,
    MTL::Library* mtl_lib,
    const std::string& hash_name,
    const MTLFCList& func_consts,
    const std::vector<MTL::Function*>& linked_functions) {
  if (!linked_functions.empty()) {
    throw std::runtime_error("[metal::Device] linked functions are not simulated");
  }
  auto& kernel = kernels_[{mtl_lib, hash_name.empty() ? base_name : hash_name}];
  if (kernel == nullptr) {
    auto made =
        std::make_unique<MTL::ComputePipelineState>(mtl_lib, base_name, func_consts);
    made->maxTotalThreadsPerThreadgroup();  // throws when the library lacks the function
    kernel = std::move(made);
  }
  return kernel.get();
}

Device& device(mlx::core::Device) {
  static Device the_device;
  return the_device;
}

}  // namespace mlx::core::metal

namespace mlx::core {

std::string type_to_name(const Dtype& t) {
  switch (t.val()) {
    case Dtype::Val::bool_:
      return "bool_";
    case Dtype::Val::uint8:
      return "uint8";
    case Dtype::Val::uint16:
      return "uint16";
    case Dtype::Val::uint32:
      return "uint32";
    case Dtype::Val::uint64:
      return "uint64";
    case Dtype::Val::int8:
      return "int8";
    case Dtype::Val::int16:
      return "int16";
    case Dtype::Val::int32:
      return "int32";
    case Dtype::Val::int64:
      return "int64";
    case Dtype::Val::float16:
      return "float16";
    case Dtype::Val::bfloat16:
      return "bfloat16";
    case Dtype::Val::float32:
      return "float32";
    default:
      throw std::runtime_error("[type_to_name] unsupported element type");
  }
}

std::string type_to_name(const array& a) { return type_to_name(a.dtype()); }

}  // namespace mlx::core
