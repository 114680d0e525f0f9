// One step of real attention: the batch that the scheduler chose as the engine sees it, planned once a kind of layer, run once a layer.
#pragma once

#include "cli/replay/kv_store.h"

#include <optional>

namespace kvloom::replay {

struct RunnerOptions {
  EngineOptions engine;
  ModelTypes types;
  int32_t page_size = 16;
  int32_t layers = 1;
  int32_t max_batch = 256;
  int64_t token_budget = 2048;
  int64_t max_kv_tokens = 0;  // of a step; needed by fixed_split only
  uint64_t seed = 1;
};

class StepRunner {
 public:
  /// Engines for the kinds of layers that the first `layers` layers have. `store` must outlive this.
  StepRunner(const Model& model, const RunnerOptions& options, const KvStore& store);

  /// Lays out the batch of `step`: lengths and page tables.
  void prepare(const Batcher& batcher, const Step& step);
  /// Plans the prepared step for layers of `kind`; returns microseconds.
  double plan(int32_t kind);
  /// Makes Q of `layer` and fills O with NaN. Not part of what is measured.
  void fill_inputs(int32_t layer);
  /// Runs the layer; returns microseconds.
  double run(int32_t layer);

  int32_t kinds() const { return int32_t(engines_.size()); }
  int32_t kind_of(int32_t layer) const { return layer % kinds(); }
  const AttentionSpec& spec(int32_t kind) const { return engines_[size_t(kind)].spec(); }
  const Engine& engine(int32_t kind) const { return engines_[size_t(kind)]; }
  PlanView plan_view(int32_t kind) const { return plans_[size_t(kind)]->view(); }
  const Plan& plan_of(int32_t kind) const { return *plans_[size_t(kind)]; }
  const Batch& batch() const { return batch_; }
  /// The tensors of the last fill_inputs(), as REF wants them.
  AttendParams params(int32_t layer) const;
  /// O of token and head, as fp32: [head_dim_vo].
  void read_output(int32_t token, int32_t head, float* out) const;
  float read_lse(int32_t token, int32_t head) const { return lse_[size_t(token) * size_t(model_.qo_heads) + size_t(head)]; }
  /// Output elements that are not finite: rows never written, or poison that got in.
  int64_t nonfinite_outputs() const;

 private:
  RunTensors tensors(int32_t layer) const;

  Model model_;
  RunnerOptions options_;
  const KvStore& store_;
  std::vector<Engine> engines_;
  std::vector<std::optional<Plan>> plans_;
  Values q_values_;
  std::vector<float> sinks_;  // [qo_heads]

  std::vector<int32_t> qo_indptr_, kv_len_, pages_;
  std::vector<int64_t> list_indptr_;
  std::vector<uint64_t> tokens_;  // content number of every query token
  Batch batch_;
  std::vector<char> q_, o_;  // [tokens, qo_heads, dim]
  std::vector<float> lse_;   // [tokens, qo_heads]
};

}  // namespace kvloom::replay
