// What an Engine owns.
#pragma once

#include "kvloom/api/engine_setup.h"
#include "kvloom/api/plan_state.h"
#include "kvloom/api/repeated_keys.h"
#include "kvloom/api/run_check.h"

#include <memory>

namespace kvloom::api {

struct EngineState {
  Setup setup;
  Capacity capacity;
  plan::Planner planner;
  std::unique_ptr<plan::Planner> own_planner[3];  // setup.own.memory, compute, memory_32
  plan::PlanLayout plan_layout;
  runtime::ScratchLayout layout;
  std::unique_ptr<char, AlignedFree> own_workspace;  // CPU
  runtime::DeviceMemory own_device_workspace;        // GPU
  Scratch scratch;
  std::shared_ptr<ThreadPool> threads;          // CPU
  std::unique_ptr<runtime::CudaRunner> runner;  // GPU
  std::shared_ptr<PlanPool> plans = std::make_shared<PlanPool>();
  RepeatedKeys repeated_keys;
  bool check_pages = true;
  bool timeline = false;
  std::unique_ptr<PointerCheck> pointers, host_pointers;  // GPU, where they are to be checked
  uint64_t id = 0;                                        // no two engines of a process have the same

  EngineState(Setup s, const Capacity& c)
      : setup(std::move(s)),
        capacity(c),
        planner(setup.spec, c, setup.config),
        plan_layout(plan_layout_of(setup, c)),
        layout(scratch_layout_of(setup, plan_layout)) {
    if (setup.own.memory) own_planner[0] = std::make_unique<plan::Planner>(setup.spec, c, *setup.own.memory);
    if (setup.own.compute) own_planner[1] = std::make_unique<plan::Planner>(setup.spec, c, *setup.own.compute);
    if (setup.own.memory_32) own_planner[2] = std::make_unique<plan::Planner>(setup.spec, c, *setup.own.memory_32);
  }
  ~EngineState() { plans->close(); }

  const runtime::Candidate& kernel() const { return setup.choice.winner(); }
  void take_workspace(const Workspace& workspace);
  char* own_memory();
  std::unique_ptr<PlanState> take_plan();
  plan::Planner& plan_block(PlanState& state, const Batch& batch, char*& block);
  void plan_into(PlanState& state, const Batch& batch);
  void plan_on_device(PlanState& state, const DeviceBatch& batch, jit::CuStream stream);
  /// Of the device's planner, for any step within the capacity: the memory of a handle stays where it is.
  int64_t device_table_bytes() const;
  /// Number `i` of PlanState::add_blocks; nullptr: the engine has none.
  plan::Planner* planner_number(int i) { return i == 0 ? &planner : own_planner[i - 1].get(); }
  void check_owner(const PlanState& plan, const char* where) const;
  /// Refuses what wants a device on an engine that was made for an architecture alone.
  void check_device(const char* where) const;
  /// RunTensors::timeline, checked; nullptr: nobody asked.
  CtaTimes* checked_timeline(const PlanState& plan, void* memory);
};

}  // namespace kvloom::api
