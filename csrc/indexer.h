// Indexer: score the index rows for each query token and select the best.
#pragma once

#include "../metal/indexer.h"
#include "primitive.h"

namespace mlx_dsv4 {

// q [T, I * D] f32, rotation [T, R/2, 2] f32 -> [T, I, D] dtype
mx::array indexer_queries(
    const mx::array& q,
    const mx::array& rotation,
    int heads,
    const std::string& round_trip,
    mx::Dtype dtype,
    mx::StreamOrDevice stream = {});

// q [T, I, D], w [T, I] f32, rows [capacity, D] -> [T, (start + T) / ratio] f32
mx::array indexer_scores(
    const mx::array& q,
    const mx::array& w,
    const mx::array& rows,
    int64_t start,
    int ratio,
    float scale,
    mx::StreamOrDevice stream = {});

// scores [T, (start + T) / ratio] f32 -> [T, k] i32 ascending, -1 where no row is left
mx::array indexer_topk(
    const mx::array& scores,
    int64_t start,
    int ratio,
    int k,
    mx::StreamOrDevice stream = {});

// indexer_topk(indexer_scores(...)), with scores of few tokens in memory at a time
mx::array indexer_select(
    const mx::array& q,
    const mx::array& w,
    const mx::array& rows,
    int64_t start,
    int ratio,
    float scale,
    int k,
    mx::StreamOrDevice stream = {});

class IndexerQueries : public Op<IndexerQueriesParams> {
 public:
  using Op::Op;
  const char* name() const override { return "indexer_queries"; }
  void eval_cpu(const std::vector<mx::array>&, std::vector<mx::array>&) override;
  void eval_gpu(const std::vector<mx::array>&, std::vector<mx::array>&) override;
};

class IndexerScores : public Op<IndexerScoresParams> {
 public:
  using Op::Op;
  const char* name() const override { return "indexer_scores"; }
  void eval_cpu(const std::vector<mx::array>&, std::vector<mx::array>&) override;
  void eval_gpu(const std::vector<mx::array>&, std::vector<mx::array>&) override;
};

class IndexerTopk : public Op<IndexerTopkParams> {
 public:
  using Op::Op;
  const char* name() const override { return "indexer_topk"; }
  void eval_cpu(const std::vector<mx::array>&, std::vector<mx::array>&) override;
  void eval_gpu(const std::vector<mx::array>&, std::vector<mx::array>&) override;
};

class IndexerSelect : public Op<IndexerSelectParams> {
 public:
  using Op::Op;
  const char* name() const override { return "indexer_select"; }
  void eval_cpu(const std::vector<mx::array>&, std::vector<mx::array>&) override;
  void eval_gpu(const std::vector<mx::array>&, std::vector<mx::array>&) override;
};

}  // namespace mlx_dsv4
