#include "experts.h"

#include <algorithm>

#include "blocks.h"
#include "metal_launch.h"

namespace mlx_dsv4 {
namespace {

// Bounds the temporaries: h and y are (F + K) floats per pair.
constexpr int kTokensPerBlock = 1024;

template <typename Record>
int int32s(int n) {
  return n * static_cast<int>(sizeof(Record) / sizeof(int32_t));
}

// One eval: its arrays, and temporaries that its blocks of tokens share.
class Run {
 public:
  Run(mx::Stream stream,
      const std::vector<mx::array>& inputs,
      mx::array& out,
      const ExpertsParams& params)
      : stream_(stream),
        encoder_(mx::metal::get_command_encoder(stream)),
        inputs_(inputs),
        out_(out),
        block_(params),
        most_tokens_(std::min(params.n_tokens, kTokensPerBlock)),
        hidden_(temporary(
            encoder_, {most_tokens_ * params.used, params.hidden}, mx::float32)),
        products_(
            temporary(encoder_, {most_tokens_ * params.used, params.dim}, mx::float32)) {}

  void all() {
    const int n_tokens = block_.n_tokens;
    for (int first = 0; first < n_tokens; first += most_tokens_) {
      if (first > 0) {
        encoder_.barrier();  // the block before still reads what this one writes
      }
      first_ = first;
      block_.n_tokens = std::min(most_tokens_, n_tokens - first);
      if (block_.n_tokens <= kFewTokens) {
        few();
      } else {
        many();
      }
      combine();
    }
  }

 private:
  int n_pairs() const { return block_.n_tokens * block_.used; }

  void pipeline(const std::string& function, const std::vector<std::string>& arguments) {
    encoder_.set_compute_pipeline_state(
        metal_kernel(stream_, "experts", function, arguments));
  }

  // The block's tokens of an input or of the output, `values` elements each.
  void input_tokens(const mx::array& a, int values, int index) {
    encoder_.set_input_array(
        a, index, int64_t{first_} * values * static_cast<int64_t>(a.itemsize()));
  }

  void hidden(const char* function) {
    pipeline(
        function, {std::to_string(block_.gate_format), std::to_string(block_.up_format)});
    input_tokens(inputs_[0], block_.dim, kHiddenX);
    encoder_.set_input_array(inputs_[3], kHiddenGate);
    encoder_.set_input_array(inputs_[4], kHiddenUp);
    encoder_.set_output_array(hidden_, kHiddenOut);
    encoder_.set_bytes(block_, kHiddenParams);
  }

  void down(const char* function) {
    pipeline(function, {std::to_string(block_.down_format)});
    encoder_.set_input_array(hidden_, kDownHidden);
    encoder_.set_input_array(inputs_[5], kDownWeight);
    encoder_.set_output_array(products_, kDownOut);
    encoder_.set_bytes(block_, kDownParams);
  }

  void dispatch(int n_rows, int rows_per_group, int n_tiles, int n_simdgroups) {
    encoder_.dispatch_threadgroups(
        MTL::Size(ceil_div(n_rows, rows_per_group), n_tiles, 1),
        MTL::Size(kSimdWidth, n_simdgroups, 1));
  }

  void few() {
    const auto& p = block_;
    hidden("experts_hidden_few");
    input_tokens(inputs_[1], p.used, kHiddenIds);
    dispatch(
        p.hidden,
        few_rows(few_parts(p.dim)) / kFewRowTiles * kFewHiddenTiles,
        n_pairs(),
        kFewSimdgroups);
    down("experts_down_few");
    input_tokens(inputs_[1], p.used, kDownIds);
    dispatch(p.dim, few_rows(few_parts(p.hidden)), n_pairs(), kFewSimdgroups);
  }

  void many() {
    const auto& p = block_;
    const int n_tiles = max_pair_tiles(n_pairs(), p.n_experts);
    auto pairs = temporary(encoder_, {n_pairs()}, mx::int32);
    auto groups = temporary(encoder_, {int32s<PairGroup>(p.n_experts)}, mx::int32);
    auto pair_tiles = temporary(encoder_, {int32s<PairTile>(n_tiles)}, mx::int32);
    order(pairs, groups);
    cut(groups, pair_tiles);
    hidden("experts_hidden_many");
    encoder_.set_input_array(pairs, kHiddenPairs);
    encoder_.set_input_array(pair_tiles, kHiddenTiles);
    dispatch(
        p.hidden,
        many_rows(1) / kManyRowTiles * kManyHiddenTiles,
        n_tiles,
        kManySimdgroups);
    down("experts_down_many");
    encoder_.set_input_array(pairs, kDownPairs);
    encoder_.set_input_array(pair_tiles, kDownTiles);
    dispatch(p.dim, many_rows(1), n_tiles, kManySimdgroups);
  }

  void order(mx::array& pairs, mx::array& groups) {
    pipeline("experts_order", {});
    input_tokens(inputs_[1], block_.used, kOrderIds);
    encoder_.set_output_array(pairs, kOrderPairs);
    encoder_.set_output_array(groups, kOrderGroups);
    encoder_.set_bytes(block_, kOrderParams);
    dispatch(block_.n_experts, kOrderSimdgroups, 1, kOrderSimdgroups);
  }

  void cut(const mx::array& groups, mx::array& pair_tiles) {
    pipeline("experts_tiles", {});
    encoder_.set_input_array(groups, kTilesGroups);
    encoder_.set_output_array(pair_tiles, kTilesOut);
    encoder_.set_bytes(block_, kTilesParams);
    dispatch(1, 1, 1, 1);
  }

  void combine() {
    const auto& p = block_;
    pipeline("experts_combine", {});
    input_tokens(inputs_[1], p.used, kCombineIds);
    input_tokens(inputs_[2], p.used, kCombineWeights);
    encoder_.set_input_array(products_, kCombineProducts);
    encoder_.set_output_array(
        out_, kCombineOut, int64_t{first_} * p.dim * static_cast<int64_t>(sizeof(float)));
    encoder_.set_bytes(p, kCombineParams);
    encoder_.dispatch_threadgroups(
        MTL::Size(ceil_div(p.dim, kCombineThreads), p.n_tokens, 1),
        MTL::Size(kCombineThreads, 1, 1));
  }

  mx::Stream stream_;
  Encoder& encoder_;
  const std::vector<mx::array>& inputs_;
  mx::array& out_;
  ExpertsParams block_;  // of the tokens [first_, first_ + n_tokens)
  int most_tokens_;
  int first_ = 0;
  mx::array hidden_;    // h [pairs, F]
  mx::array products_;  // y [pairs, K]
};

}  // namespace

void Experts::eval_gpu(
    const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) {
  const auto& p = params_;
  check_on_gpu(name(), "gate", inputs[3], p.gate_format);
  check_on_gpu(name(), "up", inputs[4], p.up_format);
  check_on_gpu(name(), "down", inputs[5], p.down_format);
  allocate(outputs[0]);
  if (outputs[0].size() > 0) {
    Run(stream(), inputs, outputs[0], p).all();
  }
}

}  // namespace mlx_dsv4
