#include "kvloom/plan/device_planner.h"

#include "kvloom/base/math.h"
#include "kvloom/plan/layout.h"
#include "kvloom/support/check.h"

namespace kvloom::plan {
namespace {

/// Longest requests of each class that a step may have, in tokens; 0: none.
struct Longest {
  int64_t tokens[2];
};
Longest longest(const AttentionSpec& spec, const SchedulerConfig& config, const DeclaredStep& step) {
  const int64_t most = min_of<int64_t>(step.max_q_len, step.num_tokens);
  return {{min_of(most, int64_t(config.compute_rows_above / spec.group_size())), may_use_compute(spec, config, step) ? most : 0}};
}

/// Row tiles of one KV head that a step may have.
int64_t max_tiles(const DeviceArgs& args, const Longest& longest, const DeclaredStep& step) {
  int64_t of_request = 0, parts = 1, tokens = INT64_MAX;
  for (int c = 0; c < 2; ++c) {
    if (longest.tokens[c] == 0) continue;
    of_request = max_of(of_request, args.shape[c].tiles(longest.tokens[c]));
    parts = max_of<int64_t>(parts, args.shape[c].tiles_per_token);
    tokens = min_of<int64_t>(tokens, args.shape[c].tokens);
  }
  const int64_t groups = min_of<int64_t>(step.num_requests, step.num_tokens);
  return min_of(step.num_requests * of_request, (groups + (step.num_tokens - groups) / tokens) * parts);
}

void check_step(const Capacity& capacity, const DeclaredStep& step) {
  const auto check = [](const char* what, int64_t got, const char* limit_name, int64_t limit) {
    require(got >= 0, "plan_on_device: {}: got {}, wanted 0 or more", what, got);
    if (got <= limit) return;
    fail(ErrorCode::over_capacity, "plan_on_device: {}: got {}, wanted at most {} = {}; make the engine for a larger Capacity", what, got, limit_name,
         limit);
  };
  check("num_requests", step.num_requests, "Capacity.max_requests", capacity.max_requests);
  check("num_tokens", step.num_tokens, "Capacity.max_query_tokens", capacity.max_query_tokens);
  require(step.max_q_len >= 0, "plan_on_device: max_q_len: got {}, wanted 0 or more", step.max_q_len);
}

void tell_one_tile(const SchedulerConfig& config, bool may_use_compute, const DeclaredStep& step, DeviceArgs& a) {
  const KernelClass& k = config.classes[0];
  const bool rows_cost = step.max_q_len > 1 && k.cost_per_tile_row > 0;
  a.one_tile_cost[0] = run_cost_of(k, a.group_size, 0, a.runs[0].heads);
  a.one_tile_cost[1] = run_cost_of(k, a.group_size, 0, a.runs[0].last_heads);
  a.one_tile = !may_use_compute && !rows_cost && a.shape[0].tiles(step.max_q_len) <= 1 && a.one_tile_cost[0].fixed == a.one_tile_cost[1].fixed &&
               int64_t(step.num_requests) * a.request_lists < kMaxOneTile;
}

PlanHeader header_of(const SchedulerConfig& config, const PlanLayout& layout) {
  PlanHeader h{};
  h.magic = kPlanMagic;
  h.version = kPlanVersion;
  h.status = PlanStatus::ok;
  h.policy = Policy::stream;
  h.num_ctas = config.num_ctas;
  h.num_levels = 1;
  for (int c = 0; c < 2; ++c) h.classes[c] = config.classes[c];
  place_sections(layout, config.num_ctas, h);
  return h;
}

}  // namespace

std::string device_refusal(const AttentionSpec& spec, const SchedulerConfig& config) {
  if (config.policy != Policy::stream) {
    return kvloom::format("options.policy: got {}, wanted stream; it is the one policy that a device plans by", name_of(config.policy));
  }
  if (config.num_ctas > kMaxPlannedCtas) {
    return kvloom::format("num_ctas: got {}, wanted at most {}; set options.num_ctas", config.num_ctas, kMaxPlannedCtas);
  }
  if (spec.variant.custom_mask) return "variant.custom_mask: got a mask, wanted none; plan on the host, which knows its columns";
  return "";
}

bool may_use_compute(const AttentionSpec& spec, const SchedulerConfig& config, const DeclaredStep& step) {
  return class_of_tokens(step.max_q_len, spec.group_size(), config.compute_rows_above) == 1;
}

DeviceArgs device_args(const AttentionSpec& spec, const Capacity& capacity, const SchedulerConfig& config, const PlanLayout& layout,
                       const DeclaredStep& step) {
  check_step(capacity, step);
  DeviceArgs a;
  a.num_requests = step.num_requests;
  a.per_head = step.lists_per_kv_head;
  a.request_lists = step.lists_per_kv_head ? spec.num_kv_heads : 1;
  a.max_q_len = step.max_q_len;
  a.num_tokens = int32_t(step.num_tokens);
  a.max_kv_tokens = capacity.max_kv_tokens;
  a.group_size = spec.group_size();
  a.num_kv_heads = spec.num_kv_heads;
  a.page_size = spec.storage == Storage::ragged ? 1 : spec.page_size;
  a.compute_rows_above = config.compute_rows_above;
  a.range = spec.variant.range;
  a.snap[0] = config.snap_memory;
  a.snap[1] = config.snap_compute;
  a.keep_whole_margin = config.keep_whole_margin;
  a.saturating_ctas = config.saturating_ctas;
  for (int c = 0; c < 2; ++c) {
    a.shape[c] = TileShape::of(a.group_size, config.classes[c].tile_rows);
    a.runs[c] = step.lists_per_kv_head ? HeadRuns{1, 1, 1} : head_runs(config.classes[c], spec.num_kv_heads);
  }
  a.unit_runs = FastDivide(uint32_t(a.runs[0].runs));
  a.header = header_of(config, layout);
  for (int uses = 0; uses < 4; ++uses) a.graph_keys[uses] = graph_key(spec, a.header, uses & 1, uses & 2);
  a.shares = FastDivide(uint32_t(config.num_ctas));
  a.max_tiles = int32_t(max_tiles(a, longest(spec, config, step), step) * a.request_lists);
  tell_one_tile(config, may_use_compute(spec, config, step), step, a);
  return a;
}

void check_verdict(const PlanVerdict& v) {
  const auto over = [&](const char* what, const char* limit_name) {
    fail(ErrorCode::over_capacity, "plan: {}: got {}, wanted at most {} = {}; make the engine for a larger Capacity", what, v.got, limit_name, v.wanted);
  };
  const auto refuse = [&](const char* array, const std::string& wanted) {
    const std::string head = v.kv_head >= 0 ? kvloom::format(", KV head {}", v.kv_head) : "";
    fail(ErrorCode::invalid_argument, "plan: {}: request {}{}: got {}, wanted {}", array, v.request, head, v.got, wanted);
  };
  switch (v.fault) {
    case PlanFault::none: return;
    case PlanFault::first_token: return refuse("qo_indptr", "0; pass Q from its first row");
    case PlanFault::token_order: return refuse("qo_indptr", kvloom::format("no decrease after {}", v.wanted));
    case PlanFault::query_tokens: return over("query tokens", "DeviceBatch.num_tokens");
    case PlanFault::query_length:
      fail(ErrorCode::over_capacity, "plan: qo_indptr: request {}: got {} query tokens, wanted at most DeviceBatch.max_q_len = {}", v.request, v.got,
           v.wanted);
    case PlanFault::kv_length: return refuse("kv_len", kvloom::format("0 to {}", v.wanted));
    case PlanFault::list_begin: return refuse("list_indptr", "0 or more");
    case PlanFault::list_order: return refuse("list_indptr", kvloom::format("no decrease after {}", v.wanted));
    case PlanFault::list_length: return refuse("kv_len, in entries of its list", kvloom::format("at most {}, which the list has", v.wanted));
    case PlanFault::list_end: return refuse("end of the list", kvloom::format("at most {}, the entries that there are", v.wanted));
    case PlanFault::position: return refuse("q_pos0", kvloom::format("-{0} to {0}", v.wanted));
    case PlanFault::prefix: return refuse("prefix", "0 or more");
    case PlanFault::kv_tokens: return over("KV tokens", "Capacity.max_kv_tokens");
    case PlanFault::cost: return over("cost of the step", "the largest that can be planned");
  }
}

}  // namespace kvloom::plan
