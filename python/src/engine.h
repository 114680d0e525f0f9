// Engine and Plan of the extension: kvloom_engine and kvloom_plan with the lifetimes and locks that Python needs.
#pragma once

#include "python/src/batch_arg.h"
#include "python/src/device_batch_arg.h"
#include "python/src/spec_arg.h"

#include <memory>
#include <mutex>

namespace kvloom::python {

/// A kvloom_engine is for one thread at a time; Python's threads share it, and the GIL is released while it works. Plans hold it too, so
/// that a plan may be the last to go.
struct EngineHandle {
  explicit EngineHandle(const kvloom_spec& spec) : facts(spec) {}
  EngineHandle(const EngineHandle&) = delete;
  ~EngineHandle() { kvloom_engine_destroy(engine); }
  Place place() const { return {kvloom_engine_backend(engine) == KVLOOM_CUDA, kvloom_engine_device(engine)}; }

  kvloom_engine* engine = nullptr;
  std::mutex busy;  // taken with the GIL released
  SpecFacts facts;
  bool ids_unread = false;  // page ids given to plan may lie on the GPU
  nb::object workspace;     // the caller's memory
  nb::object params;        // a dict: values of the variant's parameters where a run gives none
  Ramp ramp;
};

class Plan {
 public:
  Plan(std::shared_ptr<EngineHandle> engine, kvloom_plan* plan, BatchArg& batch) : engine_(std::move(engine)), plan_(plan) {
    set_step(batch);
  }
  Plan(std::shared_ptr<EngineHandle> engine, kvloom_plan* plan, DeviceBatchArg& batch) : engine_(std::move(engine)), plan_(plan) {
    set_step(batch);
  }
  Plan(const Plan&) = delete;
  ~Plan() { kvloom_plan_destroy(plan_); }

  void set_step(BatchArg& batch);
  void set_step(DeviceBatchArg& batch);
  /// Steps that the C plan has had, counted with the engine's lock held; and the step that total_tokens() and its like speak of, set with
  /// the GIL held. A run whose tensors were checked against one step never meets another: it compares them under the lock.
  uint64_t c_step = 0, facts_step = 0;
  const std::shared_ptr<EngineHandle>& engine() const { return engine_; }
  kvloom_plan* c() const { return plan_; }
  int64_t total_tokens() const { return total_tokens_; }
  int32_t num_requests() const { return num_requests_; }
  int64_t num_page_ids() const { return num_page_ids_; }
  /// kv_len on the GPU, of a step that the device plans; else None.
  nb::handle lengths() const { return arrays_.empty() ? nb::handle(Py_None) : nb::handle(arrays_[0]); }

  nb::str explain() const;
  nb::str json() const;
  nb::str svg() const;
  nb::bytes bytes() const;
  uint64_t graph_key() const;
  void upload(nb::handle stream);

 private:
  nb::str text(kvloom_status (*make)(const kvloom_plan*, char**)) const;

  std::shared_ptr<EngineHandle> engine_;
  kvloom_plan* plan_;
  int64_t total_tokens_ = 0, num_page_ids_ = 0;
  int32_t num_requests_ = 0;
  IndexArg pages_;                  // what run reads where it is given no page ids
  nb::object sparse_;               // or the matrix that they belong to
  std::vector<nb::object> arrays_;  // what a stream reads of a step that the device plans
};

struct RunHandles {
  nb::handle q, k, v, out, lse;
  bool return_lse;
  nb::handle pages, page_pos;
  const char* layout;
  nb::handle alibi_slopes, sink, mask, mask_indptr, q_scale, k_scale, v_scale;
  bool bare_state;
  nb::handle params, stream;
};

class Engine {
 public:
  Engine(nb::handle spec, nb::handle capacity, nb::handle options, nb::handle workspace);

  std::unique_ptr<Plan> plan(const BatchHandles& batch);
  void replan(Plan& plan, const BatchHandles& batch);
  std::unique_ptr<Plan> plan_sparse(const class BlockSparse& matrix, nb::handle owner);
  std::unique_ptr<Plan> plan_on_device(const DeviceBatchHandles& batch);
  void replan_on_device(Plan& plan, const DeviceBatchHandles& batch);
  void check_plan(Plan& plan, nb::handle stream);
  nb::object run(const Plan& plan, const RunHandles& tensors);

  nb::str explain() const;
  const char* kernel_key() const { return kvloom_engine_kernel_key(handle_->engine); }
  const char* backend() const { return handle_->place().cuda ? "cuda" : "cpu"; }
  int32_t device() const { return handle_->place().device; }

 private:
  std::unique_ptr<Plan> planned(BatchArg& batch);
  void require_own(const Plan& plan) const;
  void take(DeviceBatchArg& batch, const DeviceBatchHandles& handles);
  template <class Batch, class Update>
  void next_step(Plan& plan, Batch& batch, Update&& update);

  std::shared_ptr<EngineHandle> handle_;
};

void bind_engine(nb::module_& m);

}  // namespace kvloom::python
