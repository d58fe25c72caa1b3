// A libcuda.so.1 without a GPU, for tests of the launch code: memory is the host's, symbols are those
// of the cubin, and a kernel writes 7 into each byte of what is bound at index 1. FAKE_CUDA_FAILS
// names a function that returns an error.
#include <elf.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <vector>

namespace {

using Address = unsigned long long;
constexpr int kFound = 0, kOutOfMemory = 2, kNotFound = 500, kFailed = 719;

struct Cubin {
  std::vector<char> bytes;
};

std::map<Address, size_t>& allocations() {
  static auto& all = *new std::map<Address, size_t>;
  return all;
}

void log(const std::string& line) {
  std::FILE* file = std::fopen(std::getenv("FAKE_CUDA_LOG"), "a");
  std::fprintf(file, "%s\n", line.c_str());
  std::fclose(file);
}

bool fails(const char* function) {
  const char* named = std::getenv("FAKE_CUDA_FAILS");
  return named != nullptr && std::strcmp(named, function) == 0;
}

// Where a symbol's bytes are in the file; null if there is none.
char* find(Cubin& cubin, const std::string& name, size_t* n_bytes) {
  char* file = cubin.bytes.data();
  const auto* header = reinterpret_cast<const Elf64_Ehdr*>(file);
  const auto* sections = reinterpret_cast<const Elf64_Shdr*>(file + header->e_shoff);
  for (int i = 0; i < header->e_shnum; ++i) {
    if (sections[i].sh_type != SHT_SYMTAB) {
      continue;
    }
    const char* strings = file + sections[sections[i].sh_link].sh_offset;
    const auto* symbols =
        reinterpret_cast<const Elf64_Sym*>(file + sections[i].sh_offset);
    for (size_t s = 0; s < sections[i].sh_size / sizeof(Elf64_Sym); ++s) {
      if (name == strings + symbols[s].st_name && symbols[s].st_shndx != SHN_UNDEF) {
        *n_bytes = symbols[s].st_size;
        return file + sections[symbols[s].st_shndx].sh_offset + symbols[s].st_value;
      }
    }
  }
  return nullptr;
}

struct Kernel {
  std::string name;
};

}  // namespace

extern "C" {
int cuInit(unsigned) { return fails("cuInit") ? kFailed : kFound; }
int cuDeviceGetCount(int* n) { return *n = 1, kFound; }
int cuDeviceGet(int* device, int) { return *device = 0, kFound; }
int cuDevicePrimaryCtxRetain(void** context, int) { return *context = context, kFound; }
int cuCtxSetCurrent(void*) { return kFound; }
int cuCtxSynchronize() { return fails("cuCtxSynchronize") ? kFailed : kFound; }

int cuModuleLoad(Cubin** module, const char* path) {
  std::FILE* file = std::fopen(path, "rb");
  *module = new Cubin;
  std::fseek(file, 0, SEEK_END);
  (*module)->bytes.resize(std::ftell(file));
  std::rewind(file);
  const size_t n = std::fread((*module)->bytes.data(), 1, (*module)->bytes.size(), file);
  std::fclose(file);
  return n == (*module)->bytes.size() ? kFound : kNotFound;
}

int cuModuleGetFunction(Kernel** kernel, Cubin* module, const char* name) {
  size_t n_bytes = 0;
  *kernel = new Kernel{name};
  return find(*module, name, &n_bytes) == nullptr ? kNotFound : kFound;
}

int cuModuleGetGlobal_v2(Address* at, size_t* n_bytes, Cubin* module, const char* name) {
  *at = reinterpret_cast<Address>(find(*module, name, n_bytes));
  return *at == 0 ? kNotFound : kFound;
}

int cuFuncSetAttribute(Kernel*, int attribute, int value) {
  log("attribute " + std::to_string(attribute) + " = " + std::to_string(value));
  return kFound;
}

int cuLaunchKernel(
    Kernel* kernel,
    unsigned x,
    unsigned y,
    unsigned z,
    unsigned tx,
    unsigned ty,
    unsigned tz,
    unsigned shared_bytes,
    void*,
    void** arguments,
    void**) {
  const auto* buffers = static_cast<const Address*>(arguments[0]);
  char line[256];
  std::snprintf(
      line,
      sizeof(line),
      "launch %s (%u, %u, %u) (%u, %u, %u) %u",
      kernel->name.c_str(),
      x,
      y,
      z,
      tx,
      ty,
      tz,
      shared_bytes);
  log(line);
  if (buffers[1] == 0) {
    return kFound;
  }
  auto found = allocations().upper_bound(buffers[1]);
  --found;
  std::memset(
      reinterpret_cast<void*>(buffers[1]), 7, found->first + found->second - buffers[1]);
  return kFound;
}

int cuMemAlloc_v2(Address* at, size_t n_bytes) {
  if (fails("cuMemAlloc")) {
    return kOutOfMemory;
  }
  *at = reinterpret_cast<Address>(std::malloc(n_bytes));
  allocations()[*at] = n_bytes;
  log("alloc " + std::to_string(n_bytes));
  return kFound;
}

int cuMemFree_v2(Address at) {
  std::free(reinterpret_cast<void*>(at));
  allocations().erase(at);
  log("free, " + std::to_string(allocations().size()) + " left");
  return kFound;
}

int cuMemcpyHtoD_v2(Address to, const void* from, size_t n_bytes) {
  log("in " + std::to_string(n_bytes));
  return std::memcpy(reinterpret_cast<void*>(to), from, n_bytes), kFound;
}

int cuMemcpyDtoH_v2(void* to, Address from, size_t n_bytes) {
  log("out " + std::to_string(n_bytes));
  return std::memcpy(to, reinterpret_cast<const void*>(from), n_bytes), kFound;
}

int cuMemsetD8_v2(Address at, unsigned char value, size_t n_bytes) {
  log("fill " + std::to_string(n_bytes));
  return std::memset(reinterpret_cast<void*>(at), value, n_bytes), kFound;
}

int cuEventCreate(void** event, unsigned) { return *event = event, kFound; }
int cuEventRecord(void*, void*) { return kFound; }
int cuEventElapsedTime(float* milliseconds, void*, void*) {
  return *milliseconds = 6, kFound;
}

int cuGetErrorName(int error, const char** name) {
  *name = error == kOutOfMemory ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR_LAUNCH_FAILED";
  return kFound;
}
int cuGetErrorString(int error, const char** text) {
  *text = error == kOutOfMemory ? "out of memory" : "unspecified launch failure";
  return kFound;
}
}
