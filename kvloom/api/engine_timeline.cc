// When items began and ended: the memory for it, and what run() refuses.
#include "kvloom/api/engine_state.h"
#include "kvloom/support/check.h"

#include <string_view>

namespace kvloom {
namespace {

/// CTAs that do an item of the plan together.
int32_t cluster_of(const api::EngineState& s, const api::PlanState& plan) {
  if (s.setup.module == nullptr) return 1;
  for (int i = 0; i < runtime::AttendModule::kEntries; ++i) {
    if (runtime::AttendModule::kNames[i] == std::string_view(plan.entry)) return s.setup.module->entries[i].cluster;
  }
  return 1;
}

}  // namespace

TimelineLayout Engine::timeline_layout(const Plan& plan) const {
  const api::EngineState& s = state();
  const api::PlanState& p = plan.state();
  s.check_owner(p, "timeline_layout");
  const PlanHeader& header = *p.view().header;
  const int32_t cluster = cluster_of(s, p);
  return {header.num_ctas * cluster, cluster, header.num_items};
}

CtaTimes* api::EngineState::checked_timeline(const PlanState& plan, void* memory) {
  if (memory == nullptr) return nullptr;
  require(timeline, "run: timeline: got memory, wanted a null pointer; this engine's runs take no times: make one with options.timeline = true");
  require(reinterpret_cast<uintptr_t>(memory) % alignof(CtaTimes) == 0, "run: timeline: got an address that is not a multiple of {} bytes ({}), wanted one that is",
          alignof(CtaTimes), memory);
  plan.view();  // known to the host: else nobody could say how much memory it takes
  if (pointers) pointers->check(memory, "run", "timeline");
  return static_cast<CtaTimes*>(memory);
}

}  // namespace kvloom
