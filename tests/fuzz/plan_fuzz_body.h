// What every input must satisfy, whoever makes it: libFuzzer (plan_fuzz.cc) and the plain test (tests/plan/plan_fuzz_test.cc).
// The bytes are read as choices: a spec, a machine, a capacity, a batch, what to break in it, and which bits of the plan to flip.
#pragma once

#include "kvloom/plan/describe.h"
#include "kvloom/plan/planner.h"
#include "kvloom/plan/validate.h"
#include "kvloom/support/error.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

namespace kvloom::plan {

/// Choices out of bytes; 0 once they are used up.
class Choices {
 public:
  Choices(const uint8_t* data, size_t size) : data_(data), size_(size) {}
  bool left() const { return at_ < size_; }
  uint32_t byte() { return at_ < size_ ? data_[at_++] : 0; }
  /// In [low, high]; ranges beyond 256 take two bytes, beyond 65536 four.
  int32_t in(int64_t low, int64_t high) {
    const uint64_t n = uint64_t(high - low) + 1;
    uint64_t x = byte();
    if (n > 256) x = x << 8 | byte();
    if (n > 65536) x = (x << 8 | byte()) << 8 | byte();
    return int32_t(low + int64_t(x % n));
  }
  bool one_in(uint32_t n) { return byte() % n == n - 1; }
  template <class T>
  T of(std::initializer_list<T> values) {
    return values.begin()[byte() % values.size()];
  }

 private:
  const uint8_t* data_;
  size_t size_;
  size_t at_ = 0;
};

/// A batch with its arrays.
struct FuzzBatch {
  std::vector<int32_t> qo_indptr{0}, kv_len, q_pos0, q_pos, prefix, pages;
  std::vector<int64_t> list_indptr{0};
  std::vector<LevelGroup> groups;
  std::vector<std::vector<int32_t>> group_tokens;
  std::vector<int64_t> wide_pages;  // int64 page ids
  Batch batch;
};

inline AttentionSpec fuzz_spec(Choices& c) {
  AttentionSpec s;
  s.num_kv_heads = c.of({1, 1, 2, 3, 5, 8});
  s.num_qo_heads = s.num_kv_heads * c.of({1, 2, 3, 4, 7, 8, 20});
  s.head_dim_qk = s.head_dim_vo = 64;
  s.storage = c.one_in(4) ? Storage::ragged : Storage::paged;
  s.page_size = s.storage == Storage::ragged ? 1 : c.of({1, 2, 7, 16, 64});
  s.variant.range.causal = c.byte() & 1;
  if (c.one_in(3)) s.variant.range.left = c.in(-1, 60);
  if (c.one_in(5)) s.variant.range.right = c.in(-1, 30);
  return s;
}

inline SchedulerConfig fuzz_config(Choices& c) {
  SchedulerConfig g;
  g.num_ctas = c.of({1, 2, 7, 7, 16, 132});
  g.policy = Policy(c.in(0, 5));
  g.levels = c.one_in(3) ? LevelMode::off : LevelMode::automatic;
  for (KernelClass& k : g.classes) {
    k.tile_rows = c.of({1, 3, 4, 8, 16, 64, 128});
    k.tile_kv = c.of({1, 4, 8, 16, 64});
    k.heads_per_item = c.of({1, 1, 2, 4, 8});
    k.cost_per_token = c.of({1, 1, 15, 65536});
    k.cost_per_tile_row = c.of({0, 0, 2, 1000});
    k.cost_per_item = c.of({0, 20, 300, 1 << 30});
  }
  g.compute_rows_above = c.of({0, 4, 16, 16, 1000});
  g.split_tokens = g.classes[0].tile_kv * c.of({1, 2, 5});
  g.cost_partial = c.of({0, 650}), g.cost_partial_row = c.of({0, 8}), g.cost_merge = c.of({0, 1000});
  g.snap_memory = c.of({0, 10, 1000, 1 << 30}), g.snap_compute = c.of({0, 20, 2500});
  g.keep_whole_margin = c.of({0, 100, 2000});
  g.saturating_ctas = c.of({0, 0, 3, 80});
  g.level_first_gain = c.of({0, 1, 50, 2000}), g.level_more_gain = c.of({0, 1, 20, 250});
  g.level_reader_gain = c.of({0, 0, 5, 300}), g.cost_level_item = c.of({0, 0, 2400, 1 << 29, INT32_MAX});
  return g;
}

/// Lists a request (or a request and KV head), with common prefixes by family, and sometimes positions and prefixes of their own.
inline void fuzz_lists(Choices& c, const AttentionSpec& spec, FuzzBatch& b) {
  const int32_t requests = c.in(0, 12), families = c.in(1, 3), fork = c.in(1, 20);
  const bool per_head = c.one_in(6);
  int32_t page = 1 << 20;
  for (int32_t r = 0; r < requests; ++r) {
    b.qo_indptr.push_back(b.qo_indptr.back() + (c.one_in(3) ? c.in(0, 40) : 1));
    const int32_t family = c.in(0, families - 1), branch = c.in(0, 1), shared = c.in(0, 40);
    for (int32_t h = 0; h < (per_head ? spec.num_kv_heads : 1); ++h) {
      const int32_t kv_len = c.one_in(4) ? c.in(0, 3) : c.in(0, 300);
      b.kv_len.push_back(kv_len);
      const int32_t entries = (kv_len + spec.page_size - 1) / spec.page_size + (c.one_in(4) ? 2 : 0);
      for (int32_t i = 0; i < entries; ++i) {
        b.pages.push_back(i >= shared ? page++ : (family * 2 + (i >= fork ? branch : 0)) * 1000 + i);
      }
      b.list_indptr.push_back(int64_t(b.pages.size()));
    }
    b.prefix.push_back(c.one_in(3) ? c.in(0, 80) : 0);
    b.q_pos0.push_back(c.in(-5, 300));
  }
  for (int32_t t = 0; t < b.qo_indptr.back(); ++t) b.q_pos.push_back(c.left() ? c.in(-5, 300) : t);
  b.batch.lists_per_kv_head = per_head;
  if (spec.storage == Storage::paged && c.one_in(8)) b.batch.kv_position = KvPosition(c.in(0, 2));
}

/// Explicit levels over the same requests.
inline void fuzz_groups(Choices& c, const AttentionSpec& spec, FuzzBatch& b) {
  b.pages.resize(512);
  b.batch.lists_per_kv_head = false;
  for (int32_t level = 0, levels = c.in(1, 3); level < levels; ++level) {
    std::vector<int32_t> tokens(size_t(b.qo_indptr.back()));
    for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = int32_t(i);
    if (c.byte() & 1) std::reverse(tokens.begin(), tokens.end());
    while (!tokens.empty() && !c.one_in(6)) {
      const size_t n = std::min<size_t>(tokens.size(), size_t(c.in(1, 12)));
      LevelGroup g;
      g.level = level;
      g.kv_head = c.one_in(6) ? c.in(-1, spec.num_kv_heads) : -1;
      g.list_begin = c.in(0, 30);
      g.kv_begin = c.of({0, 0, 0, c.in(0, 30)});
      g.kv_end = g.kv_begin + c.in(0, 120);
      g.kv_pos0 = c.of({0, 0, c.in(-10, 200)});
      b.groups.push_back(g);
      b.group_tokens.emplace_back(tokens.end() - int64_t(n), tokens.end());
      tokens.resize(tokens.size() - n);
    }
  }
  if (b.groups.empty()) b.groups.emplace_back(), b.group_tokens.emplace_back();
}

/// One thing that is wrong with the batch, most likely: the planner may refuse it or not, but must not stumble.
inline void fuzz_damage(Choices& c, FuzzBatch& b) {
  const int32_t odd = c.of({-1, 0, 1, 77, 1 << 29, (1 << 29) + 1, INT32_MAX, INT32_MIN});
  const auto spoil = [&](auto& v) {
    if (!v.empty()) v[size_t(c.in(0, 65535)) % v.size()] = std::decay_t<decltype(v[0])>(odd);
  };
  switch (c.in(0, 13)) {
    case 0:
      return spoil(b.qo_indptr);
    case 1:
      return spoil(b.kv_len);
    case 2:
      return spoil(b.list_indptr);
    case 3:
      return spoil(b.q_pos0);
    case 4:
      return spoil(b.q_pos);
    case 5:
      return spoil(b.prefix);
    case 6:
      return spoil(b.pages);
    case 7:
      b.batch.num_requests = odd;
      return;
    case 8:
      b.batch.qo_indptr.size = std::min<int64_t>(odd, b.batch.qo_indptr.size);
      return;
    case 9:
      b.batch.kv_len = IndexView();
      return;
    case 10:
      b.batch.list_indptr = IndexView();
      return;
    case 11:
      b.batch.pages.size = std::min<int64_t>(odd, b.batch.pages.size);
      return;
    case 12:
      b.batch.kv_position = KvPosition(odd);
      return;
    default:
      if (b.groups.empty()) return;
      LevelGroup& g = b.groups[size_t(c.in(0, 65535)) % b.groups.size()];
      int32_t* const fields[] = {&g.level, &g.kv_begin, &g.kv_end, &g.kv_pos0, &g.kv_index0, &g.kv_head};
      *fields[c.in(0, 5)] = odd;
  }
}

/// Points the batch at its arrays.
inline void fuzz_bind(Choices& c, const AttentionSpec& spec, FuzzBatch& b) {
  Batch& v = b.batch;
  v.num_requests = int32_t(b.qo_indptr.size()) - 1;
  v.qo_indptr = IndexView(b.qo_indptr.data(), int64_t(b.qo_indptr.size()));
  v.kv_len = IndexView(b.kv_len.data(), int64_t(b.kv_len.size()));
  if (spec.storage == Storage::paged && b.groups.empty() && c.one_in(4)) {  // a dense table with the first entries of every list
    v.table_stride = c.in(300, 310);
    std::vector<int32_t> table(b.kv_len.size() * size_t(v.table_stride), -1);
    for (size_t i = 0; i < b.kv_len.size(); ++i) {
      const int64_t n = std::min<int64_t>(b.list_indptr[i + 1] - b.list_indptr[i], v.table_stride);
      std::copy_n(b.pages.begin() + b.list_indptr[i], n, table.begin() + int64_t(i) * v.table_stride);
    }
    b.pages = std::move(table);
  } else {
    v.list_indptr = IndexView(b.list_indptr.data(), int64_t(b.list_indptr.size()));
  }
  b.wide_pages.assign(b.pages.begin(), b.pages.end());
  const int64_t entries = int64_t(b.pages.size());
  if (spec.storage == Storage::paged) v.pages = c.byte() & 1 ? IndexView(b.wide_pages.data(), entries) : IndexView(b.pages.data(), entries);
  const uint32_t positions = c.byte() % 4;
  if (positions == 1) v.q_pos0 = b.q_pos0.data();
  if (positions == 2) v.q_pos = b.q_pos.data();
  if (c.one_in(3)) v.prefix = b.prefix.data();
  for (size_t i = 0; i < b.groups.size(); ++i) b.groups[i].tokens = {b.group_tokens[i].data(), int64_t(b.group_tokens[i].size())};
  v.groups = {b.groups.data(), int64_t(b.groups.size())};
}

/// Large enough for the batch, mostly; at times too small somewhere.
inline Capacity fuzz_capacity(Choices& c, const FuzzBatch& b) {
  Capacity capacity;
  capacity.max_requests = int32_t(b.qo_indptr.size()) - 1;
  capacity.max_query_tokens = b.qo_indptr.back();
  capacity.max_kv_tokens = 1;
  for (int32_t n : b.kv_len) capacity.max_kv_tokens += std::max(n, 0);
  for (const LevelGroup& g : b.groups) capacity.max_kv_tokens += std::max(0, g.kv_end - g.kv_begin);
  capacity.max_level_rows = c.of({0, 2, 5, 20, 100});
  for (const auto& tokens : b.group_tokens) capacity.max_level_rows += int64_t(tokens.size()) * (c.one_in(8) ? 0 : 1);
  if (!b.groups.empty()) capacity.max_groups = int32_t(b.groups.size()) * 2 + b.qo_indptr.back() * 8 + 1;
  if (c.one_in(10)) capacity.max_requests = c.in(0, 12);
  if (c.one_in(10)) capacity.max_query_tokens = c.in(0, 60);
  if (c.one_in(10)) capacity.max_kv_tokens = c.in(0, 1000);
  if (c.one_in(10)) capacity.max_groups = c.in(0, 20);
  return capacity;
}

/// Ends the process with a line on stderr unless `fault` is empty.
inline void demand_sound(const std::string& fault, const char* what) {
  if (fault.empty()) return;
  std::fprintf(stderr, "plan fuzz: %s: %s\n", what, fault.c_str());
  std::abort();
}

/// Flips bits of a sound plan: the validator has to find a fault or none, in bounds either way.
inline void fuzz_flips(Choices& c, const AttentionSpec& spec, const char* plan, int64_t bytes) {
  const int64_t words = (bytes + 7) / 8;
  const std::unique_ptr<uint64_t[]> copy(new uint64_t[size_t(words)]);
  for (int round = 0; round < 8 && c.left(); ++round) {
    std::memcpy(copy.get(), plan, size_t(bytes));
    char* const flipped = reinterpret_cast<char*>(copy.get());
    for (int n = c.in(1, 4); n > 0; --n) {
      const int64_t at = c.in(0, 65535) % (c.byte() & 1 ? std::min<int64_t>(bytes, int64_t(sizeof(PlanHeader))) : bytes);
      flipped[at] = char(flipped[at] ^ (1 << (c.byte() & 7)));
    }
    validate_plan(flipped, bytes, spec, c.one_in(4));
  }
}

/// The step in two steps, as engines plan it that have a planner for levels: the same bytes.
inline void fuzz_flat(const AttentionSpec& spec, const Capacity& capacity, const SchedulerConfig& config, const Batch& batch, const char* plan, int64_t bytes) {
  Planner few(spec, capacity, config), all(spec, capacity, config);
  const std::unique_ptr<char, void (*)(void*)> memory(static_cast<char*>(std::aligned_alloc(64, size_t((bytes + 63) / 64 * 64))), std::free);
  std::memcpy(memory.get(), plan, size_t(bytes));  // what lies between the sections
  for (int again = 0; again < 2; ++again) {        // a planner whose groups were given away has others'
    std::memset(memory.get(), 0, sizeof(PlanHeader));
    const bool levels = reinterpret_cast<const PlanHeader*>(plan)->num_levels > 1;
    if (few.plan_flat(batch, memory.get(), bytes) == levels) demand_sound("plan_flat says otherwise than the plan", "levels");
    if (levels) all.plan_levels_of(few, batch, memory.get(), bytes);
    if (std::memcmp(plan, memory.get(), size_t(bytes)) != 0) demand_sound("not the bytes of plan()", "levels");
  }
}

/// Plans what the bytes say. Returns true if there was a plan.
inline bool fuzz_plan(const uint8_t* data, size_t size) {
  Choices c(data, size);
  const AttentionSpec spec = fuzz_spec(c);
  const SchedulerConfig config = fuzz_config(c);
  FuzzBatch b;
  fuzz_lists(c, spec, b);
  if (c.one_in(3)) fuzz_groups(c, spec, b);
  fuzz_bind(c, spec, b);
  const Capacity capacity = fuzz_capacity(c, b);
  if (c.one_in(4)) fuzz_damage(c, b);
  try {
    Planner planner(spec, capacity, config);
    const int64_t bytes = planner.layout().plan_bytes;
    if (bytes > (int64_t(1) << 26)) return false;
    // Exactly as large as it says (plan_bytes is a multiple of 64): a sanitizer sees a byte too many.
    const std::unique_ptr<char, void (*)(void*)> memory(static_cast<char*>(std::aligned_alloc(64, size_t((bytes + 63) / 64 * 64))),
                                                        std::free);
    planner.plan(b.batch, memory.get(), bytes);
    demand_sound(validate_plan(memory.get(), bytes, spec, true), "not sound");
    const PlanView view = view_plan(memory.get());
    if (view.header->scratch_rows > planner.layout().max_scratch_rows) demand_sound("more scratch rows than the layout has", "layout");
    fuzz_flat(spec, capacity, config, b.batch, memory.get(), bytes);
    if (view.header->num_items < 400) demand_sound(describe_json(view, spec).empty() ? "no JSON" : "", "describe");
    if (view.header->num_items < 100) demand_sound(describe_svg(view, spec).empty() ? "no picture" : "", "describe");
    fuzz_flips(c, spec, memory.get(), bytes);
    return true;
  } catch (const Error& e) {
    if (e.code() != ErrorCode::invalid_argument && e.code() != ErrorCode::over_capacity) demand_sound(e.what(), "error of another kind");
    return false;
  }
}

}  // namespace kvloom::plan
