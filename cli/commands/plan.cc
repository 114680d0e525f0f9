// kvloom plan: the schedule of one step, by the planner alone: nothing runs. Lengths in, work items and CTA loads out.
#include "cli/command.h"
#include "cli/policy_name.h"
#include "cli/report/json_output.h"
#include "cli/report/text_output.h"
#include "kvloom/plan/describe.h"
#include "kvloom/plan/paper.h"
#include "kvloom/plan/planner.h"
#include "kvloom/support/check.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <numeric>

namespace kvloom::cli {
namespace {

struct Arguments {
  std::vector<int64_t> kv_len, q_len{1};
  int32_t ctas = 4;
  int32_t heads = 1, kv_heads = 1, head_dim = 128;
  int32_t tile_kv = 1, tile_rows = 0, heads_per_item = 1, split_tokens = 256;
  int32_t window = -1;
  bool causal = false;
  std::string cost = "kv", policy = "auto", json, svg;
};

AttentionSpec spec_of(const Arguments& a) {
  AttentionSpec s;
  s.num_qo_heads = a.heads;
  s.num_kv_heads = a.kv_heads;
  s.head_dim_qk = s.head_dim_vo = a.head_dim;
  s.storage = Storage::ragged;
  s.page_size = 1;
  s.variant.range.causal = a.causal;
  s.variant.range.left = a.window;
  return s;
}

/// kv: a key costs 1. paper: 2 x rows + keys, tile by paper_tile_q. model: nanoseconds of one CTA of an H200 (bf16, head_dim 128): 15 a key
/// where memory binds, 12 where a 128-row tile computes, 300 an item.
SchedulerConfig config_of(const Arguments& a, int64_t query_tokens, int64_t requests) {
  SchedulerConfig c;
  c.num_ctas = a.ctas;
  c.policy = parse_policy(a.policy);
  c.levels = LevelMode::off;
  c.split_tokens = a.split_tokens;
  if (a.cost == "paper") {
    const int64_t rows = query_tokens * (a.heads / std::max(1, a.kv_heads));
    c.classes[0] = c.classes[1] = plan::paper_class(plan::paper_tile_q(rows, requests), a.tile_kv);
  } else {
    const bool model = a.cost == "model";
    c.classes[0].cost_per_token = model ? 15 : 1;
    c.classes[1].cost_per_token = model ? 12 : 1;
    c.classes[0].cost_per_item = c.classes[1].cost_per_item = model ? 300 : 0;
    c.classes[1].tile_rows = 128;
  }
  if (a.cost != "model") {  // costs are keys, not nanoseconds: cut exactly at the share, and prefer nothing to it
    c.cost_partial = c.cost_partial_row = c.cost_merge = 0;
    c.snap_memory = c.snap_compute = c.keep_whole_margin = 0;
  }
  for (KernelClass& k : c.classes) {
    k.tile_kv = a.tile_kv;
    k.heads_per_item = a.heads_per_item;
    if (a.tile_rows > 0) k.tile_rows = a.tile_rows;
  }
  return c;
}

/// The step's arrays and the batch that points at them: ragged storage, request after request.
struct Step {
  std::vector<int64_t> qo_indptr{0}, kv_indptr{0};
  Batch batch;
  Capacity capacity;
};

void describe_step(const Arguments& a, Step& s) {
  const size_t n = a.kv_len.size();
  require(a.q_len.size() == 1 || a.q_len.size() == n, "plan: --q-len: got {} numbers, wanted 1 or as many as --kv-len has, {}",
          a.q_len.size(), n);
  for (size_t r = 0; r < n; ++r) {
    const int64_t q = a.q_len[a.q_len.size() == 1 ? 0 : r];
    require(q >= 0 && q <= INT32_MAX, "plan: --q-len: request {}: got {}, wanted 0 to {}", r, q, INT32_MAX);
    require(a.kv_len[r] >= 0 && a.kv_len[r] <= INT32_MAX, "plan: --kv-len: request {}: got {}, wanted 0 to {}", r, a.kv_len[r], INT32_MAX);
    require(!a.causal || q <= a.kv_len[r], "plan: --q-len: request {}: got {} new tokens and a --kv-len of {}, which counts them; wanted at least as many (or no --causal)", r, q, a.kv_len[r]);
    s.qo_indptr.push_back(s.qo_indptr.back() + q);
    s.kv_indptr.push_back(s.kv_indptr.back() + a.kv_len[r]);
  }
  s.batch.num_requests = int32_t(n);
  s.batch.qo_indptr = IndexView(s.qo_indptr.data(), int64_t(n) + 1);
  s.batch.kv_len = IndexView(a.kv_len.data(), int64_t(n));
  s.batch.list_indptr = IndexView(s.kv_indptr.data(), int64_t(n) + 1);
  s.capacity.max_requests = int32_t(n);
  s.capacity.max_query_tokens = s.qo_indptr.back();
  s.capacity.max_kv_tokens = std::max<int64_t>(1, s.kv_indptr.back());
}

/// A plan knows those requests alone that it has work for.
void print_text(const Arguments& a, const std::string& text) {
  std::fputs(text.c_str(), stdout);
  const size_t n = a.kv_len.size(), idle = a.q_len.size() == 1 ? (a.q_len[0] == 0 ? n : 0) : size_t(std::count(a.q_len.begin(), a.q_len.end(), 0));
  if (idle > 0) std::printf("  %zu of %zu requests have no new tokens (--q-len 0): they have no items, and are not counted above\n", idle, n);
}

void run(const Arguments& a) {
  if (a.json == "-" && a.svg == "-") throw CLI::ValidationError("--svg", "got - with --json -, wanted one of them in a file");
  require(a.kv_heads > 0 && a.heads > 0, "plan: --heads, --kv-heads: got {} and {}, wanted at least 1", a.heads, a.kv_heads);
  Step step;
  describe_step(a, step);
  const AttentionSpec spec = spec_of(a);
  plan::Planner planner(spec, step.capacity, config_of(a, step.qo_indptr.back(), int64_t(a.kv_len.size())));
  const int64_t bytes = planner.layout().plan_bytes;
  const std::unique_ptr<void, decltype(&std::free)> buffer(std::aligned_alloc(64, size_t(bytes)), &std::free);
  if (!buffer) fail(ErrorCode::out_of_memory, "plan: got no memory for {} bytes of plan; plan fewer requests", bytes);
  planner.plan(step.batch, buffer.get(), bytes);

  const PlanView view = view_plan(buffer.get());
  if (!a.svg.empty()) write_text("--svg", a.svg, plan::describe_svg(view, spec));
  if (a.json != "-" && a.svg != "-") print_text(a, plan::describe_text(view, spec));
  if (a.json.empty()) return;
  auto json = nlohmann::ordered_json::parse(plan::describe_json(view, spec));
  json["units"] = view.header->num_units;
  json["cost"] = a.cost;
  write_json(a.json, json);
}

void add(CLI::App& c, int&) {
  const auto a = std::make_shared<Arguments>();
  const auto positive = CLI::Range(1, INT32_MAX);
  add_numbers(c, "--kv-len", a->kv_len, "KV length of every request, new tokens included: 1000,100,100,50")->required();
  add_numbers(c, "--q-len", a->q_len, "New tokens of every request, or one number for all")->default_str("1");
  c.add_option("--ctas", a->ctas, "CTAs (thread blocks, or virtual ones of a CPU)")->check(positive)->capture_default_str();
  c.add_option("--policy", a->policy, policy_names())->capture_default_str();
  c.add_option("--cost", a->cost, "kv: a key costs 1; paper: 2 x rows + keys; model: nanoseconds of a CTA of an H200")
      ->check(one_of({"kv", "paper", "model"}))
      ->capture_default_str();
  c.add_option("--heads", a->heads, "Query heads")->check(positive)->capture_default_str();
  c.add_option("--kv-heads", a->kv_heads, "KV heads")->check(positive)->capture_default_str();
  c.add_option("--head-dim", a->head_dim, "Head dimension")->check(positive)->capture_default_str();
  c.add_option("--tile-kv", a->tile_kv, "Keys of a tile: cuts fall on its multiples")->check(positive)->capture_default_str();
  c.add_option("--tile-rows", a->tile_rows, "Packed rows of a tile; default 16 for short queries and 128 for the rest (paper: by the mean)")
      ->check(positive);
  c.add_option("--heads-per-item", a->heads_per_item, "Neighbouring KV heads an item takes")->check(positive)->capture_default_str();
  c.add_option("--split-tokens", a->split_tokens, "Chunk of fixed_split")->check(positive)->capture_default_str();
  c.add_flag("--causal", a->causal, "A row sees no keys behind it");
  c.add_option("--window", a->window, "A row sees so many keys before its own; -1: all")
      ->check(CLI::Range(-1, INT32_MAX))
      ->capture_default_str();
  c.add_option("--json", a->json, "Write the plan to FILE (- is stdout)")->type_name("FILE");
  c.add_option("--svg", a->svg, "Draw the plan, a lane a CTA (- is stdout)")->type_name("FILE");
  c.callback([a] { run(*a); });
}

const RegisterCommand registered({"plan", "Schedule one step and show who does what; nothing runs", add});

}  // namespace
}  // namespace kvloom::cli
