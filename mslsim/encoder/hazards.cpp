#include "hazards.h"

#include <algorithm>
#include <stdexcept>

namespace mslsim {
namespace {

const void* identity(const std::shared_ptr<mx::array::Data>& data) {
  return data->buffer().ptr();
}

}  // namespace

std::optional<int> Hazards::dispatch(const std::vector<Use>& uses) {
  const bool automatic = std::ranges::any_of(
      uses, [&](const Use& use) { return written_.contains(identity(use.data)); });
  if (automatic) {
    barrier();
  }
  std::optional<int> missing_barrier;
  for (const Use& use : uses) {
    const void* buffer = identity(use.data);
    if (use.writes && read_.contains(buffer)) {
      missing_barrier = use.index;
    }
    if (in_primitive_) {
      bound_.emplace(buffer, use.data);
    }
  }
  for (const Use& use : uses) {
    const void* buffer = identity(use.data);
    (use.writes ? written_ : read_).emplace(buffer, use.data);
    if (use.writes && in_primitive_) {
      filled_.emplace(buffer, use.data);
    }
  }
  return missing_barrier;
}

void Hazards::barrier() {
  read_.clear();
  written_.clear();
}

void Hazards::begin_primitive(const std::vector<mx::array>& inputs) {
  in_primitive_ = true;
  for (const auto& input : inputs) {
    const auto& data = input.data_shared_ptr();
    if (data != nullptr) {
      filled_.emplace(identity(data), data);
      accounted_.emplace(identity(data), data);
    }
  }
}

void Hazards::end_primitive(const std::vector<mx::array>& outputs) {
  Buffers unaccounted;
  std::swap(unaccounted, bound_);
  for (const auto& output : outputs) {
    if (output.data_shared_ptr() != nullptr) {
      unaccounted.erase(identity(output.data_shared_ptr()));
    }
  }
  std::erase_if(
      unaccounted, [&](const auto& entry) { return accounted_.contains(entry.first); });
  in_primitive_ = false;
  filled_.clear();
  accounted_.clear();
  if (!unaccounted.empty()) {
    throw std::runtime_error(
        "[encoder] a kernel binds an array that is neither an input nor an output of the "
        "primitive and was not given to add_temporary(): its memory can be reused before "
        "the GPU runs");
  }
}

void Hazards::add_temporary(const mx::array& a) {
  if (in_primitive_) {
    accounted_.emplace(identity(a.data_shared_ptr()), a.data_shared_ptr());
  }
}

bool Hazards::never_written(const void* buffer) const {
  return in_primitive_ && !filled_.contains(buffer);
}

void Hazards::reset() {
  barrier();
  in_primitive_ = false;
  filled_.clear();
  accounted_.clear();
  bound_.clear();
}

}  // namespace mslsim
