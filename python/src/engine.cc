#include "python/src/engine.h"

#include "python/src/block_sparse.h"
#include "python/src/errors.h"
#include "python/src/run_arg.h"

namespace kvloom::python {
namespace {

/// A C call that may take long, with the GIL released and, where it uses an engine, that engine's lock held.
template <class Call>
void call_engine(EngineHandle& engine, Call&& call) {
  kvloom_status status;
  {
    nb::gil_scoped_release released;
    std::lock_guard<std::mutex> lock(engine.busy);
    status = call();
  }
  check(status);
}

}  // namespace

Engine::Engine(nb::handle spec, nb::handle capacity, nb::handle options, nb::handle workspace) {
  const SpecArg s(spec);
  OptionsArg o(options);
  const kvloom_capacity c = capacity_arg(capacity);
  handle_ = std::make_shared<EngineHandle>(*s.c());
  handle_->ramp.max_requests = c.max_requests;
  TensorArg memory;
  memory.take(workspace, "workspace");
  void* data = nullptr;
  int64_t bytes = 0;
  if (memory.given()) {
    if (!memory.is_type(dlpack::kUint, 8) || memory.ndim() != 1 || !memory.contiguous() || memory.read_only()) {
      raise_value_error("`workspace`: expected a writable, contiguous one-dimensional uint8 array, got " + memory.describe());
    }
    data = const_cast<void*>(memory.data());
    bytes = memory.size();
    handle_->workspace = nb::borrow(workspace);
  }
  const nb::object variant = spec.attr("variant");
  if (!variant.is_none()) handle_->params = variant.attr("params");
  kvloom_status status;
  {
    nb::gil_scoped_release released;
    status = kvloom_engine_create(s.c(), &c, o.c(), data, bytes, &handle_->engine);
  }
  check(status);
  handle_->ids_unread = handle_->place().cuda && !o.c()->check_pages;
  if (memory.given() && !memory.is_at(handle_->place())) {
    raise_value_error("`workspace`: expected memory on " + place_text(handle_->place()) + ", got " + memory.describe());
  }
}

std::unique_ptr<Plan> Engine::planned(BatchArg& batch) {
  kvloom_plan* plan = nullptr;
  call_engine(*handle_, [&] { return kvloom_plan_create(handle_->engine, batch.c(), &plan); });
  return std::make_unique<Plan>(handle_, plan, batch);
}

std::unique_ptr<Plan> Engine::plan(const BatchHandles& handles) {
  BatchArg batch;
  batch.take(handles, handle_->facts.num_kv_heads, handle_->ids_unread);
  return planned(batch);
}

std::unique_ptr<Plan> Engine::plan_sparse(const BlockSparse& matrix, nb::handle owner) {
  if (matrix.page_size() != handle_->facts.page_size) {
    raise_value_error("`matrix`: expected a Spec with page_size " + std::to_string(matrix.page_size()) + ", as the matrix says, got " +
                      std::to_string(handle_->facts.page_size));
  }
  BatchArg batch;
  batch.take(matrix.batch(), owner);
  return planned(batch);
}

/// Another step into `plan`, by update().
template <class Batch, class Update>
void Engine::next_step(Plan& plan, Batch& batch, Update&& update) {
  uint64_t step = 0;
  call_engine(*handle_, [&] {
    const kvloom_status status = update();
    if (status == KVLOOM_OK) step = ++plan.c_step;
    return status;
  });
  if (step < plan.facts_step) return;  // another thread's later step is there already
  plan.set_step(batch);
  plan.facts_step = step;
}

void Engine::replan(Plan& plan, const BatchHandles& handles) {
  require_own(plan);
  BatchArg batch;
  batch.take(handles, handle_->facts.num_kv_heads, handle_->ids_unread);
  next_step(plan, batch, [&] { return kvloom_plan_update(handle_->engine, plan.c(), batch.c()); });
}

void Engine::take(DeviceBatchArg& batch, const DeviceBatchHandles& handles) {
  const Place place = handle_->place();
  if (!place.cuda || place.device < 0) {
    raise_refusal(KVLOOM_UNSUPPORTED, std::string("plan_on_device: expected an engine that runs on a GPU (backend=\"cuda\"), got one ") +
                                          (place.cuda ? "without a device (cuda_arch)" : "on the CPU") + "; plan() is for all");
  }
  batch.take(handles, handle_->facts, place, handle_->ramp);
}

std::unique_ptr<Plan> Engine::plan_on_device(const DeviceBatchHandles& handles) {
  DeviceBatchArg batch;
  take(batch, handles);
  kvloom_plan* plan = nullptr;
  call_engine(*handle_, [&] { return kvloom_plan_device_create(handle_->engine, batch.c(), batch.stream(), &plan); });
  return std::make_unique<Plan>(handle_, plan, batch);
}

void Engine::replan_on_device(Plan& plan, const DeviceBatchHandles& handles) {
  require_own(plan);
  DeviceBatchArg batch;
  take(batch, handles);
  next_step(plan, batch, [&] { return kvloom_plan_device_update(handle_->engine, plan.c(), batch.c(), batch.stream()); });
}

void Engine::check_plan(Plan& plan, nb::handle stream) {
  require_own(plan);
  TensorArg lengths;
  lengths.take(plan.lengths(), "kv_len");
  void* const s = stream_of(stream, lengths);
  call_engine(*handle_, [&] { return kvloom_plan_check(handle_->engine, plan.c(), s); });
}

void Engine::require_own(const Plan& plan) const {
  if (plan.engine() != handle_)
    raise_refusal(KVLOOM_MISMATCH, "`plan`: expected one that this engine made, got another engine's; plan the step with this engine");
}

nb::object Engine::run(const Plan& plan, const RunHandles& given) {
  RunHandles handles = given;
  nb::object params;
  if (handle_->params.is_valid() && nb::len(handle_->params) > 0) {
    params = handle_->params;
    if (!handles.params.is_none()) params = nb::steal(PyNumber_Or(handle_->params.ptr(), handles.params.ptr()));
    if (!params.is_valid()) throw nb::python_error();
    handles.params = params;
  }
  require_own(plan);
  const uint64_t step = plan.facts_step;
  RunArg tensors;
  tensors.take(handles, {handle_->facts, handle_->place(), plan.total_tokens(), plan.num_requests(), plan.num_page_ids()});
  bool replanned = false;
  call_engine(*handle_, [&] {
    replanned = plan.c_step != step;
    return replanned ? KVLOOM_OK : kvloom_run(handle_->engine, plan.c(), tensors.c(), tensors.stream());
  });
  if (replanned) raise_refusal(KVLOOM_MISMATCH, "`plan`: another thread planned its next step while this run began; use a plan a thread");
  if (tensors.must_wait()) wait_for_stream(handle_->place().device, tensors.stream());
  return tensors.result();
}

nb::str Engine::explain() const {
  char* text = nullptr;
  call_engine(*handle_, [&] { return kvloom_engine_explain(handle_->engine, &text); });
  return taken_string(text);
}

void Plan::set_step(BatchArg& batch) {
  total_tokens_ = batch.total_tokens();
  num_requests_ = batch.num_requests();
  num_page_ids_ = batch.num_page_ids();
  sparse_ = batch.owner();
  pages_ = batch.take_pages();
  arrays_.clear();
}

void Plan::set_step(DeviceBatchArg& batch) {
  total_tokens_ = batch.total_tokens();
  num_requests_ = batch.num_requests();
  num_page_ids_ = batch.num_page_ids();
  sparse_.reset();
  pages_ = batch.take_pages();
  arrays_ = batch.take_arrays();
}

nb::str Plan::text(kvloom_status (*make)(const kvloom_plan*, char**)) const {
  char* text = nullptr;
  call_engine(*engine_, [&] { return make(plan_, &text); });
  return taken_string(text);
}

nb::str Plan::explain() const { return text(kvloom_plan_explain); }
nb::str Plan::json() const { return text(kvloom_plan_json); }
nb::str Plan::svg() const { return text(kvloom_plan_svg); }

nb::bytes Plan::bytes() const {
  const void* data = nullptr;
  int64_t size = 0;
  call_engine(*engine_, [&] { return kvloom_plan_bytes(plan_, &data, &size); });
  return nb::bytes(data, size_t(size));
}

uint64_t Plan::graph_key() const {
  uint64_t key = 0;
  call_engine(*engine_, [&] { return kvloom_plan_graph_key(plan_, &key); });
  return key;
}

void Plan::upload(nb::handle stream) {
  void* const s = stream_of(stream, TensorArg());
  call_engine(*engine_, [&] { return kvloom_plan_upload(engine_->engine, plan_, s); });
}

}  // namespace kvloom::python
