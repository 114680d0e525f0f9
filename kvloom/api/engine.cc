#include "kvloom/api/engine.h"

#include "kvloom/api/engine_state.h"
#include "kvloom/base/math.h"
#include "kvloom/runtime/explain.h"
#include "kvloom/runtime/launch_cpu.h"
#include "kvloom/support/check.h"

#include <atomic>
#include <cstring>

namespace kvloom {
namespace api {

char* EngineState::own_memory() {
  if (setup.device != nullptr) {
    own_device_workspace = runtime::DeviceMemory(*setup.device, layout.bytes, "workspace");
    return own_device_workspace.data();
  }
  if (setup.on_gpu()) return nullptr;  // an architecture alone: nothing will run
  own_workspace = aligned_bytes(layout.bytes, "workspace");
  return own_workspace.get();
}

void EngineState::take_workspace(const Workspace& workspace) {
  void* data = workspace.data;
  if (data == nullptr) {
    require(workspace.bytes == 0,
            "Engine: workspace.data: got a null pointer with {} bytes, wanted memory, or 0 bytes for the engine's own", workspace.bytes);
    data = own_memory();
  } else {
    if (workspace.bytes < layout.bytes) {
      fail(ErrorCode::mismatch,
           "Engine: workspace.bytes: got {}, wanted {}; ask Engine::workspace_size (kvloom_workspace_size) with the same spec, capacity "
           "and options",
           workspace.bytes, layout.bytes);
    }
    const uintptr_t align = setup.on_gpu() ? 256 : uintptr_t(runtime::kScratchAlign);
    require(reinterpret_cast<uintptr_t>(data) % align == 0,
            "Engine: workspace.data: got an address that is not a multiple of {} bytes ({}), wanted one that is", align, data);
    if (setup.device != nullptr) check_device_pointer(data, setup.choice.gpu.device, "Engine", "workspace.data");
  }
  scratch = runtime::scratch_at(data, layout);
  if (setup.device == nullptr) return;
  runner = std::make_unique<runtime::CudaRunner>(*setup.device, setup.spec, setup.early_launch);
  runner->set_scratch(scratch);
}

std::unique_ptr<PlanState> EngineState::take_plan() {
  if (std::unique_ptr<PlanState> resting = plans->take()) return resting;
  auto fresh = std::make_unique<PlanState>();
  if (setup.device != nullptr) {
    fresh->cuda = std::make_unique<runtime::CudaPlan>(
        *setup.device, runtime::upload_layout(plan_layout, capacity.max_requests, setup.spec.variant.custom_mask));
  }
  fresh->add_blocks(0, planner.layout().plan_bytes);
  for (int i = 0; i < 3; ++i) {
    if (own_planner[i]) fresh->add_blocks(1 + i, own_planner[i]->layout().plan_bytes);
  }
  fresh->engine_id = id;
  fresh->spec = setup.spec;
  fresh->kernel_key = kernel().key;
  return fresh;
}

void EngineState::check_owner(const PlanState& plan, const char* where) const {
  if (plan.engine_id == id) return;
  fail(ErrorCode::mismatch, "{}: plan: got one of another engine ({}), wanted one of this engine ({}); plan with the engine that runs it",
       where, plan.kernel_key, kernel().key);
}

void EngineState::check_device(const char* where) const {
  if (!setup.on_gpu() || runner) return;
  fail(ErrorCode::unsupported, "{}: got an engine made for {} alone, wanted one with a device; leave out options.cuda_arch", where, setup.choice.gpu.arch);
}

}  // namespace api

namespace {

/// What run() has to know about the batch. The planner has found it sound.
void describe_step(const AttentionSpec& spec, const PlanView& view, const Batch& batch, bool check_pages, api::PlannedStep& step) {
  step.q_len.clear();
  step.mask_columns.clear();
  step.planner = -1;
  step.num_requests = batch.num_requests;
  step.total_tokens = view.header->total_tokens;
  step.pages = batch.pages;
  step.kv_position = batch.kv_position;
  step.ids_read = check_pages;
  step.use = api::find_page_use(spec, view, batch.pages, check_pages);
  require(spec.storage == Storage::ragged || step.use.entries_end <= batch.pages.size,
          "plan: pages: got {} entries, wanted at least {}; the lengths reach further than the page table", batch.pages.size,
          step.use.entries_end);
  require(step.use.min_id >= 0, "plan: pages[{}]: page id: got {}, wanted at least 0; only entries that no row can see may be out of range",
          step.use.min_entry, step.use.min_id);
  if (!spec.variant.custom_mask) return;
  const int32_t lists = batch.lists_per_kv_head ? spec.num_kv_heads : 1;
  require(batch.num_requests == 0 || (batch.kv_len.given() && batch.kv_len.size >= int64_t(batch.num_requests) * lists),
          "plan: kv_len: got {} entries, wanted {}, with explicit groups, too; they are the columns of custom masks", batch.kv_len.given() ? batch.kv_len.size : 0,
          int64_t(batch.num_requests) * lists);
  for (int32_t r = 0; r < batch.num_requests; ++r) {
    int64_t columns = 0;  // with a list a head, the longest decides
    for (int32_t h = 0; h < lists; ++h) columns = max_of(columns, batch.kv_len[int64_t(r) * lists + h]);
    step.q_len.push_back(int32_t(batch.qo_indptr[r + 1] - batch.qo_indptr[r]));
    step.mask_columns.push_back(int32_t(columns));
  }
}

/// Which of EngineState::own_planner is for steps whose requests have so many rows of their own, a KV head; -1: none, few rows and many. A malformed batch
/// is the planner's to refuse.
int own_planner_for(const api::Setup& setup, const Batch& batch) {
  if (!batch.qo_indptr.given() || batch.qo_indptr.size <= batch.num_requests) return -1;
  const int64_t few = setup.config.compute_rows_above;
  int64_t least = INT64_MAX, most = 0;
  for (int32_t r = 0; r < batch.num_requests; ++r) {
    // Nobody has judged these numbers yet: the difference may be anything.
    const int64_t tokens = int64_t(uint64_t(batch.qo_indptr[r + 1]) - uint64_t(batch.qo_indptr[r]));
    const int64_t rows = clamp_to<int64_t>(tokens, 0, INT32_MAX) * setup.spec.group_size();
    if (rows == 0) continue;
    least = min_of(least, rows), most = max_of(most, rows);
  }
  if (most == 0) return -1;
  if (most <= few) return 0;
  if (setup.own.memory_32 && most <= setup.own.memory_32->compute_rows_above) return 2;
  return least > few ? 1 : -1;
}

}  // namespace

/// Plans into the next block, with the planner whose kernel will run the step. What rows the requests have does not say yet that all items
/// will be of that class: many requests may share a prefix, or be in one group of the caller's. Nor are levels of few rows for all kernels of few
/// rows: where attend_mixed has them at the side, it lets items of a prefix and of its readers arrive together (device/stream/items.cuh), and is faster.
plan::Planner& api::EngineState::plan_block(PlanState& state, const Batch& batch, char*& block) {
  const auto with = [&](plan::Planner& p, int blocks) -> plan::Planner& {
    block = state.open_block(blocks);
    p.plan(batch, block, p.layout().plan_bytes);
    state.close_block();
    return p;
  };
  const int number = own_planner[0] || own_planner[1] || own_planner[2] ? own_planner_for(setup, batch) : -1;
  if (number < 0 || !own_planner[number]) return with(planner, 0);
  plan::Planner& own = *own_planner[number];
  if (number > 0 || !setup.own.small_computes) {
    with(own, 1 + number);
  } else {
    block = state.open_block(1);
    if (!own.plan_flat(batch, block, own.layout().plan_bytes)) {
      state.leave_block();
      block = state.open_block(0);
      planner.plan_levels_of(own, batch, block, planner.layout().plan_bytes);
      state.close_block();
      return planner;
    }
    state.close_block();
  }
  return own.uses_class(number == 1 ? 0 : 1) ? with(planner, 0) : own;
}

void api::EngineState::plan_into(PlanState& state, const Batch& batch) {
  if (host_pointers) host_pointers->check_batch(batch, check_pages || planner.reads_page_ids());
  char* block = nullptr;
  const plan::Planner& used = plan_block(state, batch, block);
  describe_step(setup.spec, view_plan(block), batch, check_pages, state.next_step);
  if (!batch.groups.empty()) repeated_keys.check(setup.spec, batch, check_pages);
  state.next_step.notes = used.level_notes();
  const bool own_memory = setup.shares_kernels || &used == own_planner[0].get(), own_compute = setup.own.compute ? &used == own_planner[1].get() : !setup.own.all_compute_mixed;
  const bool levels = view_plan(block).header->num_levels > 1;
  const int entry = &used == own_planner[2].get() ? runtime::AttendModule::kMemory32
                                                  : runtime::AttendModule::index_of(used.uses_class(0), used.uses_class(1), levels, own_memory, own_compute,
                                                                                    setup.own.small_computes, setup.own.fetches_rows);
  state.next_step.entry = setup.on_gpu() ? runtime::AttendModule::kNames[entry] : nullptr;
  state.take_block(setup.module == nullptr ? nullptr : &setup.module->entries[entry]);
}

Engine::Engine(const AttentionSpec& spec, const Capacity& capacity, const EngineOptions& options, const Workspace& workspace) {
  static std::atomic<uint64_t> engines{0};
  state_ = std::make_unique<api::EngineState>(api::make_setup(spec, capacity, options), capacity);
  state_->take_workspace(workspace);
  if (!state_->setup.on_gpu()) {
    state_->threads = options.threads > 0 ? std::make_shared<ThreadPool>(options.threads) : runtime::shared_threads();
  }
  state_->check_pages = options.check_pages;
  state_->timeline = options.timeline;
  if (options.check_pointers && state_->setup.device != nullptr) {
    state_->pointers = std::make_unique<api::PointerCheck>(state_->setup.choice.gpu.device);
    state_->host_pointers = std::make_unique<api::PointerCheck>(state_->setup.choice.gpu.device);
  }
  state_->id = engines.fetch_add(1) + 1;
}

Engine::~Engine() = default;
Engine::Engine(Engine&&) noexcept = default;
Engine& Engine::operator=(Engine&&) noexcept = default;

int64_t Engine::workspace_size(const AttentionSpec& spec, const Capacity& capacity, const EngineOptions& options) {
  const api::Setup s = api::make_setup(spec, capacity, options);
  return scratch_layout_of(s, plan_layout_of(s, capacity)).bytes;
}

api::EngineState& Engine::state() const {
  require(state_ != nullptr, "Engine: got one that was moved from, wanted a live engine");
  return *state_;
}

const AttentionSpec& Engine::spec() const { return state().setup.spec; }
const SchedulerConfig& Engine::config() const { return state().setup.config; }
const std::string& Engine::kernel_key() const { return state().kernel().key; }
int64_t Engine::workspace_bytes() const { return state().layout.bytes; }

Backend Engine::backend() const { return state().setup.on_gpu() ? Backend::cuda : Backend::cpu; }
int32_t Engine::device() const { return state().setup.on_gpu() ? state().setup.choice.gpu.device : -1; }

Plan Engine::plan(const Batch& batch) {
  api::EngineState& s = state();
  Plan plan(s.take_plan());
  plan.state_->pool = s.plans;
  s.plan_into(*plan.state_, batch);
  return plan;
}

void Engine::replan(Plan& plan, const Batch& batch) {
  api::EngineState& s = state();
  plan.state();  // a live one
  s.check_owner(*plan.state_, "replan");
  if (plan.state_->cuda) return s.plan_into(*plan.state_, batch);
  plan = this->plan(batch);
}

void Engine::upload(Plan& plan, void* stream) {
  api::EngineState& s = state();
  plan.state();
  s.check_owner(*plan.state_, "upload");
  s.check_device("upload");
  if (s.runner) s.runner->upload(*plan.state_->cuda, static_cast<jit::CuStream>(stream));
}

void Engine::run(const Plan& plan, const RunTensors& tensors, void* stream) {
  api::EngineState& s = state();
  const api::PlanState& p = plan.state();
  s.check_owner(p, "run");
  s.check_device("run");
  require(s.runner || stream == nullptr, "run: stream: got a stream, wanted a null pointer; the CPU has none");
  BoxedAttendArgs boxed;  // boxes: whatever is there; a launch that has use for them makes them
  AttendArgs& args = boxed.attend;
  args.params = api::checked_params(p, tensors, s.runner ? Backend::cuda : Backend::cpu, s.pointers.get());
  args.timeline = s.checked_timeline(p, tensors.timeline);
  if (p.total_tokens == 0) return;  // no rows, no kernel
  if (s.runner) return s.runner->run(*p.cuda, boxed, static_cast<jit::CuStream>(stream));
  runtime::launch_cpu(*s.kernel().kernel, s.setup.spec, p.view(), args.params, s.scratch, *s.threads, s.setup.user, args.timeline);
}

std::string Engine::explain() const {
  const api::EngineState& s = state();
  const api::Setup& setup = s.setup;
  std::string text = runtime::explain_choice(setup.spec, s.capacity, setup.config, setup.own, setup.choice);
  if (setup.module != nullptr) {
    for (int i = 0; i < runtime::AttendModule::kEntries; ++i) {
      if ((i == 3 && setup.shares_kernels) || (i == runtime::AttendModule::kMemory32 && !setup.own.memory_32)) continue;
      const auto& [name, e] = std::pair{runtime::AttendModule::kNames[i], setup.module->entries[i]};
      text += kvloom::format("  {:<8} {} threads, {} registers, {} bytes of shared memory, {} CTAs an SM\n", name, e.threads, e.registers,
                             e.shared_bytes, e.ctas_per_sm);
    }
  }
  if (!setup.on_gpu()) text += kvloom::format("threads  {}\n", setup.threads);
  return text + kvloom::format("workspace {} bytes\n", s.layout.bytes);
}

}  // namespace kvloom
