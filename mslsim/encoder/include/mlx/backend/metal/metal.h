// Stands in for MLX's header: in this build a Metal device exists, and it is simulated.
#pragma once

namespace mlx::core::metal {

inline bool is_available() { return true; }

}  // namespace mlx::core::metal
