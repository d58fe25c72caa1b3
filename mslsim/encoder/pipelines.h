// The compiled forms of one shader library: one per mode, one copy per set of function constants.
#pragma once

#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "../runtime/simulator.h"
#include "mlx/backend/metal/device.h"

namespace mslsim {

class Pipelines {
 public:
  using Constants = std::vector<MTL::ComputePipelineState::Constant>;

  Pipelines(std::string name, std::string source);

  // Path of the shared object, or of the cubin, for a mode; compiles it on first use.
  const std::string& compiled(const std::string& mode);

  // The kernel of that name with these constants, for a mode.
  const msl_kernel* kernel(
      const std::string& name, const Constants& constants, const std::string& mode);

 private:
  const msl_kernel* cuda_kernel(const std::string& name, const Constants& constants);
  [[noreturn]] void fail_to_load(const std::string& name) const;
  const msl_library* open(const std::string& path, const Constants& constants);

  std::string name_;
  std::string source_;
  std::map<std::string, std::string> paths_;  // by mode
  std::map<std::pair<std::string, std::string>, const msl_library*> opened_;
};

}  // namespace mslsim
