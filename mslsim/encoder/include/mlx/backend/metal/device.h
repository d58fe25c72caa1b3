// Stands in for MLX's header: the part of its API that an op's eval_gpu() uses, with the same
// signatures, over the simulator. A dispatch runs before it returns and throws what it finds.
#pragma once

#include <Metal/Metal.hpp>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "mlx/array.h"
#include "mlx/backend/common/metal_kernel.h"
#include "mlx/backend/metal/metal.h"
#include "mlx/device.h"
#include "mlx/stream.h"
#include "mlx/utils.h"

struct msl_kernel;
struct msl_param;

namespace mslsim {
class Pipelines;
class Hazards;
}  // namespace mslsim

namespace MTL {

// The source of a shader library; compiled once per mode.
class Library {
 public:
  Library(std::string name, std::string source);
  ~Library();
  const std::string& name() const { return name_; }
  mslsim::Pipelines& pipelines() { return *pipelines_; }

 private:
  std::string name_;
  std::unique_ptr<mslsim::Pipelines> pipelines_;
};

class ComputePipelineState {
 public:
  using Constants = std::vector<std::tuple<const void*, DataType, NS::UInteger>>;
  ComputePipelineState(Library* library, std::string name, const Constants& constants);
  NS::UInteger maxTotalThreadsPerThreadgroup() const;
  NS::UInteger threadExecutionWidth() const { return 32; }
  const std::string& name() const { return name_; }
  Library& library() const { return *library_; }

  struct Constant {
    int index;
    std::uint64_t integer;
    double real;
  };
  const std::vector<Constant>& constants() const { return constants_; }

 private:
  Library* library_;
  std::string name_;
  std::vector<Constant> constants_;
};

}  // namespace MTL

namespace mlx::core::metal {

using MTLFCList = std::vector<std::tuple<const void*, MTL::DataType, NS::UInteger>>;

class CommandEncoder {
 public:
  explicit CommandEncoder(int stream);
  ~CommandEncoder();
  CommandEncoder(const CommandEncoder&) = delete;
  CommandEncoder& operator=(const CommandEncoder&) = delete;

  void set_input_array(const array& a, int idx, int64_t offset = 0);
  void set_output_array(array& a, int idx, int64_t offset = 0);

  void add_temporary(array arr);
  void add_temporaries(std::vector<array> arrays);

  void dispatch_threadgroups(MTL::Size grid_dims, MTL::Size group_dims);
  void dispatch_threads(MTL::Size grid_dims, MTL::Size group_dims);

  // What is bound stays bound on Metal; here every pipeline starts with nothing bound.
  void set_compute_pipeline_state(MTL::ComputePipelineState* kernel);

  template <typename Vec, typename = std::enable_if_t<is_vector_v<Vec>>>
  void set_vector_bytes(const Vec& vec, size_t nelems, int idx) {
    using T = typename Vec::value_type;
    if (nelems > 0) {
      set_raw_bytes(vec.data(), nelems * sizeof(T), idx);
    } else {
      T val{};
      set_raw_bytes(&val, sizeof(T), idx);
    }
  }
  template <typename Vec, typename = std::enable_if_t<is_vector_v<Vec>>>
  void set_vector_bytes(const Vec& vec, int idx) {
    return set_vector_bytes(vec, vec.size(), idx);
  }

  template <typename T>
  void set_bytes(const T* v, int n, int idx) {
    set_raw_bytes(v, n * sizeof(T), idx);
  }
  template <typename T>
  void set_bytes(const T& v, int idx) {
    set_raw_bytes(&v, sizeof(T), idx);
  }

  void set_threadgroup_memory_length(size_t length, int idx);
  void barrier();

  // The simulator's own: which arrays a primitive may bind without adding them as temporaries.
  void begin_primitive(const std::vector<array>& inputs);
  void end_primitive(const std::vector<array>& outputs);
  // Forgets bindings and hazards, as a commit that has completed does.
  void reset();

 private:
  struct Binding {
    enum Kind { kInput, kOutput, kBytes } kind;
    char* data = nullptr;
    size_t n_bytes = 0;
    int begin = 0;  // low bits of its address: Metal's buffers begin at a page
    std::shared_ptr<array::Data> memory;
    std::vector<char> bytes;
    bool fresh = false;
  };
  struct Grid {
    MTL::Size size;
    MTL::Size group;
    bool is_threads;
  };

  void set_raw_bytes(const void* data, size_t n_bytes, int idx);
  void bind(const array& a, int idx, int64_t offset, Binding::Kind kind);
  void dispatch(const Grid& grid);
  void record(const Grid& grid) const;
  void check_grid(const Grid& grid) const;
  void check_bindings(const msl_kernel& kernel) const;
  void check_direction(const msl_param& param, const Binding& binding) const;
  void check_hazards();
  void run(const msl_kernel& kernel, const Grid& grid);
  [[noreturn]] void fail(const std::string& message) const;

  MTL::ComputePipelineState* kernel_ = nullptr;
  std::map<int, Binding> bindings_;
  std::map<int, size_t> threadgroup_bytes_;
  std::unique_ptr<mslsim::Hazards> hazards_;
};

class Device {
 public:
  Device() = default;
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  MTL::Library* get_library(
      const std::string& name,
      const CompileOptions& compile_options,
      const std::function<std::string(void)>& builder);
  MTL::Library* get_library(
      const std::string& name, const std::function<std::string(void)>& builder) {
    return get_library(name, {}, builder);
  }
  // A library that was built ahead of time is machine code for Apple's GPUs: throws.
  MTL::Library* get_library(const std::string& name, const std::string& path);
  void clear_library(const std::string& name);

  MTL::ComputePipelineState* get_kernel(
      const std::string& base_name,
      MTL::Library* mtl_lib,
      const std::string& hash_name = "",
      const MTLFCList& func_consts = {},
      const std::vector<MTL::Function*>& linked_functions = {});

 private:
  using Pipeline = std::unique_ptr<MTL::ComputePipelineState>;
  std::unordered_map<std::string, std::unique_ptr<MTL::Library>> libraries_;
  std::map<std::pair<MTL::Library*, std::string>, Pipeline> kernels_;
};

Device& device(mlx::core::Device);
CommandEncoder& get_command_encoder(Stream s);

}  // namespace mlx::core::metal
