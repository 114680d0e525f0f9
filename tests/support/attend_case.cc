#include "tests/support/attend_case.h"

#include "kvloom/attn/tile_range.h"
#include "kvloom/ref/ref.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>

namespace kvloom::cpu::test {
namespace {

constexpr int32_t kRowGap = 3;  // elements between output rows that must stay as they are

/// Every element a NaN (e4m3: 0x7f, e5m2: 0x7f, f16/bf16/f32: all ones).
void poison(std::vector<uint8_t>& data, DType t) {
  std::fill(data.begin(), data.end(), t == DType::e4m3 || t == DType::e5m2 ? 0x7f : 0xff);
}

struct Fill {
  std::mt19937 random;
  std::normal_distribution<float> normal{0.0f, 1.0f};
  void row(std::vector<uint8_t>& data, DType t, int64_t at, int32_t n, float scale = 1.0f) {
    for (int32_t d = 0; d < n; ++d) store_from_float(data.data(), t, at + d, normal(random) * scale);
  }
};

void make_pages(AttendCase& c, Fill& fill, int64_t& num_pages) {
  const int32_t page_size = c.spec.page_size;
  c.list_indptr = {0};
  for (const Lengths& r : c.requests) c.list_indptr.push_back(c.list_indptr.back() + (r.kv + page_size - 1) / page_size);
  num_pages = c.list_indptr.back() + 7;
  std::vector<int64_t> ids(num_pages);
  for (int64_t i = 0; i < num_pages; ++i) ids[i] = i;
  std::shuffle(ids.begin(), ids.end(), fill.random);
  c.pages64.assign(ids.begin(), ids.begin() + c.list_indptr.back());
  c.pages32.assign(c.pages64.begin(), c.pages64.end());
  const auto count = int64_t(c.pages64.size());
  c.batch.pages = c.page_ids_64 ? IndexView(c.pages64.data(), count) : IndexView(c.pages32.data(), count);
  c.params.pages = c.batch.pages;
}

void make_kv(AttendCase& c, Fill& fill) {
  const AttentionSpec& s = c.spec;
  const bool paged = s.storage == Storage::paged;
  int64_t num_pages = 3;
  if (paged) {
    make_pages(c, fill, num_pages);
  } else {
    c.list_indptr = {2};  // two foreign tokens come first
    for (const Lengths& r : c.requests) c.list_indptr.push_back(c.list_indptr.back() + r.kv);
    num_pages = c.list_indptr.back() + 5;
  }
  const int64_t page_size = paged ? s.page_size : 1, heads = s.num_kv_heads;
  const auto strides = [&](int32_t dim, int64_t& page, int64_t& token, int64_t& head) {
    const bool outside = c.heads_outside_tokens;
    token = outside ? dim : heads * dim;
    head = outside ? page_size * dim : dim;
    page = page_size * heads * dim;
    if (!paged && outside) page = token = dim, head = num_pages * dim;
  };
  KvView& kv = c.params.kv;
  strides(s.head_dim_qk, kv.k_page, kv.k_token, kv.k_head);
  strides(s.head_dim_vo, kv.v_page, kv.v_token, kv.v_head);
  c.k.resize(num_pages * page_size * heads * s.head_dim_qk * size_of(s.kv_dtype));
  c.v.resize(num_pages * page_size * heads * s.head_dim_vo * size_of(s.kv_dtype));
  poison(c.k, s.kv_dtype);
  poison(c.v, s.kv_dtype);
  for (size_t r = 0; r < c.requests.size(); ++r) {
    for (int64_t t = 0; t < c.requests[r].kv; ++t) {
      const int64_t entry = c.list_indptr[r] + t / page_size, slot = t % page_size;
      const int64_t page = paged ? c.pages64[entry] : entry;
      for (int64_t h = 0; h < heads; ++h) {
        fill.row(c.k, s.kv_dtype, page * kv.k_page + slot * kv.k_token + h * kv.k_head, s.head_dim_qk);
        fill.row(c.v, s.kv_dtype, page * kv.v_page + slot * kv.v_token + h * kv.v_head, s.head_dim_vo);
      }
    }
  }
  kv.k = c.k.data();
  kv.v = c.v.data();
  kv.num_pages = num_pages;
}

void make_mask(AttendCase& c, Fill& fill) {
  c.mask_indptr = {0};
  for (const Lengths& r : c.requests) {
    c.mask_indptr.push_back(c.mask_indptr.back() + (int64_t(r.q) * r.kv + 7) / 8);
    c.mask_kv_len.push_back(r.kv);
  }
  c.mask.resize(c.mask_indptr.back());
  for (uint8_t& byte : c.mask) byte = uint8_t(fill.random() | fill.random());
  c.mask.shrink_to_fit();  // a read past the end is AddressSanitizer's
  c.params.variant.mask = c.mask.data();
  c.params.variant.mask_indptr = c.mask_indptr.data();
  c.params.variant.mask_kv_len = c.mask_kv_len.data();
}

void make_variant(AttendCase& c, Fill& fill) {
  const AttentionSpec& s = c.spec;
  VariantParams& v = c.params.variant;
  v.sm_scale = s.sm_scale != 0.0f ? s.sm_scale : float(1.0 / std::sqrt(double(s.head_dim_qk)));
  v.soft_cap = s.variant.soft_cap;
  v.sigmoid_bias = s.variant.sigmoid_bias;
  v.range = s.variant.range;
  v.rope = s.variant.rope;
  for (int32_t h = 0; h < s.num_qo_heads; ++h) {
    c.slopes.push_back(c.slope / float(h + 1));
    c.sinks.push_back(fill.normal(fill.random));
  }
  v.alibi_slopes = c.slopes.data();
  v.sink = c.sinks.data();
  if (!c.k_scales.empty()) v.scale.k_per_head = c.k_scales.data();
  if (!c.v_scales.empty()) v.scale.v_per_head = c.v_scales.data();
  if (s.variant.custom_mask) make_mask(c, fill);
}

}  // namespace

void AttendCase::make() {
  Fill fill{std::mt19937(seed)};
  qo_indptr = {0};
  for (const Lengths& r : requests) {
    qo_indptr.push_back(qo_indptr.back() + r.q);
    kv_len.push_back(r.kv);
  }
  batch.num_requests = static_cast<int32_t>(requests.size());
  make_kv(*this, fill);
  make_variant(*this, fill);
  q.resize(tokens() * spec.num_qo_heads * spec.head_dim_qk * size_of(spec.q_dtype));
  fill.row(q, spec.q_dtype, 0, static_cast<int32_t>(tokens() * spec.num_qo_heads * spec.head_dim_qk), q_scale_of_data);
  params.q = q.data();
  params.q_head = spec.head_dim_qk;
  params.q_token = int64_t(spec.num_qo_heads) * spec.head_dim_qk;
  params.o_head = spec.head_dim_vo + kRowGap;
  params.o_token = spec.num_qo_heads * params.o_head + 2 * kRowGap;
  params.lse_token = spec.num_qo_heads;
  params.lse_head = 1;
  batch.qo_indptr = IndexView(qo_indptr.data(), int64_t(qo_indptr.size()));
  batch.kv_len = IndexView(kv_len.data(), int64_t(kv_len.size()));
  batch.list_indptr = IndexView(list_indptr.data(), int64_t(list_indptr.size()));
  if (!prefix.empty()) batch.prefix = prefix.data();
  if (!page_pos.empty()) params.page_pos = page_pos.data();
  if (!q_pos.empty()) batch.q_pos = q_pos.data();
}

namespace {

/// The sections of a plan under construction.
struct Draft {
  std::vector<RowGroup> groups;
  std::vector<RowEntry> row_entries;
  std::vector<std::vector<WorkItem>> items;  // by CTA
  std::vector<MergeUnit> units;
  std::vector<MergeEntry> entries;
  std::vector<int32_t> touches;
  int32_t scratch_rows = 0;
  int32_t dealt = 0;
};

RowGroup group_of(const AttendCase& c, int32_t r, Draft& d) {
  RowGroup g{};
  g.list_begin = c.list_indptr[r];
  g.row_list = -1;
  g.token_begin = c.qo_indptr[r];
  g.token_count = c.requests[r].q;
  g.request = r;
  g.q_pos0 = c.requests[r].kv - c.requests[r].q;
  g.kv_end = c.requests[r].kv;
  g.kv_head = -1;
  g.prefix = c.prefix.empty() ? 0 : c.prefix[r];
  g.kv_position = c.batch.kv_position;
  if (!c.q_pos.empty()) {
    g.row_list = static_cast<int32_t>(d.row_entries.size());
    for (int32_t i = 0; i < g.token_count; ++i) {
      d.row_entries.push_back({g.token_begin + i, r, i, c.q_pos[g.token_begin + i], g.prefix});
    }
  }
  return g;
}

void cut_tile(const AttendCase& c, const Cut& cut, const RowGroup& g, int32_t group, int32_t row_begin, int32_t rows, int32_t kv_head,
              Draft& d) {
  const int32_t group_size = c.spec.group_size();
  const TokenRange tokens = tile_tokens(row_begin, rows, group_size);
  int32_t low = std::numeric_limits<int32_t>::max(), high = std::numeric_limits<int32_t>::min();
  for (int32_t t = tokens.begin; t < tokens.end; ++t) {
    const int32_t pos = g.row_list >= 0 ? d.row_entries[g.row_list + t].q_pos : g.q_pos0 + t;
    low = std::min(low, pos);
    high = std::max(high, pos);
  }
  const TokenRange seen = visible_tokens(g, c.spec.variant.range, low, high, g.prefix);
  const int32_t heads = std::min(cut.heads, c.spec.num_kv_heads - kv_head);
  const int32_t splits = std::max(1, std::min(cut.splits, seen.end - seen.begin));
  const int32_t unit = static_cast<int32_t>(d.units.size());
  if (splits > 1 || cut.chunked) {
    d.units.push_back({g.token_begin * group_size + row_begin, rows, kv_head, heads, static_cast<int32_t>(d.entries.size()), 0, 0});
  }
  for (int32_t s = 0; s < splits; ++s) {
    WorkItem item{};
    item.group = group;
    item.row_begin = row_begin;
    item.row_count = static_cast<uint16_t>(rows);
    item.kv_begin = seen.begin + int32_t(int64_t(seen.end - seen.begin) * s / splits);
    item.kv_end = seen.begin + int32_t(int64_t(seen.end - seen.begin) * (s + 1) / splits);
    item.kv_head = static_cast<uint16_t>(kv_head);
    item.kv_head_count = static_cast<uint8_t>(heads);
    item.kernel_class = static_cast<uint8_t>(cut.kernel_class) & 15;
    item.partial_row = -1;
    if (splits > 1 || cut.chunked) {
      item.chunked = cut.chunked;
      item.partial_row = d.scratch_rows;
      item.touch_begin = static_cast<int32_t>(d.touches.size());
      item.touch_count = 1;
      d.touches.push_back(unit);
      PlanHeader h{};
      h.split_tokens = cut.split_tokens;
      for (int32_t i = 0; i < item_partials(h, item); ++i) {
        d.entries.push_back({d.scratch_rows, rows});
        ++d.units.back().entry_count;
        d.scratch_rows += rows * heads;
      }
      ++d.units.back().arrivals;
    }
    d.items[d.dealt++ % cut.ctas].push_back(item);
  }
}

template <class T>
int64_t append(std::vector<uint64_t>& buffer, const T* data, size_t count) {
  const size_t at = buffer.size();
  buffer.resize(at + (count * sizeof(T) + 63) / 64 * 8 + 8);
  if (count > 0) std::memcpy(buffer.data() + at, data, count * sizeof(T));
  return int64_t(at * sizeof(uint64_t));
}

}  // namespace

std::vector<uint64_t> write_plan(const AttendCase& c, const Cut& cut) {
  Draft d;
  d.items.resize(cut.ctas);
  for (int32_t r = 0; r < c.batch.num_requests; ++r) {
    const RowGroup g = group_of(c, r, d);
    d.groups.push_back(g);
    const int32_t rows = g.token_count * c.spec.group_size();
    for (int32_t row = 0; row < rows; row += cut.tile_rows) {
      for (int32_t h = 0; h < c.spec.num_kv_heads; h += cut.heads) {
        cut_tile(c, cut, g, r, row, std::min(cut.tile_rows, rows - row), h, d);
      }
    }
  }
  std::vector<int32_t> cta_indptr{0};
  std::vector<WorkItem> items;
  for (const auto& list : d.items) {
    items.insert(items.end(), list.begin(), list.end());
    cta_indptr.push_back(static_cast<int32_t>(items.size()));
  }
  PlanHeader h{};
  h.magic = kPlanMagic;
  h.version = kPlanVersion;
  h.num_ctas = cut.ctas;
  h.num_groups = static_cast<int32_t>(d.groups.size());
  h.num_row_entries = static_cast<int32_t>(d.row_entries.size());
  h.num_items = static_cast<int32_t>(items.size());
  h.num_units = static_cast<int32_t>(d.units.size());
  h.num_entries = static_cast<int32_t>(d.entries.size());
  h.num_touches = static_cast<int32_t>(d.touches.size());
  h.num_levels = 1;
  h.scratch_rows = d.scratch_rows;
  h.split_tokens = cut.split_tokens;
  h.total_tokens = static_cast<int32_t>(c.tokens());
  for (KernelClass& k : h.classes) {
    k.tile_rows = cut.tile_rows;
    k.heads_per_item = cut.heads;
  }
  std::vector<uint64_t> buffer;
  append(buffer, &h, 1);
  h.groups_offset = append(buffer, d.groups.data(), d.groups.size());
  h.row_entries_offset = append(buffer, d.row_entries.data(), d.row_entries.size());
  h.cta_indptr_offset = append(buffer, cta_indptr.data(), cta_indptr.size());
  h.items_offset = append(buffer, items.data(), items.size());
  h.units_offset = append(buffer, d.units.data(), d.units.size());
  h.entries_offset = append(buffer, d.entries.data(), d.entries.size());
  h.touches_offset = append(buffer, d.touches.data(), d.touches.size());
  h.total_bytes = int64_t(buffer.size() * sizeof(uint64_t));
  std::memcpy(buffer.data(), &h, sizeof h);
  return buffer;
}

Output run(const AttendCase& c, const Cut& cut, Target target, int threads) {
  const std::vector<uint64_t> plan = write_plan(c, cut);
  const PlanView view = view_plan(plan.data());
  const float nan = std::numeric_limits<float>::quiet_NaN();
  std::vector<float> partial_o(int64_t(view.header->scratch_rows) * c.spec.head_dim_vo, nan), partial_lse(view.header->scratch_rows, nan);
  std::vector<uint32_t> counters(view.header->num_units, 0);
  const int64_t arena_bytes = thread_arena_bytes(c.spec, view.header->classes);
  const std::unique_ptr<void, decltype(&std::free)> arena(std::aligned_alloc(64, threads * arena_bytes), &std::free);
  std::memset(arena.get(), 0xff, threads * arena_bytes);
  Output out;
  out.o.assign(c.tokens() * c.params.o_token * size_of(c.spec.o_dtype), 0xff);
  out.lse.assign(c.tokens() * c.params.lse_token, nan);
  AttendParams params = c.params;
  params.o = out.o.data();
  params.lse = out.lse.data();
  ThreadPool pool(threads);
  const Scratch scratch{partial_o.data(), partial_lse.data(), counters.data(), arena.get(), arena_bytes};
  for (int again = 0; again < 2; ++again) attend(c.spec, view, params, scratch, pool, target);  // counters must be zero in between
  if (std::any_of(counters.begin(), counters.end(), [](uint32_t n) { return n != 0; })) out.o.clear();
  return out;
}

Errors compare_with_ref(const AttendCase& c, const Output& out) {
  Errors e{};
  if (out.o.empty() && c.tokens() > 0) return {1, 1, 1, "a counter is not zero after the run"};
  const int32_t heads = c.spec.num_qo_heads, dim = c.spec.head_dim_vo;
  std::vector<ref::Row> rows;
  for (int32_t t = 0; t < c.tokens(); ++t) {
    for (int32_t h = 0; h < heads; ++h) rows.push_back({t, h});
  }
  std::vector<double> o(rows.size() * dim), lse(rows.size());
  ref::attend_rows(c.spec, c.batch, c.params, {rows.data(), int64_t(rows.size())}, o.data(), lse.data());
  double difference = 0, norm = 0;
  for (size_t r = 0; r < rows.size(); ++r) {
    const int64_t at = rows[r].token * c.params.o_token + rows[r].q_head * c.params.o_head;
    double row_difference = 0, row_norm = 0;
    for (int32_t d = 0; d < dim; ++d) {
      const double x = load_as_float(out.o.data(), c.spec.o_dtype, at + d), y = o[r * dim + d];
      if (std::isnan(x)) e.fault = "NaN in token " + std::to_string(rows[r].token) + " head " + std::to_string(rows[r].q_head);
      row_difference += (x - y) * (x - y);
      row_norm += y * y;
    }
    for (int32_t d = dim; d < dim + kRowGap; ++d) {
      for (int b = 0; b < size_of(c.spec.o_dtype); ++b) {
        if (out.o[(at + d) * size_of(c.spec.o_dtype) + b] != 0xff) e.fault = "a byte between output rows was written";
      }
    }
    if (row_norm == 0 && row_difference != 0) e.fault = "an empty row is not zero";
    if (row_norm > 0) e.worst_row = std::max(e.worst_row, std::sqrt(row_difference / row_norm));
    difference += row_difference;
    norm += row_norm;
    const double got = out.lse[rows[r].token * c.params.lse_token + rows[r].q_head];
    if (std::isinf(lse[r]) || std::isinf(got) || std::isnan(got)) {
      if (got != lse[r]) e.fault = "lse: got " + std::to_string(got) + ", wanted " + std::to_string(lse[r]);
    } else {
      e.lse = std::max(e.lse, std::abs(got - lse[r]) / std::max(1.0, std::abs(lse[r])));
    }
  }
  e.whole = norm > 0 ? std::sqrt(difference / norm) : 0.0;
  return e;
}

std::vector<Target> available_targets() {
  std::vector<Target> targets;
  for (int t = 0; t < kNumTargets; ++t) {
    if (is_available(static_cast<Target>(t))) targets.push_back(static_cast<Target>(t));
  }
  return targets;
}

}  // namespace kvloom::cpu::test
