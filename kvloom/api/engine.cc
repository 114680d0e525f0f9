#include "kvloom/api/engine.h"

#include "kvloom/api/plan_state.h"
#include "kvloom/api/run_check.h"
#include "kvloom/api/spec_check.h"
#include "kvloom/base/math.h"
#include "kvloom/cpu/attend.h"
#include "kvloom/plan/planner.h"
#include "kvloom/runtime/explain.h"
#include "kvloom/runtime/launch_cpu.h"
#include "kvloom/runtime/scratch_layout.h"
#include "kvloom/support/check.h"

#include <atomic>
#include <cstring>
#include <numeric>

namespace kvloom {
namespace {

/// Everything about an engine that follows from its spec, capacity and options.
struct Setup {
  AttentionSpec spec;
  runtime::Choice choice;
  SchedulerConfig config;
  int32_t threads = 1;
};

SchedulerConfig scheduler_config(const AttentionSpec& spec, const EngineOptions& options, cpu::Target target) {
  SchedulerConfig config;
  config.num_ctas = options.num_ctas > 0 ? options.num_ctas : cpu::kVirtualCtas;
  config.policy = options.policy;
  config.levels = options.levels;
  cpu::kernel_classes(spec, target, config.classes);
  const int32_t tile = std::lcm(config.classes[0].tile_kv, config.classes[1].tile_kv);
  require(options.split_tokens % tile == 0, "Engine: options.split_tokens: got {}, wanted a multiple of {} (the kernel's tile of keys)",
          options.split_tokens, tile);
  config.split_tokens = options.split_tokens > 0 ? options.split_tokens : round_up(config.split_tokens, tile);
  return config;
}

Setup make_setup(const AttentionSpec& spec, const Capacity& capacity, const EngineOptions& options) {
  Setup s;
  s.spec = api::checked_spec(spec);
  api::check_capacity(capacity, s.spec);
  api::check_options(options);
  s.choice = runtime::choose_attend(s.spec, options.cpu_target);
  s.config = scheduler_config(s.spec, options, s.choice.winner().kernel->target);
  s.threads = options.threads > 0 ? options.threads : runtime::usable_cores();
  return s;
}

runtime::ScratchLayout layout_of(const Setup& s, const plan::PlanLayout& layout) {
  return runtime::scratch_layout(layout, cpu::thread_arena_bytes(s.spec, s.config.classes), s.threads);
}

}  // namespace

namespace api {

struct EngineState {
  Setup setup;
  plan::Planner planner;
  runtime::ScratchLayout layout;
  std::unique_ptr<char, AlignedFree> own_workspace;
  Scratch scratch;
  std::shared_ptr<ThreadPool> threads;
  std::shared_ptr<PlanPool> plans = std::make_shared<PlanPool>();
  bool check_pages = true;
  uint64_t id = 0;  // no two engines of a process have the same

  EngineState(Setup s, const Capacity& capacity)
      : setup(std::move(s)), planner(setup.spec, capacity, setup.config), layout(layout_of(setup, planner.layout())) {}
  ~EngineState() { plans->close(); }

  const runtime::Candidate& kernel() const { return setup.choice.winner(); }
  void take_workspace(const Workspace& workspace);
  std::unique_ptr<PlanState> take_plan();
};

void EngineState::take_workspace(const Workspace& workspace) {
  void* data = workspace.data;
  if (data == nullptr) {
    require(workspace.bytes == 0,
            "Engine: workspace.data: got a null pointer with {} bytes, wanted memory, or 0 bytes for the engine's own", workspace.bytes);
    own_workspace = aligned_bytes(layout.bytes, "workspace");
    data = own_workspace.get();
  } else {
    if (workspace.bytes < layout.bytes) {
      fail(ErrorCode::mismatch,
           "Engine: workspace.bytes: got {}, wanted {}; ask Engine::workspace_size with the same spec, capacity and options",
           workspace.bytes, layout.bytes);
    }
    require(reinterpret_cast<uintptr_t>(data) % runtime::kScratchAlign == 0,
            "Engine: workspace.data: got an address that is not a multiple of {} bytes, wanted one that is", runtime::kScratchAlign);
  }
  scratch = runtime::scratch_at(data, layout);
}

std::unique_ptr<PlanState> EngineState::take_plan() {
  if (std::unique_ptr<PlanState> resting = plans->take()) {
    resting->erase();
    return resting;
  }
  auto fresh = std::make_unique<PlanState>();
  fresh->buffer = aligned_bytes(planner.layout().plan_bytes, "plan");
  std::memset(fresh->buffer.get(), 0, size_t(planner.layout().plan_bytes));
  fresh->engine_id = id;
  fresh->spec = setup.spec;
  fresh->kernel_key = kernel().key;
  return fresh;
}

}  // namespace api

namespace {

/// Keeps what run() has to know about the batch. The planner has found it sound.
void remember_batch(api::PlanState& plan, const Batch& batch, bool check_pages) {
  const PlanView view = plan.view();
  plan.num_requests = batch.num_requests;
  plan.total_tokens = view.header->total_tokens;
  plan.pages = batch.pages;
  plan.kv_position = batch.kv_position;
  plan.ids_read = check_pages;
  plan.use = api::find_page_use(plan.spec, view, batch.pages, check_pages);
  require(plan.spec.storage == Storage::ragged || plan.use.entries_end <= batch.pages.size,
          "plan: pages: got {} entries, wanted at least {}; the lengths reach further than the page table", batch.pages.size,
          plan.use.entries_end);
  require(plan.use.min_id >= 0, "plan: pages[{}]: page id: got {}, wanted at least 0; only entries that no row can see may be out of range",
          plan.use.min_entry, plan.use.min_id);
  plan.q_len.clear();
  plan.mask_columns.clear();
  if (!plan.spec.variant.custom_mask) return;
  const int32_t lists = batch.lists_per_kv_head ? plan.spec.num_kv_heads : 1;
  for (int32_t r = 0; r < batch.num_requests; ++r) {
    int64_t columns = 0;  // with a list a head, the longest decides
    for (int32_t h = 0; h < lists; ++h) columns = max_of(columns, batch.kv_len[int64_t(r) * lists + h]);
    plan.q_len.push_back(int32_t(batch.qo_indptr[r + 1] - batch.qo_indptr[r]));
    plan.mask_columns.push_back(int32_t(columns));
  }
}

/// Rows that attend to nothing because the plan has no query tokens at all need no kernel.
bool has_work(const PlanView& plan) { return plan.header->total_tokens > 0; }

}  // namespace

Engine::Engine(const AttentionSpec& spec, const Capacity& capacity, const EngineOptions& options, const Workspace& workspace) {
  static std::atomic<uint64_t> engines{0};
  state_ = std::make_unique<api::EngineState>(make_setup(spec, capacity, options), capacity);
  state_->take_workspace(workspace);
  state_->threads = options.threads > 0 ? std::make_shared<ThreadPool>(options.threads) : runtime::shared_threads();
  state_->check_pages = options.check_pages;
  state_->id = engines.fetch_add(1) + 1;
}

Engine::~Engine() = default;
Engine::Engine(Engine&&) noexcept = default;
Engine& Engine::operator=(Engine&&) noexcept = default;

int64_t Engine::workspace_size(const AttentionSpec& spec, const Capacity& capacity, const EngineOptions& options) {
  const Setup s = make_setup(spec, capacity, options);
  return layout_of(s, plan::plan_layout(s.spec, capacity, s.config)).bytes;
}

api::EngineState& Engine::state() const {
  require(state_ != nullptr, "Engine: got one that was moved from, wanted a live engine");
  return *state_;
}

const AttentionSpec& Engine::spec() const { return state().setup.spec; }
const SchedulerConfig& Engine::config() const { return state().setup.config; }
const std::string& Engine::kernel_key() const { return state().kernel().key; }
int64_t Engine::workspace_bytes() const { return state().layout.bytes; }

Plan Engine::plan(const Batch& batch) {
  api::EngineState& s = state();
  Plan plan(s.take_plan());
  plan.state_->pool = s.plans;
  s.planner.plan(batch, plan.state_->buffer.get(), s.planner.layout().plan_bytes);
  plan.state_->written = true;
  plan.state_->notes = s.planner.level_notes();
  remember_batch(*plan.state_, batch, s.check_pages);
  return plan;
}

void Engine::run(const Plan& plan, const RunTensors& tensors, void* stream) {
  api::EngineState& s = state();
  const api::PlanState& p = plan.state();
  if (p.engine_id != s.id) {
    fail(ErrorCode::mismatch,
         "run: plan: got one of another engine ({}), wanted one of this engine ({}); plan with the engine that runs it", p.kernel_key,
         s.kernel().key);
  }
  require(stream == nullptr, "run: stream: got a stream, wanted a null pointer; the CPU has none");
  const AttendParams params = api::checked_params(p, tensors);
  if (has_work(p.view())) runtime::launch_cpu(*s.kernel().kernel, s.setup.spec, p.view(), params, s.scratch, *s.threads);
}

std::string Engine::explain() const {
  const api::EngineState& s = state();
  return kvloom::format("{}threads  {}\nworkspace {} bytes\n", runtime::explain_choice(s.setup.spec, s.setup.config, s.setup.choice),
                        s.setup.threads, s.layout.bytes);
}

}  // namespace kvloom
