// Steps that the device plans.
#include "kvloom/api/engine_state.h"
#include "kvloom/plan/batch_check.h"
#include "kvloom/plan/device_planner.h"
#include "kvloom/plan/packed.h"
#include "kvloom/support/check.h"

namespace kvloom {
namespace {

/// Whether arrays are given, and how many elements they have. What they hold is the device's to judge.
void check_sizes(const AttentionSpec& spec, const DeviceBatch& b) {
  const auto sized = [](const char* name, const IndexView& view, int64_t wanted) {
    require(view.given() && view.size == wanted, "plan_on_device: {}: got {} entries{}, wanted {}", name, view.size, view.given() ? "" : " (a null pointer)",
            wanted);
  };
  require(b.num_requests >= 0, "plan_on_device: num_requests: got {}, wanted 0 or more", b.num_requests);
  require(b.table_stride >= 0 && b.table_stride <= plan::kMaxListTokens, "plan_on_device: table_stride: got {}, wanted 0 to {}", b.table_stride,
          plan::kMaxListTokens);
  const bool paged = spec.storage == Storage::paged;
  require(paged || (b.table_stride == 0 && !b.pages.given() && b.kv_position == KvPosition::linear),
          "plan_on_device: table_stride, pages, kv_position: got one with ragged storage, wanted none; set spec.storage to paged");
  require(paged ? b.kv_tokens == 0 : b.kv_tokens >= 0, "plan_on_device: kv_tokens: got {}, wanted {}", b.kv_tokens,
          paged ? "0; it is the size of ragged K and V" : "0 or more");
  require(b.pages.size >= 0, "plan_on_device: pages: got {} entries, wanted 0 or more", b.pages.size);
  const int32_t position = int32_t(b.kv_position);
  require(position >= 0 && position <= 2, "plan_on_device: kv_position: got {}, wanted linear, page_table or page_id", position);
  if (b.num_requests == 0) return;
  const int64_t lists = int64_t(b.num_requests) * (b.lists_per_kv_head ? spec.num_kv_heads : 1);
  sized("qo_indptr", b.qo_indptr, int64_t(b.num_requests) + 1);
  sized("kv_len", b.kv_len, lists);
  if (b.table_stride > 0) {
    require(!b.list_indptr.given(), "plan_on_device: list_indptr: got one beside table_stride = {}, wanted either; a dense table has no indptr",
            b.table_stride);
    return;
  }
  sized("list_indptr", b.list_indptr, b.list_indptr.size == lists ? lists : lists + 1);
}

plan::DeviceArgs args_of(const AttentionSpec& spec, const Capacity& capacity, const plan::Planner& planner, const DeviceBatch& b) {
  plan::DeviceArgs a = plan::device_args(spec, capacity, planner.config(), planner.layout(), {b.num_requests, b.max_q_len, b.num_tokens, b.lists_per_kv_head});
  a.qo_indptr = b.qo_indptr;
  a.kv_len = b.kv_len;
  a.list_indptr = b.list_indptr;
  a.table_stride = b.table_stride;
  a.num_entries = spec.storage == Storage::ragged ? b.kv_tokens : b.pages.size;
  a.q_pos0 = b.q_pos0;
  a.prefix = b.prefix;
  a.kv_position = b.kv_position;
  return a;
}

/// What run() has to know.
void describe_device_step(const AttentionSpec& spec, const DeviceBatch& b, api::PlannedStep& step) {
  step = {};
  step.num_requests = b.num_requests;
  step.total_tokens = b.num_tokens;
  step.pages = b.pages;
  step.kv_position = b.kv_position;
  if (spec.storage == Storage::ragged) step.use.max_id = b.kv_tokens - 1;
  else step.use.entries_end = b.pages.size;
}

/// Refuses engines that can't.
void check_can_plan(api::EngineState& s) {
  s.check_device("plan_on_device");
  if (!s.runner) {
    fail(ErrorCode::unsupported, "plan_on_device: got an engine without a GPU to run on, wanted one with options.backend = cuda; plan() is for all");
  }
  for (const int i : {0, 1, 3}) {
    const plan::Planner* const planner = s.planner_number(i);
    const std::string refusal = planner != nullptr ? plan::device_refusal(s.setup.spec, planner->config()) : "";
    if (!refusal.empty()) fail(ErrorCode::unsupported, "plan_on_device: {}", refusal);
  }
}

}  // namespace

int64_t api::EngineState::device_table_bytes() const {
  const plan::DeclaredStep largest = {capacity.max_requests, int32_t(capacity.max_query_tokens), capacity.max_query_tokens, true};
  int64_t bytes = plan::plan_table_bytes(plan::device_args(setup.spec, capacity, setup.config, planner.layout(), largest));
  if (const plan::Planner* const own = own_planner[2].get()) {
    bytes = max_of(bytes, plan::plan_table_bytes(plan::device_args(setup.spec, capacity, own->config(), own->layout(), largest)));
  }
  return bytes;
}

void api::EngineState::plan_on_device(PlanState& state, const DeviceBatch& batch, jit::CuStream stream) {
  check_sizes(setup.spec, batch);
  const plan::DeclaredStep declared = {batch.num_requests, batch.max_q_len, batch.num_tokens, batch.lists_per_kv_head};
  const bool few = !plan::may_use_compute(setup.spec, setup.config, declared);
  const bool up_to_32 = !few && own_planner[2] && !plan::may_use_compute(setup.spec, own_planner[2]->config(), declared);
  const bool compute = !few && !up_to_32;
  const int number = up_to_32 ? 3 : few && own_planner[0] ? 1 : 0;
  const plan::Planner& used = *planner_number(number);
  if (pointers) {
    const std::pair<const void*, const char*> arrays[] = {{batch.qo_indptr.data, "qo_indptr"}, {batch.kv_len.data, "kv_len"},
                                                          {batch.list_indptr.data, "list_indptr"}, {batch.pages.data, "pages"},
                                                          {batch.q_pos0, "q_pos0"},          {batch.prefix, "prefix"}};
    for (const auto& [address, name] : arrays) pointers->check(address, "plan_on_device", name);
  }
  const bool own_memory = setup.shares_kernels || number == 1;
  const int entry = up_to_32 ? runtime::AttendModule::kMemory32
                             : runtime::AttendModule::index_of(true, compute, false, own_memory, false, setup.own.small_computes, setup.own.fetches_rows);
  PlannedStep& next = state.next_step;
  describe_device_step(setup.spec, batch, next);
  next.planner = number;
  next.entry = runtime::AttendModule::kNames[entry];
  next.args = args_of(setup.spec, capacity, used, batch);
  next.declared_key = next.args.graph_keys[compute ? 3 : 1];
  runner->plan(*state.cuda, next.args, device_table_bytes(), setup.module->entries[entry], stream);
  state.take_device_step();
}

Plan Engine::plan_on_device(const DeviceBatch& batch, void* stream) {
  api::EngineState& s = state();
  check_can_plan(s);
  Plan plan(s.take_plan());
  plan.state_->pool = s.plans;
  s.plan_on_device(*plan.state_, batch, static_cast<jit::CuStream>(stream));
  return plan;
}

void Engine::replan_on_device(Plan& plan, const DeviceBatch& batch, void* stream) {
  api::EngineState& s = state();
  plan.state();  // a live one
  s.check_owner(*plan.state_, "replan_on_device");
  check_can_plan(s);
  s.plan_on_device(*plan.state_, batch, static_cast<jit::CuStream>(stream));
}

void Engine::check(Plan& plan, void* stream) {
  api::EngineState& s = state();
  plan.state();
  api::PlanState& p = *plan.state_;
  s.check_owner(p, "check");
  if (p.planner < 0) return;
  p.fetched = false;
  char* const block = p.open_block(p.planner);
  const plan::PlanVerdict verdict = s.runner->fetch(*p.cuda, block, p.args.header.total_bytes, static_cast<jit::CuStream>(stream));
  const auto& header = *reinterpret_cast<const PlanHeader*>(block);
  if (header.magic != kPlanMagic || header.version != kPlanVersion || header.total_bytes != p.args.header.total_bytes) {
    fail(ErrorCode::internal, "check: plan: got bytes that no planner wrote, wanted a plan; something else has written to the plan's memory");
  }
  plan::clear_unused(block);
  p.close_block();
  plan::check_verdict(verdict);
  p.take_fetched();
}

}  // namespace kvloom
