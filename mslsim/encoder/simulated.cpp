#include "simulated.h"

#include <dlfcn.h>

#include <memory>
#include <unordered_set>
#include <utility>
#include <vector>

#include "mlx/backend/metal/device.h"
#include "mlx/primitives.h"
#include "primitive.h"

namespace mslsim {
namespace {

namespace mx = mlx::core;

// Stands for an op on a CPU stream and computes it with the op's GPU code.
class Simulated : public mx::Primitive {
 public:
  explicit Simulated(std::shared_ptr<mx::Primitive> op)
      : mx::Primitive(op->stream()), op_(std::move(op)) {}

  void eval_cpu(
      const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override {
    mx::synchronize(stream());  // the inputs may still be computed on the stream's thread
    auto& encoder = mx::metal::get_command_encoder(stream());
    try {
      encoder.begin_primitive(inputs);
      op_->eval_gpu(inputs, outputs);
      encoder.end_primitive(outputs);
    } catch (...) {
      encoder.reset();
      throw;
    }
  }

  void eval_gpu(
      const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override {
    op_->eval_gpu(inputs, outputs);
  }

  const char* name() const override { return op_->name(); }

 private:
  std::shared_ptr<mx::Primitive> op_;
};

class SimulatedDense : public Simulated, public mlx_dsv4::DenseOutputs {
 public:
  using Simulated::Simulated;
};

const void* module_of(const void* address) {
  Dl_info info;
  return dladdr(address, &info) != 0 ? info.dli_fbase : nullptr;
}

// Types of the same name in another extension compare equal, so the vtable decides.
bool made_here(const mx::Primitive& primitive) {
  static const void* here = module_of(reinterpret_cast<const void*>(&module_of));
  return module_of(*reinterpret_cast<void* const*>(&primitive)) == here;
}

void wrap(const mx::array& a) {
  const auto op = a.primitive_ptr();
  std::shared_ptr<mx::Primitive> simulated;
  if (dynamic_cast<const mlx_dsv4::DenseOutputs*>(op.get()) != nullptr) {
    simulated = std::make_shared<SimulatedDense>(op);
  } else {
    simulated = std::make_shared<Simulated>(op);
  }
  for (const mx::array& output : a.outputs()) {
    output.primitive_ptr() = simulated;
  }
}

}  // namespace

void simulate(const mx::array& a) {
  std::vector<mx::array> pending{a};
  std::unordered_set<std::uintptr_t> seen;
  while (!pending.empty()) {
    const mx::array node = pending.back();
    pending.pop_back();
    const bool lazy =
        node.has_primitive() && node.status() == mx::array::Status::unscheduled;
    if (!lazy || !seen.insert(node.id()).second ||
        dynamic_cast<const Simulated*>(&node.primitive()) != nullptr) {
      continue;
    }
    if (made_here(node.primitive())) {
      wrap(node);
    }
    pending.insert(pending.end(), node.inputs().begin(), node.inputs().end());
  }
}

}  // namespace mslsim
