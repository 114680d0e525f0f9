// Where the steps of a replay are stored and run. What a step is (who runs, with how many tokens, on which pages) is the batcher's and the
// same everywhere; a machine keeps the bytes of K and V, makes Q, plans, runs every layer and hands back rows to be checked.
#pragma once

#include "cli/replay/kv_pages.h"
#include "cli/replay/step_batch.h"
#include "cli/report/timeline.h"
#include "kvloom/ref/ref.h"

#include <memory>

namespace kvloom::replay {

struct MachineOptions {
  EngineOptions engine;
  ModelTypes types;
  KvLayout layout = KvLayout::hnd;
  int32_t page_size = 16;
  int64_t pages = 1;
  int32_t pools = 1;  // KvShape::pools
  int32_t layers = 1;
  int32_t max_batch = 256;
  int64_t token_budget = 2048;
  int64_t longest = 0;  // tokens of one sequence
  int32_t check_rows = 2;
  uint64_t seed = 1;

  KvShape kv_shape() const { return {types.kv, layout, page_size, pages, pools}; }
};

/// An output row, and what it should be.
struct CheckedRow {
  int32_t token = 0, head = 0;
  std::vector<float> o;  // [head_dim_vo]
  float lse = 0.0f;
  std::vector<double> ref_o;
  double ref_lse = 0.0;
};

struct StepResult {
  std::vector<double> layer_us;
  int64_t nonfinite_outputs = 0;  // elements: rows never written, or poison that got in
  std::vector<CheckedRow> rows;
};

class StepMachine {
 public:
  virtual ~StepMachine() = default;

  // A step: prepare, plan for every kind of layer, start, finish.
  /// Takes over the lengths, the page tables and what happens to pages.
  virtual void prepare(const Batcher& batcher, const Step& step) = 0;
  /// Plans the prepared step for layers of `kind`; returns microseconds.
  virtual double plan(int32_t kind) = 0;
  /// Writes the new K and V and runs every layer; `rows` of `checked_layer` are wanted back with their REF.
  virtual void start(int32_t checked_layer, std::vector<ref::Row> rows) = 0;
  /// Waits until all that is done.
  virtual StepResult finish() = 0;
  /// True if the next step can be prepared and planned between start() and finish(): it runs by itself.
  virtual bool plans_ahead() const = 0;

  /// Of the step planned last.
  virtual PlanView plan_view(int32_t kind) const = 0;
  /// options.engine.timeline: the times of the first layer's items in the step that finish() returned last.
  virtual cli::Timeline timeline(const std::string& name) const = 0;
  /// Bytes of the device's memory taken at most; 0 on the CPU.
  virtual int64_t device_bytes() const { return 0; }

  int32_t kinds() const { return int32_t(engines_.size()); }
  int32_t kind_of(int32_t layer) const { return layer % kinds(); }
  const AttentionSpec& spec(int32_t kind) const { return engines_[size_t(kind)].spec(); }
  const Engine& engine(int32_t kind) const { return engines_[size_t(kind)]; }

 protected:
  /// Engines for the kinds of layers that the first `layers` layers have.
  StepMachine(const Model& model, const MachineOptions& options);

  Model model_;
  MachineOptions options_;
  std::vector<Engine> engines_;
  std::vector<float> sinks_;  // [qo_heads]; empty without sinks
};

/// By options.engine.backend.
std::unique_ptr<StepMachine> make_machine(const Model& model, const MachineOptions& options);

}  // namespace kvloom::replay
