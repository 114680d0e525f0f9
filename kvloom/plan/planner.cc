#include "kvloom/plan/planner.h"

#include "kvloom/plan/batch_check.h"
#include "kvloom/plan/emit.h"
#include "kvloom/plan/groups.h"
#include "kvloom/plan/layout.h"
#include "kvloom/plan/policy.h"
#include "kvloom/support/check.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <type_traits>

namespace kvloom::plan {

// Same input, same bytes: what is written as structs has no padding.
static_assert(std::has_unique_object_representations_v<PlanHeader> && std::has_unique_object_representations_v<RowGroup> &&
              std::has_unique_object_representations_v<RowEntry> && std::has_unique_object_representations_v<WorkItem>);

/// Costs of steps with levels, all of class 0.
SchedulerConfig few_rows_levels(SchedulerConfig config) {
  config.classes[0].cost_per_item += config.cost_level_item;
  return config;
}

namespace {

/// Room for all that a step within the capacity may need. `field`: what of it asks for so many.
template <class T>
void make_room(std::vector<T>& list, int64_t count, const char* what, const char* field) {
  try {
    list.reserve(size_t(count));
  } catch (const std::exception&) {  // bad_alloc, length_error
    fail(ErrorCode::out_of_memory, "plan: {}: got no memory, wanted {} bytes for {}; lower Capacity.{}", what, count * int64_t(sizeof(T)), count, field);
  }
}

/// The field of the capacity that bounds row groups, and the one that bounds their tokens, which bound tiles.
const char* field_of_groups(const Capacity& c) {
  if (c.max_groups > 0) return "max_groups";
  return c.max_requests >= c.max_level_rows ? "max_requests" : "max_level_rows";
}
const char* field_of_tokens(const Capacity& c) { return c.max_query_tokens >= c.max_level_rows ? "max_query_tokens" : "max_level_rows"; }

}  // namespace

struct Planner::Impl {
  AttentionSpec spec;
  Capacity capacity;
  SchedulerConfig config;
  PlanLayout layout;  // checks the configuration
  SchedulerConfig level_config;
  TileRules rules, level_rules;
  bool few_rows_levels_now = false;  // of the step
  int64_t max_partials = 0;  // fixed_split: of one chunk and one head

  GroupList list;
  ExplicitGroups explicit_groups;
  PrefixFinder prefix_finder;
  Work work;
  PolicyMemory policy_memory;
  Schedule schedule;
  EmitMemory emit_memory;

  Impl(const AttentionSpec& s, const Capacity& c, const SchedulerConfig& g)
      : spec(s), capacity(c), config(g), layout(plan_layout(s, c, g)), level_config(few_rows_levels(g)), rules(spec, config), level_rules(spec, level_config) {
    if (config.policy == Policy::fixed_split) max_partials = max_chunk_partials(spec, capacity, config);
    // Most of what plan() needs; the rest is made by the first call.
    make_room(list.groups, layout.max_groups, "row groups", field_of_groups(capacity));
    make_room(work.tiles, layout.max_items / spec.num_kv_heads + 1, "tiles", field_of_tokens(capacity));
    make_room(schedule.pieces, layout.max_items, "items", field_of_tokens(capacity));
  }
  Impl(const Impl&) = delete;  // rules point into config and level_config

  /// Of the step whose groups are known.
  const SchedulerConfig& step_config() const { return few_rows_levels_now ? level_config : config; }
  const TileRules& step_rules() const { return few_rows_levels_now ? level_rules : rules; }

  /// fixed_split: a request's bits must not depend on what it shares with others.
  bool looks_for_levels() const {
    return config.levels == LevelMode::automatic && config.policy != Policy::fixed_split && capacity.max_level_rows >= 2;
  }
  void make_groups(const Batch& batch);
  void plan_groups(const Batch& batch, void* buffer);
  void make_work(const Batch& batch);
  void make_schedule();
  void write(const Batch& batch, void* buffer);
};

void Planner::Impl::make_groups(const Batch& batch) {
  list.clear();
  if (!batch.groups.empty()) {
    explicit_groups.build(spec, capacity, batch, list);
  } else if (!looks_for_levels() || !prefix_finder.find(spec, capacity, config, batch, list)) {
    flat_groups(spec, batch, list);
  }
  auto check = [](const char* what, size_t got, int32_t limit, const char* remedy) {
    if (int64_t(got) <= limit) return;
    fail(ErrorCode::over_capacity, "plan: {}: got {}, wanted at most {}; {}", what, got, limit, remedy);
  };
  check("row groups", list.groups.size(), layout.max_groups, "set Capacity.max_groups");
  check("gathered query tokens of the groups", list.row_entries.size(), layout.max_row_entries, "make the engine for a larger Capacity");
}

void Planner::Impl::make_work(const Batch& batch) {
  make_tiles(step_rules(), list, work);
  const bool may_overlap = !batch.groups.empty() || list.num_levels > 1;
  if (!may_overlap && !work.scattered) return;
  const int32_t total_tokens = batch.num_requests > 0 ? int32_t(batch.qo_indptr[batch.num_requests]) : 0;
  index_covers(list, total_tokens, emit_memory);
  resolve_overlaps(step_rules(), list, work, emit_memory);
}

void Planner::Impl::make_schedule() {
  schedule.pieces.clear();
  schedule.order = CtaOrder::as_placed;
  schedule.cuts = {};
  schedule.chunk_cap = 0;
  const SchedulerConfig& costs = step_config();
  switch (config.policy) {
    case Policy::none:
      return schedule_none(work, costs, policy_memory, schedule);
    case Policy::heap:
      return schedule_heap(work, costs, policy_memory, schedule);
    case Policy::stream:
      return schedule_stream(work, costs, policy_memory, schedule);
    case Policy::fill:
      return schedule_fill(work, costs, policy_memory, schedule);
    case Policy::fixed_split:
      return schedule_fixed_split(work, costs, max_partials, policy_memory, schedule);
    case Policy::automatic:
      return schedule_automatic(work, costs, policy_memory, schedule);
  }
}

void Planner::Impl::write(const Batch& batch, void* buffer) {
  auto* h = static_cast<PlanHeader*>(buffer);
  *h = PlanHeader{};
  h->magic = kPlanMagic;
  h->version = kPlanVersion;
  h->status = PlanStatus::ok;
  h->policy = schedule.policy;
  h->num_ctas = config.num_ctas;
  h->num_groups = int32_t(list.groups.size());
  h->num_row_entries = int32_t(list.row_entries.size());
  h->num_levels = list.num_levels;
  h->split_tokens = config.policy == Policy::fixed_split ? config.split_tokens : 0;
  h->total_tokens = batch.num_requests > 0 ? int32_t(batch.qo_indptr[batch.num_requests]) : 0;
  h->chunk_cap = schedule.chunk_cap;
  for (int c = 0; c < 2; ++c) h->classes[c] = step_config().classes[c];
  place_sections(layout, config.num_ctas, *h);

  char* base = static_cast<char*>(buffer);
  const PlanSections out{h,
                         reinterpret_cast<RowGroup*>(base + h->groups_offset),
                         reinterpret_cast<RowEntry*>(base + h->row_entries_offset),
                         reinterpret_cast<int32_t*>(base + h->cta_indptr_offset),
                         reinterpret_cast<WorkItem*>(base + h->items_offset),
                         reinterpret_cast<MergeUnit*>(base + h->units_offset),
                         reinterpret_cast<MergeEntry*>(base + h->entries_offset),
                         reinterpret_cast<int32_t*>(base + h->touches_offset)};
  if (!list.groups.empty()) std::memcpy(out.groups, list.groups.data(), list.groups.size() * sizeof(RowGroup));
  if (!list.row_entries.empty()) std::memcpy(out.row_entries, list.row_entries.data(), list.row_entries.size() * sizeof(RowEntry));
  emit(step_rules(), list, work, schedule, layout, emit_memory, out);
  h->graph_key = graph_key(spec, *h, work.units[0] > 0, work.units[1] > 0);
}

Planner::Planner(const AttentionSpec& spec, const Capacity& capacity, const SchedulerConfig& config)
    : impl_(std::make_unique<Impl>(spec, capacity, config)) {}
Planner::~Planner() = default;
Planner::Planner(Planner&&) noexcept = default;
Planner& Planner::operator=(Planner&&) noexcept = default;

const PlanLayout& Planner::layout() const { return impl_->layout; }
const SchedulerConfig& Planner::config() const { return impl_->config; }
bool Planner::reads_page_ids() const { return impl_->looks_for_levels(); }
bool Planner::uses_class(int c) const { return impl_->work.units[c] > 0; }
const char* Planner::level_notes() const { return impl_->list.notes.c_str(); }

namespace {

void check_call(const AttentionSpec& spec, const Capacity& capacity, const PlanLayout& layout, const Batch& batch, const void* buffer, int64_t buffer_bytes) {
  require(buffer != nullptr && reinterpret_cast<uintptr_t>(buffer) % 64 == 0, "plan: buffer: got {}, wanted 64-byte aligned memory", buffer);
  require(buffer_bytes >= layout.plan_bytes, "plan: buffer: got {} bytes, wanted {} (layout().plan_bytes)", buffer_bytes, layout.plan_bytes);
  check_batch(spec, capacity, batch);
}

}  // namespace

void Planner::Impl::plan_groups(const Batch& batch, void* buffer) {
  few_rows_levels_now = list.num_levels > 1 && std::none_of(list.groups.begin(), list.groups.end(), [&](const RowGroup& g) { return rules.class_of(g) == 1; });
  make_work(batch);
  make_schedule();
  write(batch, buffer);
}

void Planner::plan(const Batch& batch, void* buffer, int64_t buffer_bytes) {
  check_call(impl_->spec, impl_->capacity, impl_->layout, batch, buffer, buffer_bytes);
  impl_->make_groups(batch);
  impl_->plan_groups(batch, buffer);
}

bool Planner::plan_flat(const Batch& batch, void* buffer, int64_t buffer_bytes) {
  check_call(impl_->spec, impl_->capacity, impl_->layout, batch, buffer, buffer_bytes);
  impl_->make_groups(batch);
  if (impl_->list.num_levels > 1) return false;
  impl_->plan_groups(batch, buffer);
  return true;
}

void Planner::plan_levels_of(Planner& other, const Batch& batch, void* buffer, int64_t buffer_bytes) {
  check_call(impl_->spec, impl_->capacity, impl_->layout, batch, buffer, buffer_bytes);
  std::swap(impl_->list, other.impl_->list);
  impl_->plan_groups(batch, buffer);
}

}  // namespace kvloom::plan
