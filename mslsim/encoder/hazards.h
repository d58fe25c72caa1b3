// Which memory the kernels of one encoder read and wrote, as MLX's concurrent encoder sees it.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "mlx/array.h"

namespace mslsim {

namespace mx = mlx::core;

// Between two barriers kernels may run in any order. MLX puts a barrier before a kernel that binds
// memory which an earlier one wrote; writing memory which an earlier one read is the op's to order.
class Hazards {
 public:
  struct Use {
    int index;
    bool writes;
    std::shared_ptr<mx::array::Data> data;
  };

  // Records a dispatch. The index of a buffer that it writes and an earlier kernel reads, if any.
  std::optional<int> dispatch(const std::vector<Use>& uses);
  void barrier();

  // Between these, arrays that are bound must be inputs, outputs or temporaries.
  void begin_primitive(const std::vector<mx::array>& inputs);
  void end_primitive(const std::vector<mx::array>& outputs);
  void add_temporary(const mx::array& a);
  bool never_written(const void* buffer) const;
  void reset();

 private:
  // Held so that the allocator cannot hand out memory that is still tracked.
  using Buffers = std::unordered_map<const void*, std::shared_ptr<mx::array::Data>>;

  Buffers read_;
  Buffers written_;
  bool in_primitive_ = false;
  Buffers filled_;     // inputs of the primitive and what its kernels wrote
  Buffers accounted_;  // inputs and temporaries
  Buffers bound_;
};

}  // namespace mslsim
