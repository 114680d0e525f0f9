// Batches for planner tests: a Batch with the arrays that it points at.
#pragma once

#include "kvloom/contract/batch.h"
#include "kvloom/contract/spec.h"
#include "kvloom/plan/cost.h"
#include "kvloom/plan/scheduler_config.h"
#include "plan_check.h"

#include <memory>
#include <random>
#include <vector>

namespace kvloom::test {

/// A flat paged or ragged batch of requests (q_len, kv_len), every request with pages of its own.
struct TestBatch {
  std::vector<int32_t> qo_indptr{0}, kv_len, pages, q_pos0, q_pos, prefix;
  std::vector<int64_t> list_indptr{0};
  std::vector<LevelGroup> groups;
  std::vector<std::vector<int32_t>> group_tokens;
  Batch batch;

  TestBatch() = default;
  TestBatch(const std::vector<int32_t>& q, const std::vector<int32_t>& kv, const AttentionSpec& spec) {
    for (size_t r = 0; r < kv.size(); ++r) {
      qo_indptr.push_back(qo_indptr.back() + q[r]);
      kv_len.push_back(kv[r]);
      const int64_t page = spec.storage == Storage::ragged ? 1 : spec.page_size;
      list_indptr.push_back(list_indptr.back() + (int64_t(kv[r]) + page - 1) / page);
    }
    if (spec.storage == Storage::paged) pages.resize(size_t(list_indptr.back()));
    for (size_t i = 0; i < pages.size(); ++i) pages[i] = int32_t(i);
    bind();
  }

  /// Points `batch` at the arrays; call again after changing them.
  Batch& bind() {
    batch.num_requests = int32_t(qo_indptr.size()) - 1;
    batch.qo_indptr = IndexView(qo_indptr.data(), int64_t(qo_indptr.size()));
    batch.kv_len = IndexView(kv_len.data(), int64_t(kv_len.size()));
    batch.list_indptr = IndexView(list_indptr.data(), int64_t(list_indptr.size()));
    batch.pages = pages.empty() ? IndexView() : IndexView(pages.data(), int64_t(pages.size()));
    batch.q_pos0 = q_pos0.empty() ? nullptr : q_pos0.data();
    batch.q_pos = q_pos.empty() ? nullptr : q_pos.data();
    batch.prefix = prefix.empty() ? nullptr : prefix.data();
    for (size_t i = 0; i < groups.size(); ++i) groups[i].tokens = {group_tokens[i].data(), int64_t(group_tokens[i].size())};
    batch.groups = {groups.data(), int64_t(groups.size())};
    return batch;
  }
  int32_t tokens() const { return qo_indptr.back(); }
};

inline AttentionSpec small_spec(int32_t heads, int32_t kv_heads, Storage storage = Storage::paged, int32_t page_size = 16) {
  AttentionSpec s;
  s.num_qo_heads = heads;
  s.num_kv_heads = kv_heads;
  s.head_dim_qk = s.head_dim_vo = 64;
  s.storage = storage;
  s.page_size = storage == Storage::ragged ? 1 : page_size;
  return s;
}

/// The constants of a GPU, in nanoseconds: what the policies were studied with.
inline SchedulerConfig gpu_config(int32_t ctas, Policy policy) {
  SchedulerConfig c;
  c.num_ctas = ctas;
  c.policy = policy;
  c.levels = LevelMode::off;
  c.classes[0] = {.tile_rows = 16, .tile_kv = 64, .heads_per_item = 1, .cost_per_token = 15, .cost_per_tile_row = 0, .cost_per_item = 300};
  c.classes[1] = {
      .tile_rows = 128, .tile_kv = 128, .heads_per_item = 1, .cost_per_token = 12, .cost_per_tile_row = 0, .cost_per_item = 300};
  return c;
}

/// cost = kv: one unit a token, nothing else, no snaps.
inline SchedulerConfig kv_config(int32_t ctas, Policy policy, int32_t tile_kv = 1) {
  SchedulerConfig c = gpu_config(ctas, policy);
  for (KernelClass& k : c.classes) k = {.tile_rows = 16, .tile_kv = tile_kv, .heads_per_item = 1, .cost_per_token = 1};
  c.snap_memory = c.snap_compute = c.keep_whole_margin = 0;
  return c;
}

/// A capacity that the batch just fits.
inline Capacity capacity_of(const TestBatch& b) {
  Capacity c;
  c.max_requests = b.batch.num_requests;
  c.max_query_tokens = b.tokens();
  for (int32_t kv : b.kv_len) c.max_kv_tokens += kv;
  if (c.max_kv_tokens == 0) c.max_kv_tokens = 1;
  return c;
}

/// A plan with its memory.
struct Planned {
  plan::Planner planner;
  PlanBuffer buffer;
  PlanView view;

  Planned(const AttentionSpec& spec, const Capacity& capacity, const SchedulerConfig& config, const Batch& batch)
      : planner(spec, capacity, config), buffer(planner.layout().plan_bytes) {
    planner.plan(batch, buffer.data, buffer.bytes);
    view = view_plan(buffer.data);
  }
  const PlanHeader& header() const { return *view.header; }
  std::vector<uint64_t> loads() const {
    std::vector<uint64_t> v(size_t(header().num_ctas), 0);
    for (int32_t c = 0; c < header().num_ctas; ++c) {
      for (int32_t i = view.cta_indptr[c]; i < view.cta_indptr[c + 1]; ++i) {
        const WorkItem& item = view.items[i];
        const KernelClass& k = header().classes[item.kernel_class];
        v[c] += plan::work_cost(k, item.row_count, int64_t(item.kv_end) - item.kv_begin, item.kv_head_count);
      }
    }
    return v;
  }
};

}  // namespace kvloom::test
