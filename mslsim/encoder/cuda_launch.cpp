#include "cuda_launch.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <vector>

#include "../include/msl_cuda.h"
#include "cuda_driver.h"

namespace mslsim::cuda {
namespace {

constexpr int kMaxDynamicSharedBytes =
    8;  // CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
constexpr uint32_t kUsualSharedBytes = 48 << 10;
constexpr uint32_t kMostGroups[3] = {0x7fffffff, 65535, 65535};
constexpr unsigned char kNan = 0xff;

// The binding table of a kernel, as a launch on the simulator has it.
struct Entry {
  std::string name;
  Function function = nullptr;
  std::vector<msl_cuda_param> rows;
  std::vector<msl_param> params;
  msl_kernel kernel{};
};

std::string symbol(std::string name) {
  std::ranges::replace_if(name, [](unsigned char c) { return !std::isalnum(c); }, '_');
  return name;
}

Module module(const std::string& cubin) {
  static std::map<std::string, Module> loaded;
  Module& found = loaded[cubin];
  if (found == nullptr) {
    check(driver().cuModuleLoad(&found, cubin.c_str()), "cuModuleLoad of " + cubin);
  }
  return found;
}

// Null if the cubin has no table of that kernel.
std::unique_ptr<Entry> read_entry(const std::string& cubin, const std::string& name) {
  const Driver& cuda = driver();
  const Module from = module(cubin);
  Address at = 0;
  size_t n_bytes = 0;
  const auto table = "msl_table_" + symbol(name);
  if (cuda.cuModuleGetGlobal_v2(&at, &n_bytes, from, table.c_str()) != 0) {
    return nullptr;
  }
  std::vector<char> bytes(n_bytes);
  check(cuda.cuMemcpyDtoH_v2(bytes.data(), at, n_bytes), name + ": reading its table");
  msl_cuda_header header{};
  std::memcpy(&header, bytes.data(), std::min(n_bytes, sizeof(header)));
  if (header.abi != MSL_CUDA_ABI ||
      n_bytes != sizeof(header) + header.n_params * sizeof(msl_cuda_param)) {
    throw std::runtime_error(
        "[cuda] " + cubin + " was compiled by another version of mslsim: " + name +
        " has a table of " + std::to_string(n_bytes) + " bytes and version " +
        std::to_string(header.abi) + "; expected version " +
        std::to_string(MSL_CUDA_ABI));
  }
  auto entry = std::make_unique<Entry>();
  entry->name = name;
  const auto function = "msl_kernel_" + symbol(name);
  check(
      cuda.cuModuleGetFunction(&entry->function, from, function.c_str()),
      name + ": cuModuleGetFunction");
  entry->rows.resize(header.n_params);
  std::memcpy(
      entry->rows.data(),
      bytes.data() + sizeof(header),
      header.n_params * sizeof(msl_cuda_param));
  for (const auto& row : entry->rows) {
    entry->params.push_back(
        {static_cast<msl_kind>(row.kind),
         row.index,
         row.name,
         "",
         nullptr,
         row.readonly != 0});
  }
  entry->kernel.name = entry->name.c_str();
  entry->kernel.params = entry->params.data();
  entry->kernel.nparams = static_cast<int>(header.n_params);
  entry->kernel.max_threads = static_cast<int>(header.max_threads);
  return entry;
}

// Never destroyed: pipelines point into it.
std::map<std::pair<std::string, std::string>, std::unique_ptr<Entry>>& entries() {
  static auto& all =
      *new std::map<std::pair<std::string, std::string>, std::unique_ptr<Entry>>;
  return all;
}

const Entry* find(const std::string& cubin, const std::string& name) {
  static std::mutex one_at_a_time;
  const std::lock_guard lock(one_at_a_time);
  auto& entry = entries()[{cubin, name}];
  if (entry == nullptr) {
    entry = read_entry(cubin, name);
  }
  return entry.get();
}

// The copy of a buffer on the GPU, as far from a multiple of 16 as the original.
class DeviceBuffer {
 public:
  DeviceBuffer(const msl_launch& launch, int index, const std::string& kernel)
      : data_(launch.buffer_data[index]),
        n_bytes_(launch.buffer_bytes[index]),
        flags_(launch.buffer_flags[index]),
        what_(kernel + ": buffer " + std::to_string(index)) {
    const size_t begin = static_cast<size_t>(flags_) / MSL_BEGIN;
    check(
        cuda_.cuMemAlloc_v2(&base_, std::max<size_t>(begin + n_bytes_, 1)),
        what_ + " of " + std::to_string(n_bytes_) + " bytes");
    at_ = base_ + begin;
    if (n_bytes_ == 0) {
      return;
    }
    if ((flags_ & MSL_FRESH) == 0) {
      check(cuda_.cuMemcpyHtoD_v2(at_, data_, n_bytes_), what_);
    } else if (std::getenv("MSLSIM_CUDA_UNFILLED") == nullptr) {
      check(cuda_.cuMemsetD8_v2(at_, kNan, n_bytes_), what_);
    }
  }
  DeviceBuffer(const DeviceBuffer&) = delete;
  DeviceBuffer& operator=(const DeviceBuffer&) = delete;
  // A failed kernel takes the context with it: there is nothing left to free then.
  ~DeviceBuffer() { cuda_.cuMemFree_v2(base_); }

  Address address() const { return at_; }

  void copy_back() const {
    if ((flags_ & MSL_READ_ONLY) == 0 && n_bytes_ > 0) {
      check(cuda_.cuMemcpyDtoH_v2(data_, at_, n_bytes_), what_);
    }
  }

 private:
  const Driver& cuda_ = driver();
  void* data_;
  size_t n_bytes_;
  int flags_;
  std::string what_;
  Address base_ = 0, at_ = 0;
};

struct Grid {
  uint32_t groups[3];
  uint32_t shared_bytes = 0;
};

Grid grid_of(const msl_launch& launch, const std::string& kernel) {
  Grid grid;
  for (int i = 0; i < 3; ++i) {
    const uint32_t size = launch.grid[i], group = launch.threadgroup[i];
    if (launch.grid_is_threads && size % group != 0) {
      throw std::runtime_error(
          "[cuda] " + kernel +
          ": the GPU has whole threadgroups only: " + std::to_string(size) +
          " threads must be a multiple of " + std::to_string(group));
    }
    grid.groups[i] = launch.grid_is_threads ? size / group : size;
    if (grid.groups[i] > kMostGroups[i]) {
      throw std::runtime_error(
          "[cuda] " + kernel + ": dimension " + std::to_string(i) +
          " of the grid must be at most " + std::to_string(kMostGroups[i]) +
          " threadgroups; got " + std::to_string(grid.groups[i]));
    }
  }
  return grid;
}

void launch_once(
    const Entry& entry, const Grid& grid, const uint32_t* group, msl_cuda_launch& bound) {
  void* arguments[] = {&bound};
  check(
      driver().cuLaunchKernel(
          entry.function,
          grid.groups[0],
          grid.groups[1],
          grid.groups[2],
          group[0],
          group[1],
          group[2],
          grid.shared_bytes,
          nullptr,
          arguments,
          nullptr),
      entry.name + ": cuLaunchKernel");
}

}  // namespace

const msl_kernel* kernel(const std::string& cubin, const std::string& name) {
  const Entry* entry = find(cubin, name);
  return entry == nullptr ? nullptr : &entry->kernel;
}

double dispatch(const std::string& cubin, const msl_launch& launch, int repeats) {
  const Entry& entry = *find(cubin, launch.kernel->name);
  const Driver& cuda = driver();
  Grid grid = grid_of(launch, entry.name);
  msl_cuda_launch bound{};
  for (int i = 0; i < MSL_CUDA_BUFFERS; ++i) {
    bound.threadgroup_at[i] = grid.shared_bytes;
    grid.shared_bytes += launch.threadgroup_bytes[i];
  }
  if (grid.shared_bytes > kUsualSharedBytes) {
    check(
        cuda.cuFuncSetAttribute(
            entry.function, kMaxDynamicSharedBytes, static_cast<int>(grid.shared_bytes)),
        entry.name + ": " + std::to_string(grid.shared_bytes) +
            " bytes of shared memory");
  }
  std::vector<std::unique_ptr<DeviceBuffer>> buffers;
  for (int i = 0; i < MSL_CUDA_BUFFERS; ++i) {
    if (launch.buffer_data[i] != nullptr) {
      buffers.push_back(std::make_unique<DeviceBuffer>(launch, i, entry.name));
      bound.buffers[i] = reinterpret_cast<void*>(buffers.back()->address());
    }
  }
  launch_once(entry, grid, launch.threadgroup, bound);
  check(cuda.cuCtxSynchronize(), entry.name);
  for (const auto& buffer : buffers) {
    buffer->copy_back();
  }
  if (repeats == 0) {
    return 0;
  }
  static Event begin = nullptr, end = nullptr;
  if (begin == nullptr) {
    check(cuda.cuEventCreate(&begin, 0), "cuEventCreate");
    check(cuda.cuEventCreate(&end, 0), "cuEventCreate");
  }
  check(cuda.cuEventRecord(begin, nullptr), "cuEventRecord");
  for (int i = 0; i < repeats; ++i) {
    launch_once(entry, grid, launch.threadgroup, bound);
  }
  check(cuda.cuEventRecord(end, nullptr), "cuEventRecord");
  check(cuda.cuCtxSynchronize(), entry.name);
  float elapsed_ms = 0;
  check(cuda.cuEventElapsedTime(&elapsed_ms, begin, end), "cuEventElapsedTime");
  return 1e3 * elapsed_ms / repeats;
}

}  // namespace mslsim::cuda
