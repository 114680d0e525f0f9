// Steps on a GPU: pages, Q, K and V live and are made in its memory; a step is put into one stream and runs while the next is planned. New
// K and V go into their pages through the library's append_kv.
#pragma once

#include "cli/replay/step_machine.h"
#include "kvloom/api/gpu.h"

#include <optional>

namespace kvloom::replay {

/// The text of its kernels: mix.h, pieces.h and gpu_kernels.cuh.
extern const char kGpuKernels[];

class GpuMachine : public StepMachine {
 public:
  /// Throws out_of_memory: bytes wanted and free.
  GpuMachine(const Model& model, const MachineOptions& options);

  void prepare(const Batcher& batcher, const Step& step) override;
  double plan(int32_t kind) override;
  void start(int32_t checked_layer, std::vector<ref::Row> rows) override;
  StepResult finish() override;
  bool plans_ahead() const override { return true; }
  PlanView plan_view(int32_t kind) const override { return slots_[planned_].plans[size_t(kind)]->view(); }
  cli::Timeline timeline(const std::string& name) const override;
  int64_t device_bytes() const override { return free_before_ - gpu_memory(device_).free_bytes; }

  Tensor k(int32_t layer) const { return pages_.k(pools_.data(), layer); }
  Tensor v(int32_t layer) const { return pages_.v(pools_.data(), layer); }

 private:
  GpuMachine(const Model& model, const MachineOptions& options, int64_t free_before);

  /// What a step needs on the device besides its plan. Two take turns.
  struct Slot {
    StepBatch step;
    GpuBuffer tokens, places, pages, events;  // uint64 [tokens], int64 [tokens], int32 page ids, int32 (from, page)
    int64_t num_events = 0;
    std::vector<std::optional<Plan>> plans;
  };
  /// A row to be checked, fetched into staging memory.
  struct Fetch {
    ref::Row row;
    int32_t pos = 0;
  };

  void* stream() const { return stream_.handle(); }
  RunTensors tensors(int32_t layer) const;
  void launch(const char* kernel, int64_t threads, void* argument);
  void fill_rows(const GpuBuffer& table, DType dtype, int64_t heads, int64_t dim, uint64_t salt, bool is_v, const GpuBuffer& out);
  void write_kv(int32_t pool);
  void fill_inputs(int32_t layer);
  void count_nonfinite();
  void hold();
  void clear_times();
  void fetch_rows(int32_t layer, const std::vector<ref::Row>& rows);
  CheckedRow checked_row(size_t i) const;

  int32_t device_;
  int64_t free_before_;
  GpuStream stream_;
  GpuProgram program_;
  KvPages pages_;
  GpuBuffer pools_, kv_table_, q_table_, sinks_on_device_;
  GpuBuffer q_, o_, lse_, k_new_, v_new_, nonfinite_;
  GpuBuffer times_;  // of the first layer
  Slot slots_[2];
  size_t planned_ = 0, running_ = 0;  // slot of the step prepared last; of the step started last

  GpuBuffer k_rows_, v_rows_, q_rows_, o_rows_, lse_rows_;  // of the rows to be checked
  int64_t k_row_room_ = 0, v_row_room_ = 0;                 // bytes of one row's keys
  int32_t checked_layer_ = 0;
  std::vector<Fetch> fetched_;
  std::vector<std::pair<int32_t, int32_t>> marks_;  // around the run of every layer
  double start_us_ = 0.0;                           // of the host: the last start()
  double cycles_per_us_;
};

}  // namespace kvloom::replay
