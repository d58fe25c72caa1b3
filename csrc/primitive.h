// What every primitive of this package shares.
#pragma once

#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "check.h"
#include "mlx/allocator.h"
#include "mlx/backend/cpu/encoder.h"
#include "mlx/primitives.h"

namespace mlx_dsv4 {

// Marks primitives whose outputs are always row-contiguous.
struct DenseOutputs {
  virtual ~DenseOutputs() = default;
};

// A primitive whose only state is the params struct of its launch contract.
template <typename Params>
class Op : public mx::Primitive, public DenseOutputs {
 public:
  Op(mx::Stream stream, const Params& params) : mx::Primitive(stream), params_(params) {}

  bool is_equivalent(const mx::Primitive& other) const override {
    return std::memcmp(
               &params_, &static_cast<const Op&>(other).params_, sizeof(Params)) == 0;
  }

 protected:
  Params params_;
};

inline void allocate(mx::array& out) {
  out.set_data(mx::allocator::malloc(out.nbytes()));
}

// Runs `work` after everything already queued on the stream; data pointers are valid only there.
template <typename Work>
void dispatch_cpu(mx::Stream stream, Work work) {
  mx::cpu::get_command_encoder(stream).dispatch(std::move(work));
}

// The array itself where it is known to be row-contiguous: a graph node less per input.
inline mx::array dense(const mx::array& a, mx::Stream stream) {
  const bool made_here =
      a.has_primitive() && dynamic_cast<const DenseOutputs*>(&a.primitive()) != nullptr;
  const bool laid_out =
      a.status() != mx::array::Status::unscheduled && a.flags().row_contiguous;
  return made_here || laid_out ? a : mx::contiguous(a, false, stream);
}

}  // namespace mlx_dsv4
