#include "cli/check/materialise.h"

#include "cli/check/random.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

namespace kvloom::check {
namespace {

// What compare.h states its fp32 bounds for.
constexpr double kOrdinaryLogit = 32.0;
constexpr double kOrdinaryError = 2e-6;  // of fp32 rows; compare.cc
constexpr double kCapError = 3.6e-7;     // relative, of soft_cap * tanh(score / soft_cap) in fp32: measured, at most
constexpr double kOrdinaryKeys = 4096.0;

}  // namespace

CaseData::CaseData(const Case& c) : case_(c) {
  qo_indptr_.push_back(0);
  for (const int32_t n : c.q_len) qo_indptr_.push_back(qo_indptr_.back() + n);
  lists_ = make_page_lists(c);
  make_tables();
  make_groups();
  make_mask();
  make_per_head();
  user_params_.make(case_, positions());
  params_.variant.user = user_params_.bound(case_);
  make_q();
  make_kv();
  make_outputs();
  find_kept();
  fill_kv();
  free_unseen_pages();
  fill_batch();
}

void CaseData::make_tables() {
  table_ = make_page_table(case_, lists_);
  kv_len64_.assign(case_.kv_len.begin(), case_.kv_len.end());
  // An empty batch still gives its arrays: a null pointer would mean "not given".
  kv_len64_.reserve(1);
  case_.kv_len.reserve(1);
  table_.list_indptr.reserve(1);
  table_.pages.reserve(1);
  list_indptr32_.reserve(1);
  pages32_.reserve(1);
}

void CaseData::make_groups() {
  for (const CaseGroup& g : case_.groups) {
    LevelGroup out;
    out.level = g.level;
    out.list_begin = (case_.spec.storage == Storage::ragged ? lists_.lists[g.list][0] : table_.list_indptr[g.list]) + g.list_skip;
    out.kv_begin = g.kv_begin;
    out.kv_end = g.kv_end;
    out.kv_pos0 = g.kv_pos0;
    out.kv_index0 = g.kv_index0;
    out.kv_head = g.kv_head;
    groups_.push_back(out);
  }
  for (size_t g = 0; g < groups_.size(); ++g) groups_[g].tokens = {case_.groups[g].tokens.data(), int64_t(case_.groups[g].tokens.size())};
}

// Row q_index of a tree draft sees the context and its ancestors: token i hangs on a random one of tokens 0 .. i-1, or on the context.
void CaseData::make_mask() {
  if (case_.mask == MaskKind::none) return;
  std::vector<uint8_t> bits;
  mask_indptr_.push_back(0);
  for (int32_t r = 0; r < case_.num_requests(); ++r) {
    const int64_t rows = case_.q_len[r], columns = case_.kv_len[r], first = int64_t(bits.size()) * 8;
    mask_columns_.push_back(int32_t(columns));
    bits.resize(bits.size() + (rows * columns + 7) / 8, 0);
    auto set = [&](int64_t row, int64_t column) {
      const int64_t bit = first + row * columns + column;
      bits[bit / 8] |= uint8_t(1u << (bit % 8));
    };
    for (int64_t i = 0; i < rows; ++i) {
      const uint64_t line = stream_bits(case_.seed, Stream::mask, r * (int64_t(1) << 24) + i);
      if (case_.mask == MaskKind::empty_rows && line % 2 == 0) continue;
      if (case_.mask == MaskKind::corner) {
        for (int64_t j = 0; j < columns / 2 && i < rows / 2; ++j) set(i, j);
        continue;
      }
      if (case_.mask == MaskKind::tree) {
        for (int64_t j = 0; j < columns - rows; ++j) set(i, j);
        for (int32_t t = int32_t(i); t >= 0; t = tree_parent(case_, r, t)) {
          if (columns - rows + t >= 0) set(i, columns - rows + t);
        }
        continue;
      }
      if (case_.mask == MaskKind::stripes) {
        for (int64_t j = 0; j < columns; ++j) {
          if (j / 64 % 3 != 1) set(i, j);
        }
        continue;
      }
      for (int64_t j = 0; j < columns; ++j) {
        if (int32_t(mix64(line + j) % 100) < case_.mask_percent) set(i, j);
      }
    }
    for (int64_t bit = rows * columns; bit < (rows * columns + 7) / 8 * 8; ++bit) set(0, bit);  // the last byte's rest says "keep"
    mask_indptr_.push_back(int64_t(bits.size()));
  }
  mask_ = GuardedBuffer(int64_t(bits.size()));
  std::copy(bits.begin(), bits.end(), mask_.as<uint8_t>());
}

void CaseData::make_per_head() {
  const int32_t heads = case_.spec.num_qo_heads, kv_heads = case_.spec.num_kv_heads;
  if (case_.spec.variant.alibi) {
    alibi_ = GuardedBuffer(heads * 4);
    for (int32_t h = 0; h < heads; ++h)
      alibi_.as<float>()[h] = float(1 + stream_bits(case_.seed, Stream::alibi, h) % 32) / 64.0f * case_.alibi_gain;
  }
  if (case_.spec.variant.sink) {
    sink_ = GuardedBuffer(heads * 4);
    for (int32_t h = 0; h < heads; ++h) sink_.as<float>()[h] = 2.0f * stream_value(case_.seed, Stream::sink, h);
  }
  if (!case_.scale_per_head) return;
  k_scales_ = GuardedBuffer(kv_heads * 4);
  v_scales_ = GuardedBuffer(kv_heads * 4);
  for (int32_t h = 0; h < kv_heads; ++h) {
    const uint64_t bits = stream_bits(case_.seed, Stream::scale, h);
    k_scales_.as<float>()[h] = case_.k_scale * (1.0f + float(bits % 1024) / 1024.0f);
    v_scales_.as<float>()[h] = case_.v_scale * (1.0f + float(bits / 1024 % 1024) / 1024.0f);
  }
}

int64_t CaseData::position(int32_t request, int64_t q_index, int64_t kv_len) const {
  if (!case_.q_pos.empty()) return case_.q_pos[qo_indptr_[request] + q_index];
  if (!case_.q_pos0.empty()) return case_.q_pos0[request] + q_index;
  return kv_len - case_.q_len[request] + q_index;
}

bool CaseData::in_range(int64_t q_pos, int64_t kv_pos, int64_t prefix) const {
  const KeyRange& r = case_.spec.variant.range;
  if (kv_pos < prefix) return true;
  return !(r.causal && kv_pos > q_pos) && !(r.left >= 0 && kv_pos < q_pos - r.left) && !(r.right >= 0 && kv_pos > q_pos + r.right);
}

bool CaseData::mask_keeps(int32_t request, int64_t q_index, int64_t column) const {
  if (case_.mask == MaskKind::none) return true;
  const int64_t bit = q_index * mask_columns_[request] + column;
  return mask_.as<uint8_t>()[mask_indptr_[request] + bit / 8] >> (bit % 8) & 1;
}

/// Some q head of the KV head keeps the key.
bool CaseData::user_keeps(Coord at) const {
  const UserVariant* const user = case_.spec.variant.user;
  if (user == nullptr || user->keep == nullptr) return true;
  for (int32_t i = 0; i < case_.spec.group_size(); ++i) {
    at.q_head = at.kv_head * case_.spec.group_size() + i;
    if (user->keep(at, params_.variant)) return true;
  }
  return false;
}

/// A slope hook says what logit() is, and GPUs compute by it: as they call it, before any key is known.
void CaseData::check_slope(Coord at) {
  const UserVariant* const user = case_.spec.variant.user;
  if (user == nullptr || user->slope == nullptr || !slope_fault_.empty()) return;
  constexpr float kScore = 0.75f;
  constexpr double kRounding = 1e-6;  // of fp32: of a product and a sum
  for (int32_t i = 0; i < case_.spec.group_size(); ++i) {
    at.q_head = at.kv_head * case_.spec.group_size() + i;
    const float slope = user->slope({at.request, at.q_index, at.q_pos, 0, 0, at.q_head, at.kv_head}, params_.variant);
    const double bias = double(slope) * (double(at.kv_pos) - at.q_pos), want = kScore + bias, got = user->logit(kScore, at, params_.variant);
    if (std::fabs(got - want) <= kRounding * (kScore + std::fabs(bias))) continue;
    slope_fault_ = fmt::format("variant: slope and logit don't agree: at kv_pos {}, q_pos {}, query head {} slope is {}, and logit makes {:.9g} of a score of {}, wanted score + slope * (kv_pos - q_pos) = {:.9g}; "
                               "GPUs compute by slope: mend one of the two, or leave slope out",
                               at.kv_pos, at.q_pos, at.q_head, slope, got, kScore, want);
    return;
  }
}

/// One more than the largest position of a query or a key.
int64_t CaseData::positions() const {
  int64_t most = 0;
  for (const int32_t n : case_.kv_len) most = std::max<int64_t>(most, n);
  for (size_t r = 0; r < case_.q_pos0.size(); ++r) most = std::max<int64_t>(most, int64_t(case_.q_pos0[r]) + case_.q_len[r]);
  for (const int32_t p : case_.q_pos) most = std::max<int64_t>(most, int64_t(p) + 1);
  for (const CaseGroup& g : case_.groups) most = std::max<int64_t>(most, int64_t(g.kv_pos0) + g.kv_end);
  for (const auto& list : lists_.page_pos) {
    for (const auto p : list) most = std::max<int64_t>(most, int64_t(p) + case_.page_size());
  }
  if (case_.kv_position == KvPosition::page_id) most = std::max(most, lists_.num_pages * case_.page_size());
  return most;
}

void CaseData::find_kept() {
  const int32_t heads = case_.spec.num_kv_heads, page_size = case_.page_size();
  const bool ragged = case_.spec.storage == Storage::ragged;
  kept_.assign(size_t(lists_.num_pages * page_size * heads), 0);
  // One list of a request, seen by one token, for KV heads [head_begin, head_end).
  auto mark = [&](int32_t request, int64_t q_index, int64_t q_pos, const CaseGroup& g, int32_t head_begin, int32_t head_end) {
    const int64_t prefix = case_.prefix.empty() ? 0 : case_.prefix[request];
    const std::vector<int64_t>& list = lists_.lists[g.list];
    for (int64_t j = g.kv_begin; j < g.kv_end; ++j) {
      const int64_t entry = g.list_skip + j / page_size, slot = j % page_size;
      const int64_t page = ragged ? list[0] + entry : list[entry];
      int64_t pos = g.kv_pos0 + j;
      if (case_.kv_position == KvPosition::page_table) pos = lists_.page_pos[g.list][entry] + slot;
      if (case_.kv_position == KvPosition::page_id) pos = page * page_size + slot;
      if (!in_range(q_pos, pos, prefix) || !mask_keeps(request, q_index, g.kv_index0 + j)) continue;
      const Coord at{request, int32_t(q_index), int32_t(q_pos), int32_t(g.kv_index0 + j), int32_t(pos), 0, 0};
      for (int32_t h = head_begin; h < head_end; ++h) {
        const Coord pair{at.request, at.q_index, at.q_pos, at.kv_index, at.kv_pos, 0, h};
        if (!user_keeps(pair)) continue;
        kept_[(page * page_size + slot) * heads + h] = 1;
        check_slope(pair);
      }
    }
  };
  for (const CaseGroup& g : case_.groups) {
    for (const int32_t token : g.tokens) {
      const int32_t r = int32_t(std::upper_bound(qo_indptr_.begin(), qo_indptr_.end(), token) - qo_indptr_.begin()) - 1;
      const int64_t i = token - qo_indptr_[r];
      mark(r, i, position(r, i, case_.kv_len[r]), g, std::max(g.kv_head, 0), g.kv_head < 0 ? heads : g.kv_head + 1);
    }
  }
  if (!case_.groups.empty()) return;
  const int32_t lists_a_request = case_.lists_per_kv_head ? heads : 1;
  for (int32_t l = 0; l < int32_t(case_.kv_len.size()); ++l) {
    const int32_t r = l / lists_a_request, h = l % lists_a_request;
    CaseGroup g;
    g.list = l;
    g.kv_end = case_.kv_len[l];
    for (int64_t i = 0; i < case_.q_len[r]; ++i) {
      mark(r, i, position(r, i, case_.kv_len[l]), g, h, case_.lists_per_kv_head ? h + 1 : heads);
    }
  }
}

// Engines free the pages that have left every row's window, and what stands in the table then is anything.
void CaseData::free_unseen_pages() {
  const bool lists_are_seen_as_a_whole =
      case_.spec.storage == Storage::ragged || case_.kv_position != KvPosition::linear || !case_.prefix.empty() || !case_.groups.empty();
  if (lists_are_seen_as_a_whole) return;
  const int32_t lists_a_request = case_.lists_per_kv_head ? case_.spec.num_kv_heads : 1;
  const int64_t page_size = case_.page_size();
  for (size_t l = 0; l < case_.kv_len.size(); ++l) {
    const int32_t r = int32_t(l) / lists_a_request;
    int64_t begin = case_.kv_len[l], end = 0;  // hull of the positions that some row's range keeps
    for (int64_t i = 0; i < case_.q_len[r]; ++i) {
      const int64_t p = position(r, i, case_.kv_len[l]);
      for (int64_t j = 0; j < case_.kv_len[l]; ++j) {
        if (!in_range(p, j, 0)) continue;
        begin = std::min(begin, j);
        end = std::max(end, j + 1);
      }
    }
    for (int64_t e = 0; e < int64_t(lists_.lists[l].size()); ++e) {
      if ((e + 1) * page_size <= begin || e * page_size >= end) table_.pages[table_.list_indptr[l] + e] = kNoPage;
    }
  }
}

Capacity CaseData::capacity() const {
  Capacity c;
  const int32_t slack = case_.capacity_slack;
  c.max_requests = case_.num_requests() + slack;
  c.max_query_tokens = case_.total_tokens() + 16 * slack;
  c.max_kv_tokens = std::max<int64_t>(1, case_.total_kv_tokens() + 16 * slack);  // 0 would mean "not bounded"
  int64_t group_tokens = 0, group_kv = 0;
  for (const CaseGroup& g : case_.groups) {
    group_tokens += int64_t(g.tokens.size());
    group_kv += int64_t(g.kv_end - g.kv_begin);
  }
  if (!case_.groups.empty()) {
    c.max_level_rows = group_tokens;
    c.max_kv_tokens = std::max(c.max_kv_tokens, group_kv);
  }
  if (!case_.shared.empty()) c.max_level_rows = std::max(c.max_level_rows, 4 * case_.total_tokens());
  return c;
}

void CaseData::reference(std::vector<double>& o, std::vector<double>& lse, std::vector<double>* spread,
                         std::vector<ref::Rounding>* rounding) const {
  std::vector<ref::Row> rows;
  for (int64_t t = 0; t < case_.total_tokens(); ++t) {
    for (int32_t h = 0; h < case_.spec.num_qo_heads; ++h) rows.push_back({int32_t(t), h});
  }
  o.assign(rows.size() * case_.spec.head_dim_vo, 0.0);
  lse.assign(rows.size(), 0.0);
  if (spread) spread->assign(rows.size(), 0.0);
  if (rounding) rounding->assign(rows.size(), {});
  ref::attend_rows(case_.spec, batch_, params_, {rows.data(), int64_t(rows.size())}, o.data(), lse.data(),
                   spread ? spread->data() : nullptr, rounding ? rounding->data() : nullptr);
}

std::vector<double> CaseData::fp32_growth(const std::vector<double>& spread) const {
  const AttentionSpec& s = case_.spec;
  auto norm = [](const void* data, DType type, int64_t at, int32_t dim) {
    double sum = 0.0;
    for (int32_t d = 0; d < dim; ++d) sum += double(load_as_float(data, type, at + d)) * load_as_float(data, type, at + d);
    return std::sqrt(sum);
  };
  const KvView& kv = params_.kv;
  const int64_t heads = s.num_kv_heads, page_size = case_.page_size();
  std::vector<double> longest_key(size_t(heads), 0.0);
  for (int64_t i = 0; i < int64_t(kept_.size()); ++i) {
    if (!kept_[i]) continue;
    const int64_t h = i % heads, slot = i / heads % page_size, page = i / heads / page_size;
    longest_key[h] = std::max(longest_key[h], norm(kv.k, s.kv_dtype, page * kv.k_page + slot * kv.k_token + h * kv.k_head, s.head_dim_qk));
  }
  const ScaleParams& scale = params_.variant.scale;
  const double sm_scale = s.sm_scale != 0.0f ? double(s.sm_scale) : 1.0 / std::sqrt(double(s.head_dim_qk));
  const int32_t longest_list = case_.kv_len.empty() ? 0 : *std::max_element(case_.kv_len.begin(), case_.kv_len.end());
  const double by_length = std::sqrt(std::max(1.0, longest_list / kOrdinaryKeys));
  std::vector<double> growth;
  for (int64_t t = 0; t < case_.total_tokens(); ++t) {
    for (int32_t h = 0; h < s.num_qo_heads; ++h) {
      const int32_t g = h / s.group_size();
      const double factor = sm_scale * scale.q * (scale.k_per_head ? scale.k_per_head[g] : scale.k);
      const double logit = factor * longest_key[g] * norm(params_.q, s.q_dtype, t * params_.q_token + h * params_.q_head, s.head_dim_qk);
      double grown = by_length * std::max(1.0, logit / kOrdinaryLogit);
      // A capped logit is off by what tanh in fp32 is off by, and a weight by as much; a row of few keys has nothing to average.
      if (s.variant.soft_cap > 0.0f) grown += kCapError * std::min(logit, double(s.variant.soft_cap)) / kOrdinaryError;
      if (!spread.empty()) grown += spread[growth.size()] / kOrdinaryError;  // what a user's hook makes of roundings
      growth.push_back(grown);
    }
  }
  return growth;
}

}  // namespace kvloom::check
