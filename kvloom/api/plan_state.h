// What a Plan owns, and the free list through which plans give their memory back to the engine that made them.
#pragma once

#include "kvloom/api/engine.h"
#include "kvloom/api/page_use.h"
#include "kvloom/plan/device_args.h"
#include "kvloom/runtime/launch_cuda.h"

#include <memory>
#include <mutex>
#include <vector>

namespace kvloom::api {

class PlanPool;

struct AlignedFree {
  void operator()(void* p) const;
};
/// Memory on a 64-byte boundary, not initialised. Throws out_of_memory; `what` is named in the message.
std::unique_ptr<char, AlignedFree> aligned_bytes(int64_t bytes, const char* what);

/// What run() has to know about a step, apart from the plan buffer.
struct PlannedStep {
  int32_t num_requests = 0;
  int64_t total_tokens = 0;
  IndexView pages;  // the batch's: read by run() where its own `pages` is not given
  KvPosition kv_position = KvPosition::linear;
  PageUse use;
  bool ids_read = false;              // `use` holds the extremes of the page ids
  std::vector<int32_t> q_len;         // [num_requests]; custom mask only
  std::vector<int32_t> mask_columns;  // [num_requests]; custom mask only
  std::string notes;                  // levels found and not taken
  const char* entry = nullptr;        // GPU: the kernel of the unit that runs it, by its name in AttendModule

  // Of a step that the device plans.
  int planner = -1;               // number of the planner whose bytes it writes; -1: the host planned
  plan::DeviceArgs args = {};     // of the last launch
  uint64_t declared_key = 0;      // what a captured graph must match
  bool fetched = false;           // its plan has been copied to the host
};

/// A plan handle's memory and the step in it. Each planner of the engine has blocks of its own, since it lays its plans out in its own way;
/// on a GPU two that take turns: a batch that is refused leaves the step before.
struct PlanState : PlannedStep {
  std::shared_ptr<PlanPool> pool;  // where this state returns to; empty while it rests there

  // Of the engine: set once, when the state is made.
  uint64_t engine_id = 0;
  AttentionSpec spec;
  std::string kernel_key;
  std::unique_ptr<runtime::CudaPlan> cuda;  // GPU; set before add_blocks

  /// Memory for the plans of planner number `planner` (0 to 3), `bytes` each.
  void add_blocks(int planner, int64_t bytes);
  /// Throws invalid_argument where it is on the device alone.
  PlanView view() const;
  /// Where the next step goes, if that planner makes it.
  char* open_block(int planner);
  /// Nothing has been written there.
  void leave_block();
  /// The step has been written there. Makes everything but the counted elements zero: equal steps have equal bytes whatever came before.
  void close_block();
  /// The block of the last close_block() holds the step from now on, and next_step is what there is to know about it. `entry`: of the
  /// kernel that runs it; nullptr without a device.
  void take_block(const runtime::AttendModule::Entry* entry);
  /// The same of a step that the device plans, or has planned (its bytes are in the open block then).
  void take_device_step();
  void take_fetched();
  PlannedStep next_step;  // being described; apart, so that a batch that is refused leaves the plan as it was, and its memory is kept

 private:
  struct Block {
    std::unique_ptr<char, AlignedFree> data;
    int64_t bytes = 0;
    PlanHeader held = {};  // how many elements of each section may be other than zero
    bool open = false;     // anything may be: a plan failed half way
  };
  Block blocks_[4][2];  // by planner; CPU: the first of each alone
  const Block* now_ = nullptr;
  Block* next_ = nullptr;
};

/// The free list. Shared by an engine and its plans, so that either may go first.
class PlanPool {
 public:
  /// A resting state, or nullptr.
  std::unique_ptr<PlanState> take();
  /// Keeps `state` for the next take(); drops it once close() was called.
  void put(std::unique_ptr<PlanState> state);
  void close();

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<PlanState>> resting_;
  bool closed_ = false;
};

}  // namespace kvloom::api
