#include "matmul.h"

namespace mlx_dsv4 {

void Matmul::eval_gpu(const std::vector<mx::array>&, std::vector<mx::array>&) {
  throw std::runtime_error("not written");
}

void Embed::eval_gpu(const std::vector<mx::array>&, std::vector<mx::array>&) {
  throw std::runtime_error("not written");
}

}  // namespace mlx_dsv4
