// The GPU side of a build without Metal.
#include "attention.h"
#include "compressor.h"
#include "experts.h"
#include "hyper.h"
#include "indexer.h"
#include "matmul.h"
#include "metal_library.h"
#include "route.h"
#include "window.h"

namespace mlx_dsv4 {
namespace {

[[noreturn]] void refuse(const char* op) {
  throw std::runtime_error(
      std::string("[") + op +
      "] has no GPU kernel in this build; evaluate it on the CPU (stream=mx.cpu).");
}

}  // namespace

#define DSV4_WITHOUT_METAL(Primitive)                                                \
  void Primitive::eval_gpu(const std::vector<mx::array>&, std::vector<mx::array>&) { \
    refuse(name());                                                                  \
  }

DSV4_WITHOUT_METAL(Attention)
DSV4_WITHOUT_METAL(AttentionQueries)
DSV4_WITHOUT_METAL(CompressorAppend)
DSV4_WITHOUT_METAL(Embed)
DSV4_WITHOUT_METAL(Experts)
DSV4_WITHOUT_METAL(HyperHead)
DSV4_WITHOUT_METAL(HyperPost)
DSV4_WITHOUT_METAL(HyperPre)
DSV4_WITHOUT_METAL(IndexerQueries)
DSV4_WITHOUT_METAL(IndexerScores)
DSV4_WITHOUT_METAL(IndexerSelect)
DSV4_WITHOUT_METAL(IndexerTopk)
DSV4_WITHOUT_METAL(Matmul)
DSV4_WITHOUT_METAL(RouteHashed)
DSV4_WITHOUT_METAL(RouteScored)
DSV4_WITHOUT_METAL(WindowRows)
DSV4_WITHOUT_METAL(WindowWrite)

bool has_gpu_kernels() { return false; }

std::string shader_origin() { return "none in this build: every kernel runs on the CPU"; }

}  // namespace mlx_dsv4
