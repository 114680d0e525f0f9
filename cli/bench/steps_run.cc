#include "cli/bench/steps_run.h"

#include "cli/bench/gpu_steps.h"
#include "cli/bench/peers.h"
#include "cli/replay/models.h"
#include "cli/report/json_output.h"
#include "cli/report/machine.h"
#include "kvloom/support/check.h"

#include <fmt/core.h>

#include <cstdio>

namespace kvloom::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr GpuProtocol kProtocol{0.0, 2, 7, 0.0, 0.0};  // short: there are many steps, and all are timed as memory-bound ones are

std::vector<TraceStep> chosen(const StepsOptions& o) {
  const replay::Model model = replay::find_model(o.model);
  require(model.kinds() == 1 && !model.v_in_k, "bench: --model: got {}, whose layers differ or whose V lies within K, wanted one of equal layers; name another",
          model.name);
  std::vector<TraceStep> steps = read_steps(o.file, replay::layer_spec(model, 0, {}, 16));
  std::erase_if(steps, [&](const TraceStep& t) { return t.shape.name.find(o.filter) == std::string::npos; });
  require(!steps.empty(), "bench: --filter: got '{}', wanted part of a step's name: step-NUMBER-decode, -mixed, -prefill", o.filter);
  return steps;
}

void print_step(const TraceStep& step, const StepRow& row, const std::vector<std::string>& schedules) {
  fmt::print("{:<26} {:>4} requests, weight {:>7.1f}:", step.shape.name, step.shape.q_len.size(), step.weight);
  for (const std::string& name : schedules) {
    const StepTime& t = row.at(name);
    if (!t.why.empty()) fmt::print("  {} -", name);
    if (t.why.empty()) fmt::print("  {} {:.1f} us", name, t.us > 0 ? t.us : t.planned_us);
  }
  fmt::print("\n");
  std::fflush(stdout);
}

void print_sums(const Json& sums, const char* unit) {
  for (const auto& [kind, s] : sums.items()) {
    fmt::print("{:<8} {:>4} steps, weight {:.0f}:", kind, s["steps"].get<int>(), s["weight"].get<double>());
    for (const auto& [name, one] : s["schedules"].items()) {
      if (one.contains(unit)) fmt::print("  {} {:.0f} us", name, one[unit].get<double>());
      if (one.contains("over_first")) fmt::print(" ({:.3f})", one["over_first"].get<double>());
    }
    fmt::print("\n");
    if (s.contains("peers")) {
      const Json& p = s["peers"];
      fmt::print("         beside peers, {} steps: {:.3f} times as fast; plans included {:.3f}\n", p["steps"].get<int>(), p["times"].get<double>(), p["times_with_plans"].get<double>());
    }
  }
}

}  // namespace

int run_steps(const StepsOptions& o) {
  const bool table = o.json != "-";
  const std::vector<TraceStep> steps = chosen(o);
  Json out{{"machine", to_json(this_machine())}, {"steps", o.file}, {"model", o.model}};
  std::optional<GpuTimer> timer;
  std::optional<GpuNormals> normals;
  std::vector<Json> theirs;
  if (o.list) {
    out["arch"] = o.arch;
  } else {
    const GpuInfo gpu = gpu_at(o.device, "bench");
    out["gpu"] = to_json(gpu);
    out["protocol"] = to_json(kProtocol)["burst"];
    timer.emplace(o.device, kProtocol);
    normals.emplace(o.device);
    out["read_tbps"] = measure_gpu_read_tbps(o.device, *timer);
    if (!o.peers.empty()) {
      const PeerResults peers(o.peers, gpu.name);
      out["peers"] = peers.facts();
      for (const TraceStep& t : steps) theirs.push_back(peers.of(t.shape));
    }
  }
  StepSchedules schedules(steps, o.schedules, o.device, o.kernel, o.list ? o.arch : "");
  std::vector<StepRow> rows;
  Json list = Json::array();
  bool whole = true;
  for (size_t i = 0; i < steps.size(); ++i) {
    rows.push_back(o.list ? schedules.plan(steps[i]) : schedules.measure(steps[i], *timer, *normals));
    for (const auto& [name, t] : rows.back()) {
      if (!t.why.empty() && i == 0) fmt::print(stderr, "kvloom: bench: {}: {}: {}\n", steps[i].shape.name, name, t.why);
      whole = whole && t.why.empty();
    }
    if (table) print_step(steps[i], rows.back(), o.schedules);
    list.push_back(o.list ? to_json(steps[i]) : to_json(steps[i], rows.back(), i < theirs.size() ? theirs[i] : Json::array()));
    if (o.list) list.back()["schedules"] = to_json(steps[i], rows.back(), Json::array())["schedules"];
    const bool last = i + 1 == steps.size();
    if (o.json.empty() || (!table && !last) || (!last && i % 8 != 7)) continue;
    out["sums"] = step_sums(steps, rows, o.schedules, theirs);
    out["rows"] = list;
    write_json(o.json, out);  // what there is, should the run be cut short
  }
  if (table) print_sums(step_sums(steps, rows, o.schedules, theirs), o.list ? "planned_us" : "us");
  return whole ? 0 : 1;
}

}  // namespace kvloom::cli
