// CommandEncoder of the shim: checks what Metal's validation layer would, then runs the kernel,
// on the simulator or on an NVIDIA GPU.
#include <algorithm>
#include <mutex>
#include <set>
#include <sstream>
#include <stdexcept>
#include <utility>

#include "control.h"
#include "cuda_launch.h"
#include "hazards.h"
#include "mlx/backend/metal/device.h"
#include "pipelines.h"

namespace mlx::core::metal {
namespace {

constexpr size_t kMostSetBytes = 4096;

std::unordered_map<int, std::unique_ptr<CommandEncoder>>& encoders() {
  // Never destroyed: it holds arrays, whose allocator may be gone by then.
  static auto& all = *new std::unordered_map<int, std::unique_ptr<CommandEncoder>>;
  return all;
}

std::string spelled(const MTL::Size& size) {
  std::ostringstream text;
  text << '(' << size.width << ", " << size.height << ", " << size.depth << ')';
  return text.str();
}

bool active(const msl_param& param) { return param.fc == nullptr || *param.fc; }

std::string spelled(const msl_param& param) {
  return "buffer " + std::to_string(param.index) + " (" + param.name + ")";
}

std::string source_lines(const std::string& library, const char* word, uint64_t offset) {
  if (offset == 0 || !mslsim::symbolizer()) {
    return "";
  }
  const std::string lines = mslsim::symbolizer()(library, offset);
  return lines.empty() ? "" : std::string("\n    ") + word + " " + lines;
}

std::string report(const std::string& library, const msl_findings* findings) {
  std::string text;
  for (int i = 0; i < msl_finding_count(findings); ++i) {
    const msl_finding finding = msl_finding_at(findings, i);
    text += std::string("\n[") + finding.kind + "] " + finding.text +
            source_lines(library, "at", finding.offset) +
            source_lines(library, "vs", finding.other_offset);
  }
  return text;
}

}  // namespace

CommandEncoder::CommandEncoder(int) : hazards_(std::make_unique<mslsim::Hazards>()) {}
CommandEncoder::~CommandEncoder() = default;

void CommandEncoder::fail(const std::string& message) const {
  throw std::runtime_error(
      "[encoder] " + (kernel_ == nullptr ? "" : kernel_->name() + " ") + message);
}

void CommandEncoder::set_compute_pipeline_state(MTL::ComputePipelineState* kernel) {
  kernel_ = kernel;
  bindings_.clear();
  threadgroup_bytes_.clear();
}

void CommandEncoder::bind(const array& a, int idx, int64_t offset, Binding::Kind kind) {
  if (a.data_shared_ptr() == nullptr) {
    fail("binds an array without memory at index " + std::to_string(idx));
  }
  const auto n_bytes = static_cast<int64_t>(a.data_size() * a.itemsize());
  if (offset < 0 || offset > n_bytes) {
    fail(
        "binds index " + std::to_string(idx) + " at offset " + std::to_string(offset) +
        " of " + std::to_string(n_bytes) + " bytes");
  }
  Binding binding;
  binding.kind = kind;
  binding.data = const_cast<char*>(a.data<char>()) + offset;
  binding.n_bytes = static_cast<size_t>(n_bytes - offset);
  binding.begin = static_cast<int>((a.offset() + offset) & 15);
  binding.memory = a.data_shared_ptr();
  bindings_[idx] = std::move(binding);
}

void CommandEncoder::set_input_array(const array& a, int idx, int64_t offset) {
  bind(a, idx, offset, Binding::kInput);
}

void CommandEncoder::set_output_array(array& a, int idx, int64_t offset) {
  bind(a, idx, offset, Binding::kOutput);
}

void CommandEncoder::set_raw_bytes(const void* data, size_t n_bytes, int idx) {
  if (n_bytes > kMostSetBytes) {
    fail(
        "sets " + std::to_string(n_bytes) + " bytes at index " + std::to_string(idx) +
        "; Metal takes at most " + std::to_string(kMostSetBytes));
  }
  Binding binding;
  binding.kind = Binding::kBytes;
  const auto* begin = static_cast<const char*>(data);
  binding.bytes.assign(begin, begin + n_bytes);
  binding.n_bytes = n_bytes;
  bindings_[idx] = std::move(binding);
}

void CommandEncoder::set_threadgroup_memory_length(size_t length, int idx) {
  if (length % 16 != 0) {
    fail(
        "asks for " + std::to_string(length) +
        " bytes of threadgroup memory; must be a multiple of 16");
  }
  threadgroup_bytes_[idx] = length;
}

void CommandEncoder::add_temporary(array arr) { hazards_->add_temporary(arr); }

void CommandEncoder::add_temporaries(std::vector<array> arrays) {
  for (const array& a : arrays) {
    hazards_->add_temporary(a);
  }
}

void CommandEncoder::barrier() { hazards_->barrier(); }

void CommandEncoder::begin_primitive(const std::vector<array>& inputs) {
  hazards_->begin_primitive(inputs);
}

void CommandEncoder::end_primitive(const std::vector<array>& outputs) {
  hazards_->end_primitive(outputs);
}

void CommandEncoder::reset() {
  kernel_ = nullptr;
  bindings_.clear();
  threadgroup_bytes_.clear();
  hazards_->reset();
}

void CommandEncoder::dispatch_threadgroups(MTL::Size grid_dims, MTL::Size group_dims) {
  dispatch({grid_dims, group_dims, false});
}

void CommandEncoder::dispatch_threads(MTL::Size grid_dims, MTL::Size group_dims) {
  dispatch({grid_dims, group_dims, true});
}

void CommandEncoder::dispatch(const Grid& grid) {
  if (kernel_ == nullptr) {
    fail("dispatch without a compute pipeline state");
  }
  record(grid);
  const auto* kernel = kernel_->library().pipelines().kernel(
      kernel_->name(), kernel_->constants(), mslsim::control().mode);
  check_grid(grid);
  check_bindings(*kernel);
  check_hazards();
  run(*kernel, grid);
}

void CommandEncoder::record(const Grid& grid) const {
  mslsim::LaunchRecord launch{
      kernel_->name(),
      {grid.size.width, grid.size.height, grid.size.depth},
      {grid.group.width, grid.group.height, grid.group.depth},
      grid.is_threads,
      {}};
  for (const auto& [index, binding] : bindings_) {
    static constexpr const char* kKinds[] = {"input", "output", "bytes"};
    launch.bindings.push_back({index, kKinds[binding.kind], binding.n_bytes});
  }
  mslsim::record_launch(std::move(launch));
}

void CommandEncoder::check_grid(const Grid& grid) const {
  const auto volume = [](const MTL::Size& s) { return s.width * s.height * s.depth; };
  if (volume(grid.size) == 0) {
    fail("is dispatched with an empty grid " + spelled(grid.size));
  }
  const auto most = kernel_->maxTotalThreadsPerThreadgroup();
  if (volume(grid.group) == 0 || volume(grid.group) > most) {
    fail(
        "is dispatched with threadgroups of " + spelled(grid.group) +
        "; must have 1 to " + std::to_string(most) + " threads");
  }
}

void CommandEncoder::check_bindings(const msl_kernel& kernel) const {
  std::set<int> known;
  for (int i = 0; i < kernel.nparams; ++i) {
    const msl_param& param = kernel.params[i];
    if (param.kind == MSL_THREADGROUP && !threadgroup_bytes_.contains(param.index)) {
      fail(
          "has threadgroup memory " + std::to_string(param.index) + " (" + param.name +
          ") without a length");
    }
    if (param.kind != MSL_BUFFER) {
      continue;
    }
    known.insert(param.index);
    if (!active(param)) {
      continue;
    }
    const auto found = bindings_.find(param.index);
    if (found == bindings_.end()) {
      fail("runs with " + spelled(param) + " not bound");
    }
    check_direction(param, found->second);
  }
  for (const auto& [index, binding] : bindings_) {
    if (!known.contains(index)) {
      fail("has no buffer " + std::to_string(index) + ", but one is bound");
    }
  }
}

void CommandEncoder::check_direction(
    const msl_param& param, const Binding& binding) const {
  if (!param.readonly && binding.kind == Binding::kBytes) {
    fail("writes " + spelled(param) + ", which is bound with set_bytes");
  }
  if (!param.readonly && binding.kind == Binding::kInput) {
    fail("writes " + spelled(param) + ", which is bound with set_input_array");
  }
  if (param.readonly && binding.kind == Binding::kOutput) {
    fail("only reads " + spelled(param) + ", which is bound with set_output_array");
  }
  if (binding.kind == Binding::kInput &&
      hazards_->never_written(binding.memory->buffer().ptr())) {
    fail("reads " + spelled(param) + ", which no kernel has written");
  }
}

void CommandEncoder::check_hazards() {
  std::vector<mslsim::Hazards::Use> uses;
  for (auto& [index, binding] : bindings_) {
    if (binding.kind == Binding::kBytes) {
      continue;
    }
    const bool writes = binding.kind == Binding::kOutput;
    binding.fresh = writes && hazards_->never_written(binding.memory->buffer().ptr());
    uses.push_back({index, writes, binding.memory});
  }
  if (const auto index = hazards_->dispatch(uses)) {
    fail(
        "writes buffer " + std::to_string(*index) +
        " which an earlier kernel of this encoder reads; barrier() is missing");
  }
}

void CommandEncoder::run(const msl_kernel& kernel, const Grid& grid) {
  const auto& control = mslsim::control();
  msl_launch launch{};
  launch.kernel = &kernel;
  for (auto& [index, binding] : bindings_) {
    launch.buffer_data[index] =
        binding.kind == Binding::kBytes ? binding.bytes.data() : binding.data;
    launch.buffer_bytes[index] = binding.n_bytes;
    launch.buffer_flags[index] = (binding.kind == Binding::kOutput ? 0 : MSL_READ_ONLY) |
                                 (binding.fresh ? MSL_FRESH : 0) |
                                 binding.begin * MSL_BEGIN;
  }
  for (const auto& [index, length] : threadgroup_bytes_) {
    launch.threadgroup_bytes[index] = static_cast<uint32_t>(length);
  }
  const auto copy = [](const MTL::Size& from, uint32_t* to) {
    to[0] = static_cast<uint32_t>(from.width);
    to[1] = static_cast<uint32_t>(from.height);
    to[2] = static_cast<uint32_t>(from.depth);
  };
  copy(grid.size, launch.grid);
  copy(grid.group, launch.threadgroup);
  launch.grid_is_threads = grid.is_threads;
  launch.order = static_cast<int>(control.order);
  launch.seed = control.seed;
  launch.check = control.checks();
  launch.workers = control.workers;
  launch.timeout_s = control.timeout_s;
  if (control.on_cuda()) {
    const auto& cubin = kernel_->library().pipelines().compiled(control.mode);
    mslsim::record_time(mslsim::cuda::dispatch(cubin, launch, control.repeats));
    return;
  }
  msl_dispatch(&launch);
  const std::string found =
      report(kernel_->library().pipelines().compiled(control.mode), launch.findings);
  msl_free_findings(launch.findings);
  if (!found.empty() || launch.failed) {
    throw std::runtime_error("[mslsim] " + kernel_->name() + ":" + found);
  }
}

CommandEncoder& get_command_encoder(Stream s) {
  auto& encoder = encoders()[s.index];
  if (encoder == nullptr) {
    encoder = std::make_unique<CommandEncoder>(s.index);
  }
  return *encoder;
}

}  // namespace mlx::core::metal

namespace mslsim {

void reset_encoders() {
  for (auto& [stream, encoder] : mlx::core::metal::encoders()) {
    encoder->reset();
  }
}

}  // namespace mslsim
