#include "cli/bench/gpu_steps.h"

#include "cli/bench/gpu_problem.h"
#include "cli/bench/gpu_rows.h"
#include "cli/bench/steps_run.h"
#include "cli/bench/timing.h"

#include <algorithm>

namespace kvloom::cli {
namespace {

constexpr int kHostRuns = 10;
constexpr const char* kFlat = "flat";  // auto without shared levels; -flat behind a policy: that one without

EngineOptions options_of(const std::string& schedule, int32_t device, const std::string& kernel, const std::string& arch) {
  EngineOptions o;
  o.backend = Backend::cuda;
  o.device = arch.empty() ? device : -1;
  if (!arch.empty()) o.cuda_arch = arch.c_str();
  if (!kernel.empty()) o.kernel = kernel.c_str();
  if (schedule.ends_with(kFlat)) o.levels = LevelMode::off;
  const std::string policy = schedule.substr(0, schedule.find('-'));
  for (int32_t p = 0; p < kNumPolicies; ++p) {
    if (policy == name_of(Policy(p))) o.policy = Policy(p);
  }
  return o;
}

}  // namespace

std::vector<std::string> schedule_names() {
  std::vector<std::string> names{kFlat};
  for (int32_t p = 0; p < kNumPolicies; ++p) {
    names.push_back(name_of(Policy(p)));
    if (Policy(p) != Policy::automatic && Policy(p) != Policy::fixed_split) names.push_back(names.back() + "-" + kFlat);
  }
  return names;
}

StepSchedules::StepSchedules(const std::vector<TraceStep>& steps, const std::vector<std::string>& schedules, int32_t device, const std::string& kernel,
                             const std::string& arch)
    : device_(device) {
  const Capacity capacity = capacity_of(steps);
  for (const std::string& name : schedules) {
    Schedule& s = schedules_.emplace_back();
    s.name = name;
    try {
      s.engine.emplace(steps.front().shape.spec, capacity, options_of(name, device, kernel, arch));
    } catch (const Error& e) {
      s.why = e.what();
    }
  }
}

void StepSchedules::plan(Schedule& s, const Batch& batch, StepTime& t) {
  std::vector<double> us;
  for (int i = 0; i < kHostRuns; ++i) {
    const double start = now_us();
    if (s.plan) s.engine->replan(*s.plan, batch);
    if (!s.plan) s.plan.emplace(s.engine->plan(batch));
    us.push_back(now_us() - start);
  }
  const PlanHeader& h = *s.plan->view().header;
  t.plan_us = percentile(us, 0.5);
  t.policy = name_of(h.policy);
  t.key = s.plan->kernel_key();
  t.planned_us = 1e-3 * double(h.cost_max);
  t.mean_us = 1e-3 * double(h.cost_total) / h.num_ctas;
}

StepRow StepSchedules::plan(const TraceStep& step) {
  const ShapeTables tables(step.shape);
  StepRow row;
  for (Schedule& s : schedules_) {
    StepTime& t = row[s.name];
    t.why = s.why;
    if (t.why.empty()) plan(s, tables.batch(), t);
  }
  return row;
}

StepRow StepSchedules::measure(const TraceStep& step, GpuTimer& timer, GpuNormals& normals) {
  StepRow row;
  try {
    const GpuProblem problem(step.shape, device_, normals);
    for (Schedule& s : schedules_) {
      StepTime& t = row[s.name];
      t.why = s.why;
      if (!t.why.empty()) continue;
      plan(s, problem.batch(), t);
      GpuStream& stream = timer.stream();
      s.engine->upload(*s.plan, stream.handle());
      const auto run = [&](int i) { s.engine->run(*s.plan, problem.tensors(i), stream.handle()); };
      timer.once_us({[&] { run(0); }});  // settles the plan and the stream
      const int runs = graph_runs(timer.once_us({[&] { run(0); }}), problem.copies());
      stream.begin_capture();
      for (int i = 0; i < runs; ++i) run(i);
      stream.end_capture();
      t.us = timer.burst({[&] { stream.launch(); }, runs}, false).us;
    }
  } catch (const Error& e) {
    for (Schedule& s : schedules_) {
      if (row[s.name].us == 0) row[s.name].why = e.what();
    }
  }
  return row;
}

namespace {

/// The fastest of the peers; 0: none did it.
double fastest(const nlohmann::ordered_json& peers, const char* key) {
  double best = 0;
  for (const auto& p : peers) {
    const double us = p.contains("median_us") ? p["median_us"].get<double>() + (key == nullptr ? 0.0 : p.value(key, 0.0)) : 0.0;
    if (us > 0 && (best == 0 || us < best)) best = us;
  }
  return best;
}

struct Sums {
  double weight = 0, ours = 0, theirs = 0, ours_planned = 0, theirs_planned = 0;
  int steps = 0, beside_peers = 0;
  std::map<std::string, double> us, planned_us, first_us;  // first_us: of the first schedule, over the same steps
};

nlohmann::ordered_json to_json(const Sums& s, const std::vector<std::string>& schedules) {
  nlohmann::ordered_json j{{"steps", s.steps}, {"weight", s.weight}};
  for (const std::string& name : schedules) {
    nlohmann::ordered_json& one = j["schedules"][name];
    const auto us = s.us.find(name), planned = s.planned_us.find(name);
    if (us != s.us.end()) one["us"] = us->second, one["over_first"] = us->second / s.first_us.at(name);
    if (planned != s.planned_us.end()) one["planned_us"] = planned->second;
  }
  if (s.beside_peers > 0) {
    j["peers"] = {{"steps", s.beside_peers},       {"us", s.theirs},           {"ours_us", s.ours}, {"times", s.theirs / s.ours},
                  {"us_with_plans", s.theirs_planned}, {"ours_us_with_plans", s.ours_planned}, {"times_with_plans", s.theirs_planned / s.ours_planned}};
  }
  return j;
}

}  // namespace

nlohmann::ordered_json step_sums(const std::vector<TraceStep>& steps, const std::vector<StepRow>& rows, const std::vector<std::string>& schedules,
                                 const std::vector<nlohmann::ordered_json>& peers) {
  std::map<std::string, Sums> sums;
  for (size_t i = 0; i < rows.size(); ++i) {
    const double w = steps[i].weight;
    const StepTime& first = rows[i].at(schedules.front());
    for (const std::string& kind : {std::string("all"), steps[i].kind}) {
      Sums& s = sums[kind];
      ++s.steps;
      s.weight += w;
      for (const auto& [name, t] : rows[i]) {
        if (!t.why.empty()) continue;
        s.planned_us[name] += w * t.planned_us;
        if (t.us > 0 && first.us > 0) s.us[name] += w * t.us, s.first_us[name] += w * first.us;
      }
      const double theirs = i < peers.size() ? fastest(peers[i], nullptr) : 0.0;
      if (theirs == 0 || first.us == 0) continue;
      ++s.beside_peers;
      s.theirs += w * theirs, s.ours += w * first.us;
      s.theirs_planned += w * fastest(peers[i], "plan_us"), s.ours_planned += w * (first.us + first.plan_us);
    }
  }
  nlohmann::ordered_json j;
  for (const char* kind : {"all", "decode", "mixed", "prefill"}) {
    if (sums.count(kind) > 0) j[kind] = to_json(sums[kind], schedules);
  }
  return j;
}

nlohmann::ordered_json to_json(const TraceStep& step, const StepRow& row, const nlohmann::ordered_json& peers) {
  nlohmann::ordered_json j = to_json(step.shape);
  for (const char* longer_than_a_line : {"q_len", "kv_len", "shared_with", "shared_tokens"}) j.erase(longer_than_a_line);
  j["kind"] = step.kind;
  j["weight"] = step.weight;
  j["requests"] = step.shape.q_len.size();
  for (const auto& [name, t] : row) {
    nlohmann::ordered_json& one = j["schedules"][name];
    if (!t.why.empty()) {
      one = {{"why", t.why}};
      continue;
    }
    one = {{"policy", t.policy}, {"key", t.key}, {"us", known(t.us)}, {"plan_us", t.plan_us}, {"planned_us", t.planned_us}, {"mean_us", t.mean_us}};
  }
  if (!peers.empty()) j["peers"] = peers;
  return j;
}

}  // namespace kvloom::cli
