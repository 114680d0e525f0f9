// Steps on the CPU: the pages in host memory, every layer run when finish() is called.
#pragma once

#include "cli/replay/kv_store.h"
#include "cli/replay/step_machine.h"

#include <optional>

namespace kvloom::replay {

class CpuMachine : public StepMachine {
 public:
  CpuMachine(const Model& model, const MachineOptions& options);

  void prepare(const Batcher& batcher, const Step& step) override;
  double plan(int32_t kind) override;
  void start(int32_t checked_layer, std::vector<ref::Row> rows) override;
  StepResult finish() override;
  bool plans_ahead() const override { return false; }
  PlanView plan_view(int32_t kind) const override { return plans_[size_t(kind)]->view(); }
  cli::Timeline timeline(const std::string& name) const override;

  // What finish() does for a layer.
  /// Makes Q of `layer` and fills O with NaN. Not part of what is measured.
  void fill_inputs(int32_t layer);
  /// Runs the layer; returns microseconds.
  double run(int32_t layer);
  /// Rows of the layer run last, and their REF.
  std::vector<CheckedRow> rows_of(int32_t layer, const std::vector<ref::Row>& rows) const;
  int64_t nonfinite_outputs() const;

  const KvStore& store() const { return store_; }

 private:
  RunTensors tensors(int32_t layer) const;
  AttendParams params(int32_t layer) const;

  KvStore store_;
  std::vector<std::optional<Plan>> plans_;
  Values q_values_;
  StepBatch step_;
  std::vector<char> q_, o_;  // [tokens, qo_heads, dim]
  std::vector<float> lse_;   // [tokens, qo_heads]
  std::vector<uint64_t> times_;  // of the first layer
  int32_t checked_layer_ = 0;
  std::vector<ref::Row> rows_;
};

}  // namespace kvloom::replay
