// Steps for the device's planner, and what its plans are compared with: the host's, byte by byte.
#pragma once

#include "kvloom/plan/device_planner.h"
#include "random_batches.h"

#include <cstring>
#include <string>

namespace kvloom::test {

/// A flat step for policy stream, with int32 arrays as most engines have them, or int64.
struct DeviceStep {
  AttentionSpec spec;
  SchedulerConfig config;
  Capacity capacity;
  TestBatch b;
  std::vector<int32_t> list_indptr;  // of b, unless it has a table
  std::vector<int64_t> qo_64, kv_64;
  bool arrays_64 = false;
  plan::DeclaredStep declared;

  /// After every change of the arrays.
  void bind() {
    const bool dense = b.batch.table_stride > 0;
    const int64_t closed = b.batch.list_indptr.size;
    b.bind();
    list_indptr.assign(b.list_indptr.begin(), b.list_indptr.end());
    const int64_t lists = closed > 0 ? closed : int64_t(list_indptr.size());
    b.batch.list_indptr = dense ? IndexView() : arrays_64 ? IndexView(b.list_indptr.data(), lists) : IndexView(list_indptr.data(), lists);
    if (!arrays_64) return;
    qo_64.assign(b.qo_indptr.begin(), b.qo_indptr.end());
    kv_64.assign(b.kv_len.begin(), b.kv_len.end());
    b.batch.qo_indptr = IndexView(qo_64.data(), int64_t(qo_64.size()));
    b.batch.kv_len = IndexView(kv_64.data(), int64_t(kv_64.size()));
  }
  int64_t ragged_tokens = int64_t(1) << 40;  // of K and V; the host looks at them when it runs
  int64_t entries() const { return spec.storage == Storage::ragged ? ragged_tokens : int64_t(b.pages.size()); }
};

inline AttentionSpec device_spec(Random& r) {
  const int32_t kv_heads = r.of({1, 2, 3, 5, 8, 8, 16}), group = r.of({1, 2, 3, 4, 4, 5, 7, 8, 10, 16});
  const int32_t page_size = 1 << r.in(0, 8);
  const Storage storage = r.chance(20) ? Storage::ragged : Storage::paged;
  AttentionSpec s = small_spec(kv_heads * group, kv_heads, storage, r.chance(20) ? r.in(1, 256) : page_size);
  s.variant.range.causal = r.chance(60);
  if (r.chance(20)) s.variant.range.left = r.in(0, 600);
  if (r.chance(10)) s.variant.range.right = r.in(0, 20);
  return s;
}

/// Half of them as a GPU's families have them.
inline SchedulerConfig device_config(Random& r) {
  SchedulerConfig c = r.chance(50) ? random_config(r) : gpu_config(1, Policy::stream);
  c.policy = Policy::stream;
  c.levels = LevelMode::off;
  c.num_ctas = r.of({r.in(1, 264), r.in(1, 16), 132, 264});
  if (r.chance(30)) c.classes[0].heads_per_item = c.classes[1].heads_per_item = r.of({2, 3, 4});
  if (r.chance(10)) c.classes[0].cost_per_item = c.classes[1].cost_per_item = 0;
  return c;
}

inline void add_device_requests(Random& r, DeviceStep& s) {
  const int32_t requests = r.of({r.in(0, 8), r.in(0, 40), r.in(0, 130), r.chance(15) ? r.in(300, 1100) : r.in(1, 3)});
  const int32_t kind = r.in(0, 3), lengths = r.in(0, 4), mean = r.of({3, 64, 500, 4000}), draft = r.in(1, 8);
  const int32_t page = s.spec.storage == Storage::ragged ? 1 : s.spec.page_size;
  const bool per_head = r.chance(15);
  const int32_t more_lists = per_head ? s.spec.num_kv_heads - 1 : 0;
  s.b.batch.lists_per_kv_head = per_head;
  for (int32_t i = 0; i < requests; ++i) {
    const int32_t some = r.in(0, 40), many = r.in(1, 300);
    const int32_t q = kind == 0 ? 1 : kind == 1 ? draft : kind == 2 ? r.of({0, 1, 1, 1, some}) : r.of({1, 1, 1, 2, 0, many});
    const int32_t any = r.in(0, 2 * mean), around = r.in(mean / 2, mean + mean / 2);
    const int32_t kv = lengths == 0 ? mean : lengths == 1 ? any : lengths == 2 ? around : lengths == 3 ? mean * 8 / (i + 1) : r.of({0, 1, any, around});
    s.b.qo_indptr.push_back(s.b.qo_indptr.back() + q);
    s.b.kv_len.push_back(kv);
    s.b.list_indptr.push_back(s.b.list_indptr.back() + (kv + page - 1) / page + r.of({0, 0, 0, 2}));
    for (int32_t h = 0; h < more_lists; ++h) {
      s.b.kv_len.push_back(r.of({kv, r.in(0, kv)}));
      s.b.list_indptr.push_back(s.b.list_indptr.back() + (s.b.kv_len.back() + page - 1) / page + r.of({0, 0, 0, 2}));
    }
    s.b.prefix.push_back(r.of({0, 0, 5, 700}));
    s.b.q_pos0.push_back(r.of({kv - q, kv - q + r.in(-5, 5), r.in(-5, 150)}));
  }
  if (r.chance(80)) s.b.prefix.clear();
  if (r.chance(70)) s.b.q_pos0.clear();
}

inline void make_device_step(uint64_t seed, DeviceStep& s) {
  Random r(seed);
  s.spec = device_spec(r);
  s.config = device_config(r);
  add_device_requests(r, s);
  const int32_t requests = int32_t(s.b.qo_indptr.size()) - 1, lists = int32_t(s.b.kv_len.size());
  if (s.spec.storage == Storage::paged) s.b.pages.resize(size_t(s.b.list_indptr.back()) + size_t(r.of({0, 1})));
  if (s.spec.storage == Storage::paged && requests > 0 && r.chance(25)) {
    int64_t stride = 1;
    for (int32_t kv : s.b.kv_len) stride = std::max<int64_t>(stride, (kv + s.spec.page_size - 1) / s.spec.page_size + r.of({0, 1}));
    s.b.batch.table_stride = stride;
    s.b.pages.resize(size_t(stride * lists));
  }
  if (s.spec.storage == Storage::paged && r.chance(10)) s.b.batch.kv_position = KvPosition::page_id;
  s.arrays_64 = r.chance(10);
  s.bind();
  if (s.b.batch.table_stride == 0 && r.chance(30)) s.b.batch.list_indptr.size = lists;
  s.capacity = capacity_of(s.b);
  s.declared = {requests, 0, s.b.tokens(), s.b.batch.lists_per_kv_head};
  for (int32_t i = 0; i < requests; ++i) s.declared.max_q_len = std::max(s.declared.max_q_len, s.b.qo_indptr[size_t(i) + 1] - s.b.qo_indptr[size_t(i)]);
  if (r.chance(40)) {  // declared larger than it is, in an engine for more
    const int32_t more = r.of({1, 7, 300});
    s.capacity.max_requests += more;
    s.capacity.max_query_tokens += more;
    s.capacity.max_kv_tokens = r.chance(50) ? 0 : s.capacity.max_kv_tokens + more;
    s.declared.max_q_len += r.of({0, 1, more});
    s.declared.num_tokens += r.of({0, 1, more});
  }
}

/// Arguments for a step whose arrays are where the block reads them: those of `batch`.
inline plan::DeviceArgs device_args_of(const DeviceStep& s, const plan::PlanLayout& layout, const Batch& batch) {
  plan::DeviceArgs a = plan::device_args(s.spec, s.capacity, s.config, layout, s.declared);
  a.qo_indptr = batch.qo_indptr;
  a.kv_len = batch.kv_len;
  a.list_indptr = batch.list_indptr;
  a.table_stride = batch.table_stride;
  a.num_entries = s.entries();
  a.q_pos0 = batch.q_pos0;
  a.prefix = batch.prefix;
  a.kv_position = batch.kv_position;
  return a;
}

inline constexpr unsigned char kUntouched = 0xa5;

/// "" or where `got`, which was kUntouched all over, is not what the host's planner writes of it and nothing else. `counters` likewise.
inline std::string device_plan_fault(const std::vector<char>& got, const std::vector<uint32_t>& counters, const PlanBuffer& want) {
  const PlanView w = view_plan(want.data);
  std::vector<char> expected(got.size(), char(kUntouched));
  const char* const base = static_cast<const char*>(want.data);
  const auto take = [&](const char* from, int64_t bytes) { std::memcpy(expected.data() + (from - base), from, size_t(bytes)); };
  take(base, sizeof(PlanHeader));
  const auto section = [&](const auto& span) { take(reinterpret_cast<const char*>(span.data), span.size * int64_t(sizeof span[0])); };
  section(w.groups), section(w.cta_indptr), section(w.items), section(w.units), section(w.entries), section(w.touches);
  for (size_t i = 0; i < got.size(); ++i) {
    if (got[i] == expected[i]) continue;
    const PlanHeader& h = *w.header;
    const std::pair<const char*, int64_t> sections[] = {{"header", 0},           {"groups", h.groups_offset}, {"row entries", h.row_entries_offset},
                                                        {"cta_indptr", h.cta_indptr_offset}, {"items", h.items_offset},   {"units", h.units_offset},
                                                        {"entries", h.entries_offset},       {"touches", h.touches_offset}};
    const auto* in = &sections[0];
    for (const auto& s : sections) in = int64_t(i) >= s.second ? &s : in;
    return std::string(in->first) + ", byte " + std::to_string(int64_t(i) - in->second) + ": got " + std::to_string(int(got[i])) + ", wanted " +
           std::to_string(int(expected[i]));
  }
  for (size_t u = 0; u < counters.size(); ++u) {
    if (counters[u] != (int64_t(u) < w.units.size ? 0u : 0xa5a5a5a5u)) return "counter " + std::to_string(u) + ": " + std::to_string(counters[u]);
  }
  return "";
}

}  // namespace kvloom::test
