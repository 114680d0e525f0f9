#include "cli/bench/timeline_runs.h"

#include <algorithm>

namespace kvloom::cli {
namespace {

constexpr int kRuns = 5;

Timeline timeline_of_run(const std::string& name, Engine& engine, const Plan& plan, RunTensors tensors, GpuStream* stream) {
  std::vector<uint64_t> here(size_t(engine.timeline_layout(plan).bytes()) / 8, 0);
  if (stream == nullptr) {
    tensors.timeline = here.data();
    engine.run(plan, tensors);
    return read_timeline(name, engine, plan, here.data());
  }
  GpuBuffer there(engine.device(), int64_t(here.size() * 8));
  there.fill(0);
  tensors.timeline = there.data();
  engine.run(plan, tensors, stream->handle());
  stream->synchronize();
  there.download(here.data(), there.size());
  return read_timeline(name, engine, plan, here.data());
}

}  // namespace

Timeline timeline_of_runs(const std::string& name, Engine& engine, const Plan& plan, const std::function<RunTensors(int)>& tensors, GpuStream* stream) {
  std::vector<Timeline> runs;
  for (int i = 0; i < kRuns; ++i) runs.push_back(timeline_of_run(name, engine, plan, tensors(i), stream));
  std::nth_element(runs.begin(), runs.begin() + kRuns / 2, runs.end(), [](const Timeline& a, const Timeline& b) { return a.kernel_us < b.kernel_us; });
  return std::move(runs[kRuns / 2]);
}

}  // namespace kvloom::cli
