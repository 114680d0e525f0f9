// One step's lengths and lists that stay on the GPU, from Python arrays there to a kvloom_device_batch.
#pragma once

#include "kvloom/api/kvloom_device_plan.h"
#include "python/src/index_arg.h"

#include <vector>

namespace kvloom::python {

struct SpecFacts;

/// 0, 1, 2, ... on the GPU: the qo_indptr of all decode steps of an engine. Made once and outside of captures, so that graphs may read it
/// as long as the engine lives.
struct Ramp {
  int32_t max_requests = 0;
  nb::object array;
};

/// The arguments of Engine.plan_on_device(), as they came.
struct DeviceBatchHandles {
  nb::handle kv_len, qo_indptr, pages, list_indptr, block_table, q_pos0, prefix;
  bool lists_per_kv_head;
  nb::handle kv_position, num_tokens, max_q_len, kv_tokens, stream;
};

class DeviceBatchArg {
 public:
  DeviceBatchArg() = default;
  DeviceBatchArg(const DeviceBatchArg&) = delete;

  /// Takes and checks what the host can: types, places and sizes. What arrays hold is the device's to judge.
  void take(const DeviceBatchHandles& handles, const SpecFacts& facts, Place place, Ramp& ramp);

  const kvloom_device_batch* c() const { return &batch_; }
  void* stream() const { return stream_; }
  int64_t total_tokens() const { return batch_.num_tokens; }
  int32_t num_requests() const { return batch_.num_requests; }
  int64_t num_page_ids() const { return batch_.pages.size; }
  /// The page ids, which run may read after the call that took them.
  IndexArg take_pages() { return std::move(pages_); }
  /// What the stream reads later than this call returns, kv_len first.
  std::vector<nb::object> take_arrays() { return std::move(arrays_); }

 private:
  void take_array(IndexArg& to, nb::handle from, const char* name, Place place);
  void take_lists(const DeviceBatchHandles& handles, const SpecFacts& facts, Place place);
  void take_queries(const DeviceBatchHandles& handles, Place place, Ramp& ramp);
  void take_stream(const DeviceBatchHandles& handles);

  kvloom_device_batch batch_;
  IndexArg qo_indptr_, kv_len_, pages_, list_indptr_, q_pos0_, prefix_;
  std::vector<nb::object> arrays_;
  void* stream_ = nullptr;
};

}  // namespace kvloom::python
