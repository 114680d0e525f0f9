// What a Plan owns, and the free list through which plans give their memory back to the engine that made them.
#pragma once

#include "kvloom/api/engine.h"
#include "kvloom/api/page_use.h"

#include <mutex>
#include <vector>

namespace kvloom::api {

class PlanPool;

struct AlignedFree {
  void operator()(void* p) const;
};
/// Memory on a 64-byte boundary, not initialised. Throws out_of_memory; `what` is named in the message.
std::unique_ptr<char, AlignedFree> aligned_bytes(int64_t bytes, const char* what);

/// One planned step.
struct PlanState {
  std::unique_ptr<char, AlignedFree> buffer;
  std::shared_ptr<PlanPool> pool;  // where this state returns to; empty while it rests there

  // Of the engine: set once, when the state is made.
  uint64_t engine_id = 0;
  AttentionSpec spec;
  std::string kernel_key;

  // Of the step.
  int32_t num_requests = 0;
  int64_t total_tokens = 0;
  IndexView pages;  // the batch's: read by run() where its own `pages` is not given
  KvPosition kv_position = KvPosition::linear;
  PageUse use;
  bool ids_read = false;              // `use` holds the extremes of the page ids
  std::vector<int32_t> q_len;         // [num_requests]; custom mask only
  std::vector<int32_t> mask_columns;  // [num_requests]; custom mask only
  std::string notes;                  // levels found and not taken

  PlanView view() const { return view_plan(buffer.get()); }
  /// Zeroes what the last step wrote. Between the sections a buffer stays zero, so equal steps have equal bytes whatever came before.
  void erase();
  bool written = false;  // the buffer holds a plan
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
