// Compiled shader libraries: loading, their kernels, function constants and coverage.
#include <dlfcn.h>
#include <unistd.h>

#include <cstdio>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "coverage.h"
#include "simulator.h"

namespace {

struct DeclaredConstant {
  int index;
  std::string name;
  const void* address;
  bool defined;
};

}  // namespace

struct msl_library {
  std::string path;
  std::vector<const msl_kernel*> kernels;
  std::vector<DeclaredConstant> constants;
  const mslsim::Coverage* coverage = nullptr;
};

namespace {

// Libraries announce themselves from the constructors that dlopen() runs.
struct Opening {
  msl_library* library = nullptr;
  std::map<int, msl_constant> by_index;
  std::map<std::string, msl_constant> by_name;

  const msl_constant* value(int index, const char* name) const {
    if (const auto found = by_index.find(index); found != by_index.end()) {
      return &found->second;
    }
    const auto found = by_name.find(name);
    return found == by_name.end() ? nullptr : &found->second;
  }
};

// Never destroyed: libraries may be opened and asked until the process ends.
struct Libraries {
  std::mutex mutex;
  Opening opening;
  std::vector<msl_library*> all;
  std::map<const void*, bool> constant_is_defined;
  std::string error;
};

Libraries& libraries() {
  static auto& the_libraries = *new Libraries;
  return the_libraries;
}

// A copy under a name of its own: dlopen() would give the same library for the same file, with
// the function constants that it has. Empty if the file cannot be read.
std::string private_copy(const std::string& path) {
  static int n_copies = 0;
  const std::string copy =
      path + "." + std::to_string(getpid()) + "." + std::to_string(n_copies++);
  FILE* from = fopen(path.c_str(), "rb");
  if (from == nullptr) {
    return "";
  }
  FILE* to = fopen(copy.c_str(), "wb");
  if (to == nullptr) {
    fclose(from);
    return "";
  }
  char piece[65536];
  for (size_t n; (n = fread(piece, 1, sizeof piece, from)) > 0;) {
    fwrite(piece, 1, n, to);
  }
  fclose(from);
  fclose(to);
  return copy;
}

// Kernels find what they call in this library, however it was loaded itself.
void publish_own_symbols() {
  Dl_info own;
  if (dladdr(reinterpret_cast<void*>(&publish_own_symbols), &own) != 0) {
    dlopen(own.dli_fname, RTLD_NOW | RTLD_GLOBAL | RTLD_NOLOAD);
  }
}

// Loads the library into `library`; an error message, empty if there is none.
std::string load(msl_library* library) {
  const std::string copy = private_copy(library->path);
  if (copy.empty()) {
    return "cannot read " + library->path;
  }
  libraries().opening.library = library;
  const void* handle = dlopen(copy.c_str(), RTLD_NOW | RTLD_LOCAL);
  libraries().opening.library = nullptr;
  const char* error = handle == nullptr ? dlerror() : nullptr;
  unlink(copy.c_str());
  return handle != nullptr ? "" : error != nullptr ? error : "cannot load " + copy;
}

}  // namespace

extern "C" {

void __msl_register(const msl_kernel* kernel) {
  if (msl_library* library = libraries().opening.library) {
    library->kernels.push_back(kernel);
  }
}

bool __msl_fc_get(
    int index, const char* name, const void* address, msl_u64* integer, double* real) {
  const Opening& opening = libraries().opening;
  const msl_constant* value = opening.value(index, name);
  if (opening.library != nullptr) {
    opening.library->constants.push_back({index, name, address, value != nullptr});
    libraries().constant_is_defined[address] = value != nullptr;
  }
  if (value != nullptr) {
    *integer = value->integer;
    *real = value->real;
  }
  return value != nullptr;
}

bool __msl_fc_defined(const void* address) {
  const auto& defined = libraries().constant_is_defined;
  const auto found = defined.find(address);
  return found != defined.end() && found->second;
}

int msl_abi() { return 1; }

msl_library* msl_open(const char* path, int n_constants, const msl_constant* constants) {
  const std::lock_guard lock(libraries().mutex);
  publish_own_symbols();
  Opening& opening = libraries().opening;
  opening = {};
  for (int i = 0; i < n_constants; ++i) {
    if (constants[i].name != nullptr) {
      opening.by_name[constants[i].name] = constants[i];
    } else {
      opening.by_index[constants[i].index] = constants[i];
    }
  }
  auto* library = new msl_library{path, {}, {}, nullptr};
  const size_t n_covered = mslsim::n_covered_libraries();
  libraries().error = load(library);
  if (!libraries().error.empty()) {
    delete library;
    return nullptr;
  }
  if (mslsim::n_covered_libraries() > n_covered) {
    library->coverage = mslsim::last_coverage();
  }
  libraries().all.push_back(library);
  return library;
}

const char* msl_open_error() { return libraries().error.c_str(); }

int msl_kernel_count(const msl_library* library) {
  return static_cast<int>(library->kernels.size());
}

const msl_kernel* msl_kernel_at(const msl_library* library, int i) {
  return library->kernels[i];
}

int msl_constant_count(const msl_library* library) {
  return static_cast<int>(library->constants.size());
}

msl_declared_constant msl_constant_at(const msl_library* library, int i) {
  const DeclaredConstant& constant = library->constants[i];
  return {constant.index, constant.name.c_str(), constant.defined};
}

int msl_library_count() { return static_cast<int>(libraries().all.size()); }

const msl_library* msl_library_at(int i) { return libraries().all[i]; }

const char* msl_library_path(const msl_library* library) { return library->path.c_str(); }

int msl_coverage_count(const msl_library* library) {
  return library->coverage == nullptr ? 0 : static_cast<int>(library->coverage->n_points);
}

int msl_coverage_at(const msl_library* library, int i, uint64_t* offset) {
  const mslsim::Coverage& coverage = *library->coverage;
  const uintptr_t address = coverage.points[2 * i];
  Dl_info info;
  const bool known = dladdr(reinterpret_cast<void*>(address), &info) != 0;
  *offset = known ? address - reinterpret_cast<uintptr_t>(info.dli_fbase) : 0;
  return coverage.reached[i];
}

}  // extern "C"
