#include "cli/check/sabotage.h"

#include "kvloom/support/check.h"

#include <fmt/format.h>

#include <cmath>

namespace kvloom::check {
namespace {

struct Entry {
  Sabotage sabotage;
  const char* word;
};
constexpr Entry kEntries[] = {
    {Sabotage::none, "none"},
    {Sabotage::drop_item, "drop-item"},
    {Sabotage::empty_item, "empty-item"},
    {Sabotage::short_item, "short-item"},
    {Sabotage::swap_merge, "swap-merge"},
    {Sabotage::window_off_by_one, "window-off-by-one"},
    {Sabotage::causal_off_by_one, "causal-off-by-one"},
    {Sabotage::wrong_page, "wrong-page"},
    {Sabotage::dropped_scale, "dropped-scale"},
    {Sabotage::dropped_soft_cap, "dropped-soft-cap"},
    {Sabotage::lse_base_2, "lse-base-2"},
};

// A plan is read-only by contract; here it is changed on purpose. The memory itself is the engine's own and writable.
template <class T>
T* writable(Span<const T> s) {
  return const_cast<T*>(s.data);
}

bool drop_last_item(const PlanView& plan) {
  int32_t* indptr = writable(plan.cta_indptr);
  for (int32_t cta = plan.header->num_ctas - 1; cta >= 0; --cta) {
    if (indptr[cta + 1] == indptr[cta]) continue;
    for (int32_t i = cta + 1; i <= plan.header->num_ctas; ++i) --indptr[i];
    return true;
  }
  return false;
}

bool shorten_item(const PlanView& plan, bool all_keys) {
  for (int64_t i = plan.items.size - 1; i >= 0; --i) {
    WorkItem& item = writable(plan.items)[i];
    if (item.kv_end <= item.kv_begin || item.chunked) continue;
    item.kv_end = all_keys ? item.kv_begin : item.kv_end - 1;
    return true;
  }
  return false;
}

bool swap_entries(const PlanView& plan) {
  MergeEntry* entries = writable(plan.entries);
  for (int64_t a = 0; a < plan.units.size; ++a) {
    for (int64_t b = a + 1; b < plan.units.size; ++b) {
      const MergeUnit &ua = plan.units[a], &ub = plan.units[b];
      if (ua.row_count != ub.row_count || ua.kv_head_count != ub.kv_head_count || ua.entry_count == 0 || ub.entry_count == 0) continue;
      MergeEntry &ea = entries[ua.entry_begin], &eb = entries[ub.entry_begin];
      if (ea.partial_row == eb.partial_row || ea.head_stride != eb.head_stride) continue;
      std::swap(ea.partial_row, eb.partial_row);
      return true;
    }
  }
  return false;
}

}  // namespace

const char* word_of(Sabotage s) {
  for (const Entry& e : kEntries) {
    if (e.sabotage == s) return e.word;
  }
  return "?";
}

std::vector<std::string> sabotage_words() {
  std::vector<std::string> words;
  for (const Entry& e : kEntries) words.push_back(e.word);
  return words;
}

Sabotage parse_sabotage(const std::string& word) {
  for (const Entry& e : kEntries) {
    if (word == e.word) return e.sabotage;
  }
  fail(ErrorCode::invalid_argument, "check: --inject: got '{}', wanted one of {}", word, fmt::join(sabotage_words(), ", "));
}

std::vector<Sabotage> all_sabotages() {
  std::vector<Sabotage> all;
  for (const Entry& e : kEntries) {
    if (e.sabotage != Sabotage::none) all.push_back(e.sabotage);
  }
  return all;
}

bool spoil_plan(Sabotage s, const Plan& plan) {
  switch (s) {
    case Sabotage::drop_item:
      return drop_last_item(plan.view());
    case Sabotage::empty_item:
      return shorten_item(plan.view(), true);
    case Sabotage::short_item:
      return shorten_item(plan.view(), false);
    case Sabotage::swap_merge:
      return swap_entries(plan.view());
    default:
      return false;
  }
}

bool spoil_case(Sabotage s, Case& c) {
  KeyRange& range = c.spec.variant.range;
  if (s == Sabotage::window_off_by_one && range.left >= 0) {
    ++range.left;
    return true;
  }
  if (s == Sabotage::dropped_soft_cap && c.spec.variant.soft_cap > 0.0f) {
    c.spec.variant.soft_cap = 0.0f;
    return true;
  }
  return false;
}

bool spoil_inputs(Sabotage s, const CaseData& data, SpoiledInputs& storage, Batch& batch, RunTensors& tensors) {
  const Case& c = data.what();
  if (s == Sabotage::dropped_scale) {
    if (!is_fp8(c.spec.kv_dtype)) return false;
    tensors.scale.k = tensors.scale.v = 1.0f;
    tensors.scale.k_per_head = tensors.scale.v_per_head = nullptr;
    return c.k_scale != 1.0f || c.v_scale != 1.0f || c.scale_per_head;
  }
  if (s == Sabotage::causal_off_by_one) {
    if (!c.spec.variant.range.causal || c.lists_per_kv_head) return false;
    for (int32_t r = 0; r < c.num_requests(); ++r) {
      for (int32_t i = 0; i < c.q_len[size_t(r)]; ++i) {
        int32_t pos = c.kv_len[size_t(r)] - c.q_len[size_t(r)] + i;
        if (!c.q_pos0.empty()) pos = c.q_pos0[size_t(r)] + i;
        if (!c.q_pos.empty()) pos = c.q_pos[storage.q_pos.size()];
        storage.q_pos.push_back(pos - 1);
      }
    }
    batch.q_pos0 = nullptr;
    batch.q_pos = storage.q_pos.data();
    return !storage.q_pos.empty();
  }
  if (s == Sabotage::wrong_page) {
    // The last page id that is one becomes the id of another page of the pool: of the next request's, or one that nobody filled.
    for (int64_t e = 0; e < batch.pages.size; ++e) storage.pages.push_back(batch.pages[e]);
    for (int64_t e = int64_t(storage.pages.size()) - 1; e >= 0; --e) {
      if (storage.pages[size_t(e)] == kNoPage) continue;
      const int64_t pages = data.params().kv.num_pages;
      storage.pages[size_t(e)] = (storage.pages[size_t(e)] + 1) % pages;
      tensors.pages = IndexView(storage.pages.data(), int64_t(storage.pages.size()));
      return pages > 1;
    }
  }
  return false;
}

bool spoil_output(Sabotage s, std::vector<float>& lse) {
  if (s != Sabotage::lse_base_2) return false;
  bool changed = false;
  for (float& x : lse) {
    changed = changed || (std::isfinite(x) && x != 0.0f);
    x *= 1.4426950408889634f;
  }
  return changed;
}

}  // namespace kvloom::check
