#include "cli/replay/step_machine.h"

#include "cli/replay/cpu_machine.h"
#include "cli/replay/gpu_machine.h"
#include "cli/replay/random.h"

namespace kvloom::replay {
namespace {

Capacity capacity_of(const MachineOptions& o) {
  Capacity c;
  c.max_requests = o.max_batch;
  c.max_query_tokens = o.token_budget;
  if (o.engine.policy == Policy::fixed_split) c.max_kv_tokens = o.longest * o.max_batch;
  // Every decode named by two shared levels and its own part, and one prefill chunk on a shared prefix.
  if (o.engine.levels == LevelMode::automatic) c.max_level_rows = o.token_budget + 2 * int64_t(o.max_batch);
  return c;
}

}  // namespace

StepMachine::StepMachine(const Model& model, const MachineOptions& options) : model_(model), options_(options) {
  for (int32_t kind = 0; kind < std::min(model.kinds(), options.layers); ++kind) {
    engines_.emplace_back(layer_spec(model, kind, options.types, options.page_size), capacity_of(options), options.engine);
  }
  Random random(mix(options.seed, 0x736e6b));
  for (int32_t h = 0; model.sinks && h < model.qo_heads; ++h) sinks_.push_back(float(random.below(4096)) / 1024.0f - 2.0f);
}

std::unique_ptr<StepMachine> make_machine(const Model& model, const MachineOptions& options) {
  if (options.engine.backend == Backend::cuda) return std::make_unique<GpuMachine>(model, options);
  return std::make_unique<CpuMachine>(model, options);
}

}  // namespace kvloom::replay
