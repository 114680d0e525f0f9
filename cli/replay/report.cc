#include "cli/replay/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace kvloom::replay {
namespace {

using Json = nlohmann::ordered_json;

Json spread(const Distribution& d) { return {{"median", d.median()}, {"p99", d.p99()}}; }

/// JSON knows no infinity: an error that is none (a NaN was found) becomes a string.
Json number(double x) { return std::isfinite(x) ? Json(x) : Json("not finite"); }

Json step_kind(const StepTotals& t) {
  return {
      {"steps", t.steps}, {"tokens", t.tokens}, {"run_us", spread(t.layer_us)}, {"read_GBps", t.gbps()}, {"flops_per_s", t.gflops() * 1e9}};
}

Json rejected_rows(const Report& r) {
  Json list = Json::array();
  for (const Rejected& x : r.rejected) list.push_back({{"line", x.line}, {"tokens", x.tokens}, {"pages", x.pages}});
  return list;
}

Json timed_steps(const Report& r) {
  Json list = Json::object();
  for (int kind = 0; kind < 3; ++kind) {
    if (!r.timed[kind]) continue;
    const TimedStep& t = *r.timed[kind];
    Json& j = list[kStepKindNames[kind]] = {{"step", t.step}};
    j.update(cli::to_json(t.timeline, cli::summarise(t.timeline)));
  }
  return list;
}

void add_setting(const Report& r, Json& j) {
  j["backend"] = r.on_gpu() ? "cuda" : "cpu";
  j["model"] = r.model.name;
  j["heads"] = r.model.qo_heads;
  j["kv_heads"] = r.model.kv_heads;
  j["head_dim"] = r.model.head_dim_qk;
  j["q_dtype"] = name_of(r.types.q);
  j["kv_dtype"] = name_of(r.types.kv);
  j["layers"] = r.layers;
  j["model_layers"] = r.model.layers;
  j["kernel"] = r.kernel_keys;
  j["trace"] = r.trace;
  j["trace_format"] = r.trace_format;
  j["samples"] = r.samples;
  j["rate_scale"] = r.rate_scale;
  j["policy"] = r.policy;
  j["levels"] = r.levels;
  j["num_ctas"] = r.num_ctas;
  j["threads"] = r.threads;
  j["page_size"] = r.page_size;
  j["kv_pool_tokens"] = r.pool_tokens;
  j["kv_pools"] = r.pools;
  j["kv_token_bytes"] = r.token_bytes;
  j["fixed_step_us"] = r.fixed_step_us;
}

void add_scheduling(const Report& r, Json& j) {
  j["finished"] = r.counts.finished;
  j["rejected"] = r.rejected.size();
  j["rejected_rows"] = rejected_rows(r);
  j["preempted"] = r.counts.preempted;
  j["recomputed_tokens"] = r.counts.recomputed;
  j["skipped_rows"] = r.skipped_rows;
  j["evicted_pages"] = r.counts.evicted_pages;
  j["copied_pages"] = r.counts.copied_pages;
  j["most_sequences"] = r.most_sequences;
  j["most_used_pages"] = r.most_used_pages;
  j["simulated_seconds"] = r.simulated_seconds;
  j["wall_seconds"] = r.wall_seconds;
  j["stopped"] = r.stopped.empty() ? Json(nullptr) : Json(r.stopped);
}

}  // namespace

double Distribution::quantile(double share) const {
  if (samples_.empty()) return 0.0;
  std::vector<double> sorted = samples_;
  const size_t rank = size_t(std::ceil(share * double(sorted.size())));
  const auto nth = sorted.begin() + int64_t(std::clamp<size_t>(rank, 1, sorted.size()) - 1);
  std::nth_element(sorted.begin(), nth, sorted.end());
  return *nth;
}

std::vector<cli::Timeline> Report::timelines() const {
  std::vector<cli::Timeline> list;
  for (const auto& step : timed) {
    if (step) list.push_back(step->timeline);
  }
  return list;
}

std::string Report::fault() const {
  if (nonfinite_outputs > 0)
    return fmt::format("{} output elements are not finite: rows never written, or unwritten keys read", nonfinite_outputs);
  const auto above = [](const char* what, double got, double wanted) {
    return fmt::format("{}: got {:.3g}, wanted at most {:.3g}", what, got, wanted);
  };
  if (effective_elements >= tolerance.whole_from && !(rel_error <= tolerance.whole)) return above("rel_error", rel_error, tolerance.whole);
  if (!(max_rel_error <= tolerance.row)) return above("max_rel_error", max_rel_error, tolerance.row);
  if (!(max_excess_error <= tolerance.excess)) return above("error beyond the output's rounding", max_excess_error, tolerance.excess);
  if (!(max_lse_error <= tolerance.lse)) return above("lse error", max_lse_error, tolerance.lse);
  return "";
}

Json to_json(const Report& r) {
  Json j;
  j["requests"] = r.requests;
  j["steps"] = r.steps;
  j["tokens"] = r.counts.tokens;
  j["tokens_per_s"] = r.tokens_per_s();
  j["rows_checked"] = r.rows_checked;
  j["max_rel_error"] = number(r.max_rel_error);
  j["rel_error"] = number(r.rel_error);
  j["plan_us"] = spread(r.plan_us);
  j["run_us"] = spread(r.run_us);
  j["read_GBps"] = r.all.gbps();
  j["balance"] = r.balance.count() > 0 ? Json(r.balance.p99()) : Json(nullptr);
  j["prefix_hit_rate"] = r.prefix_hit_rate();
  j["peak_rss_bytes"] = r.peak_rss_bytes;
  j["peak_device_bytes"] = r.on_gpu() ? Json(r.peak_device_bytes) : Json(nullptr);

  add_scheduling(r, j);
  j["flops_per_s"] = r.all.gflops() * 1e9;
  j["decode_steps"] = step_kind(r.kinds[0]);
  j["mixed_steps"] = step_kind(r.kinds[1]);
  j["prefill_steps"] = step_kind(r.kinds[2]);
  j["plans_ahead"] = r.plans_ahead;
  j["hidden_plan_us"] = r.hidden_plan_us;
  j["plan_policies"] = r.policies;
  j["steps_with_levels"] = r.steps_with_levels;
  j["bytes_saved_by_levels"] = r.saved_bytes;
  j["balance_steps"] = r.balance.count();
  j["max_excess_tiles"] = r.max_excess_tiles;
  j["steps_over_one_tile"] = r.steps_over_one_tile;
  j["split_steps"] = r.split_steps;
  j["max_excess_error"] = number(r.max_excess_error);
  j["max_lse_error"] = number(r.max_lse_error);
  j["nonfinite_outputs"] = r.nonfinite_outputs;
  j["within_tolerance"] = r.fault().empty();
  j["ceiling_read_GBps"] = r.ceilings.read_gbps;
  j["ceiling_flops_per_s"] = r.ceilings.fma_gflops * 1e9;
  if (r.takes_times) j["timeline"] = timed_steps(r);
  add_setting(r, j);
  j["scope"] = "attention only";
  j["machine"] = cli::to_json(r.machine);
  j["gpu"] = r.on_gpu() ? cli::to_json(r.gpu) : Json(nullptr);
  return j;
}

}  // namespace kvloom::replay
