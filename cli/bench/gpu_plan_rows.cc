#include "cli/bench/gpu_plan_rows.h"

#include "cli/bench/timing.h"
#include "kvloom/api/engine.h"
#include "kvloom/base/math.h"

#include <algorithm>
#include <numeric>

namespace kvloom::cli {
namespace {

constexpr int kHostRuns = 40;
constexpr int kPlansInGraph = 20;

GpuBuffer put(const std::vector<int32_t>& x, int32_t device) {
  GpuBuffer b(device, int64_t(x.size() * sizeof(int32_t)));
  b.upload(x.data(), b.size());
  return b;
}
IndexView view_of(const GpuBuffer& b) { return IndexView(b.as<int32_t>(), b.size() / int64_t(sizeof(int32_t))); }

}  // namespace

void measure_plan_alone(const GpuShape& s, int32_t device, const std::string& kernel, GpuTimer& timer, GpuBenchRow& row) {
  const int32_t requests = int32_t(s.q_len.size());
  std::vector<int32_t> qo{0}, list{0}, pages;
  for (size_t r = 0; r < s.q_len.size(); ++r) {
    qo.push_back(qo.back() + s.q_len[r]);
    list.push_back(list.back() + ceil_div(s.kv_len[r], s.spec.page_size));
  }
  pages.resize(size_t(list.back()));
  EngineOptions options;
  options.backend = Backend::cuda;
  options.device = device;
  options.policy = Policy::stream;
  options.check_pages = false;
  options.levels = LevelMode::off;
  if (!kernel.empty()) options.kernel = kernel.c_str();
  Engine engine(s.spec, {requests, qo.back(), std::accumulate(s.kv_len.begin(), s.kv_len.end(), int64_t(0)), 0, 0}, options);
  Batch here;
  here.num_requests = requests;
  here.qo_indptr = IndexView(qo.data(), int64_t(qo.size()));
  here.kv_len = IndexView(s.kv_len.data(), requests);
  here.list_indptr = IndexView(list.data(), int64_t(list.size()));
  here.pages = IndexView(pages.data(), int64_t(pages.size()));
  Plan on_host = engine.plan(here);
  std::vector<double> plans;
  for (int i = 0; i < kHostRuns; ++i) {
    const double start = now_us();
    engine.replan(on_host, here);
    plans.push_back(now_us() - start);
  }
  row.plan_us = percentile(plans, 0.5);

  const GpuBuffer qo_there = put(qo, device), kv_there = put(s.kv_len, device), list_there = put(list, device), pages_there = put(pages, device);
  DeviceBatch there;
  there.num_requests = requests;
  there.num_tokens = qo.back();
  there.max_q_len = *std::max_element(s.q_len.begin(), s.q_len.end());
  there.qo_indptr = view_of(qo_there);
  there.kv_len = view_of(kv_there);
  there.list_indptr = view_of(list_there);
  there.pages = view_of(pages_there);
  GpuStream& stream = timer.stream();
  Plan plan = engine.plan_on_device(there, stream.handle());
  engine.check(plan, stream.handle());
  row.key = engine.kernel_key();
  row.policy = name_of(plan.view().header->policy);
  row.plan_bytes = 0;  // go to the device
  row.more = s.more;
  row.plan_alone = true;
  row.runs = kPlansInGraph;
  const auto alone = [&] { engine.replan_on_device(plan, there, stream.handle()); };
  row.alone_us = timer.burst({alone}, false).us;
  stream.begin_capture();
  for (int i = 0; i < kPlansInGraph; ++i) engine.replan_on_device(plan, there, stream.handle());
  stream.end_capture();
  row.burst.times = timer.burst({[&] { stream.launch(); }, kPlansInGraph}, false);
}

}  // namespace kvloom::cli
