#include "cuda_driver.h"

#include <dlfcn.h>

#include <stdexcept>

namespace mslsim::cuda {
namespace {

constexpr const char* kLibrary = "libcuda.so.1";

struct Opened {
  Driver functions;
  void* context = nullptr;
  std::string problem;

  Opened() { problem = open(); }

 private:
  std::string open() {
    void* library = dlopen(kLibrary, RTLD_NOW);
    if (library == nullptr) {
      return dlerror();
    }
#define MSL_FIND(name, arguments)                                             \
  functions.name = reinterpret_cast<int(*) arguments>(dlsym(library, #name)); \
  if (functions.name == nullptr) {                                            \
    return std::string(kLibrary) + " has no " #name;                          \
  }
    MSL_EACH_DRIVER_FUNCTION(MSL_FIND)
#undef MSL_FIND
    int n_devices = 0, device = 0;
    if (const int error = functions.cuInit(0)) {
      return "cuInit: " + spelled(error);
    }
    if (const int error = functions.cuDeviceGetCount(&n_devices)) {
      return "cuDeviceGetCount: " + spelled(error);
    }
    if (n_devices == 0) {
      return "the driver knows no GPU";
    }
    if (const int error = functions.cuDeviceGet(&device, 0)) {
      return "cuDeviceGet: " + spelled(error);
    }
    if (const int error = functions.cuDevicePrimaryCtxRetain(&context, device)) {
      return "cuDevicePrimaryCtxRetain: " + spelled(error);
    }
    return "";
  }

 public:
  std::string spelled(int error) const {
    const char *name = nullptr, *text = nullptr;
    functions.cuGetErrorName(error, &name);
    functions.cuGetErrorString(error, &text);
    return (name == nullptr ? "error " + std::to_string(error) : std::string(name)) +
           (text == nullptr ? "" : std::string(" (") + text + ")");
  }
};

const Opened& opened() {
  // Never destroyed: the driver may be gone when destructors run.
  static const Opened& the_driver = *new Opened;
  return the_driver;
}

}  // namespace

const std::string& unavailable() { return opened().problem; }

const Driver& driver() {
  if (!unavailable().empty()) {
    throw std::runtime_error("[cuda] there is no NVIDIA GPU: " + unavailable());
  }
  check(opened().functions.cuCtxSetCurrent(opened().context), "cuCtxSetCurrent");
  return opened().functions;
}

void check(int error, const std::string& what) {
  if (error != 0) {
    throw std::runtime_error("[cuda] " + what + ": " + opened().spelled(error));
  }
}

}  // namespace mslsim::cuda
