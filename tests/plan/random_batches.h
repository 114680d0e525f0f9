// Random small batches over the whole input space of the planner.
#pragma once

#include "batches.h"

#include <numeric>

namespace kvloom::test {

class Random {
 public:
  explicit Random(uint64_t seed) : engine_(seed) {}
  int32_t in(int32_t low, int32_t high) { return low + int32_t(engine_() % uint64_t(high - low + 1)); }
  bool chance(int32_t percent) { return in(1, 100) <= percent; }
  template <class T>
  T of(std::initializer_list<T> values) {
    return values.begin()[in(0, int32_t(values.size()) - 1)];
  }

 private:
  std::mt19937_64 engine_;
};

struct RandomCase {
  AttentionSpec spec;
  SchedulerConfig config;
  Capacity capacity;
  TestBatch b;
};

inline AttentionSpec random_spec(Random& r) {
  const int32_t kv_heads = r.of({1, 1, 2, 3, 5});
  // One draw a statement: compilers differ in the order of arguments.
  const int32_t page_size = r.of({1, 4, 16});
  const Storage storage = r.chance(30) ? Storage::ragged : Storage::paged;
  const int32_t group = r.of({1, 2, 3, 4, 7, 10});
  AttentionSpec s = small_spec(kv_heads * group, kv_heads, storage, page_size);
  s.variant.range.causal = r.chance(50);
  if (r.chance(30)) s.variant.range.left = r.in(0, 40);
  if (r.chance(15)) s.variant.range.right = r.in(0, 20);
  return s;
}

inline SchedulerConfig random_config(Random& r) {
  const auto policy = Policy(r.in(0, 5));
  SchedulerConfig c = gpu_config(r.of({1, 2, 7, 7, 16, 132}), policy);
  for (KernelClass& k : c.classes) {
    k.tile_rows = r.of({1, 3, 4, 8, 16});
    k.tile_kv = r.of({1, 4, 8, 16});
    k.heads_per_item = r.of({1, 1, 2, 4});
    k.cost_per_token = r.of({1, 1, 15});
    k.cost_per_tile_row = r.of({0, 0, 2});
    k.cost_per_item = r.of({0, 20, 300});
  }
  c.compute_rows_above = r.of({0, 4, 8, 16, 1000});
  c.split_tokens = c.classes[0].tile_kv * r.of({1, 2, 5});
  const int32_t scale = r.of({0, 10, 100});
  c.snap_memory = scale;
  c.snap_compute = 2 * scale;
  c.keep_whole_margin = r.of({0, 100, 2000});
  c.saturating_ctas = c.keep_whole_margin == 100 ? (c.num_ctas + 1) / 2 : 0;
  c.cost_partial = r.of({0, 650});
  c.cost_partial_row = r.of({0, 8});
  c.cost_merge = r.of({0, 1000});
  return c;
}

/// Lists a request or a (request, KV head), with or without positions and prefixes of their own.
inline void make_flat(Random& r, RandomCase& c) {
  TestBatch& b = c.b;
  const bool per_head = r.chance(20);
  const int32_t requests = r.in(0, 7);
  const int32_t lists = per_head ? c.spec.num_kv_heads : 1;
  for (int32_t i = 0; i < requests; ++i) {
    b.qo_indptr.push_back(b.qo_indptr.back() + r.of({0, 1, 1, 1, 2, 3, r.in(0, 40)}));
    for (int32_t h = 0; h < lists; ++h) {
      const int32_t kv = r.of({0, 1, r.in(0, 20), r.in(0, 150), r.in(0, 150)});
      b.kv_len.push_back(kv);
      const int32_t page = c.spec.storage == Storage::ragged ? 1 : c.spec.page_size;
      b.list_indptr.push_back(b.list_indptr.back() + (kv + page - 1) / page + r.of({0, 0, 2}));
    }
    if (r.chance(100)) b.prefix.push_back(r.of({0, 0, 5, 70}));
  }
  if (r.chance(70)) b.prefix.clear();
  if (c.spec.storage == Storage::paged) b.pages.resize(size_t(b.list_indptr.back()) + 1);
  if (r.chance(30)) {
    for (int32_t i = 0; i < requests; ++i) b.q_pos0.push_back(r.in(-5, 150));
  } else if (r.chance(30)) {
    for (int32_t t = 0; t < b.tokens(); ++t) b.q_pos.push_back(r.in(-5, 150));
  }
  b.batch.lists_per_kv_head = per_head;
  if (c.spec.storage == Storage::paged && r.chance(15)) b.batch.kv_position = KvPosition::page_table;
}

/// Up to three levels of groups over random tokens, some of them for one KV head.
inline void make_explicit(Random& r, RandomCase& c) {
  TestBatch& b = c.b;
  b.batch.lists_per_kv_head = false;
  b.batch.kv_position = KvPosition::linear;
  const int32_t requests = r.in(1, 5);
  for (int32_t i = 0; i < requests; ++i) {
    b.qo_indptr.push_back(b.qo_indptr.back() + r.of({0, 1, 1, 2, r.in(0, 12)}));
    b.kv_len.push_back(r.in(0, 100));
  }
  if (r.chance(30)) {
    for (int32_t t = 0; t < b.tokens(); ++t) b.q_pos.push_back(r.in(0, 120));
  }
  std::vector<int32_t> tokens(size_t(b.tokens()), 0);
  std::iota(tokens.begin(), tokens.end(), 0);
  const bool per_head = r.chance(30);
  int64_t named = 0;
  for (int32_t level = 0; level < r.of({1, 2, 3}); ++level) {
    for (int32_t head = per_head ? 0 : -1; head < (per_head ? c.spec.num_kv_heads : 0); ++head) {
      if (per_head && r.chance(20)) continue;
      std::vector<int32_t> left = tokens;
      if (r.chance(40)) {
        for (size_t i = left.size(); i > 1; --i) std::swap(left[i - 1], left[size_t(r.in(0, int32_t(i) - 1))]);
      }
      while (!left.empty() && r.chance(85)) {
        const int32_t n = std::min<int32_t>(r.in(1, 12), int32_t(left.size()));
        LevelGroup g;
        g.level = level;
        g.kv_head = per_head && r.chance(90) ? head : head;
        g.kv_begin = r.of({0, 0, r.in(0, 30)});
        g.kv_end = g.kv_begin + r.of({0, r.in(0, 20), r.in(0, 90)});
        g.kv_pos0 = r.of({0, 0, r.in(0, 60)});
        b.groups.push_back(g);
        b.group_tokens.push_back({left.end() - n, left.end()});
        left.resize(left.size() - size_t(n));
        named += n * (per_head ? 1 : c.spec.num_kv_heads);
      }
    }
  }
  if (b.groups.empty()) {
    b.groups.push_back({});
    b.group_tokens.push_back({});
  }
  b.pages.resize(200);
  c.capacity.max_level_rows = named;  // more than needed
  c.capacity.max_groups = int32_t(b.groups.size()) * 2 + b.tokens() * (per_head ? c.spec.num_kv_heads : 1) + 1;
}

inline void make_random(uint64_t seed, RandomCase& c) {
  Random r(seed);
  c.spec = random_spec(r);
  c.config = random_config(r);
  if (r.chance(35)) {
    make_explicit(r, c);
  } else {
    make_flat(r, c);
  }
  c.b.bind();
  if (c.b.group_tokens.empty() && r.chance(20) && c.spec.storage == Storage::paged) {  // dense table
    c.b.batch.list_indptr = {};
    c.b.batch.table_stride = 160;
    c.b.pages.resize(c.b.kv_len.size() * 160);
    c.b.batch.pages = c.b.pages.empty() ? IndexView() : IndexView(c.b.pages.data(), int64_t(c.b.pages.size()));
  }
  c.capacity.max_requests = c.b.batch.num_requests;
  c.capacity.max_query_tokens = c.b.tokens();
  int64_t kv = 1;
  for (int32_t n : c.b.kv_len) kv += n;
  for (const LevelGroup& g : c.b.groups) kv += g.kv_end - g.kv_begin;
  c.capacity.max_kv_tokens = kv;
  if (c.b.groups.empty() && r.chance(20)) c.capacity.max_level_rows = r.in(0, 10);
}

}  // namespace kvloom::test
