// What the three descriptions of a plan have in common: facts of its items and CTAs, and numbers as text, in integers. Private to the room.
#pragma once

#include "kvloom/contract/plan_format.h"
#include "kvloom/contract/spec.h"
#include "kvloom/support/format.h"

#include <string>
#include <vector>

namespace kvloom::plan {

struct ItemFacts {
  uint64_t cost = 0;
  int32_t request = -1;     // the first request among its rows
  bool shared = false;      // of a level before the last
  bool cut_before = false;  // other items take keys of the same rows before its first
  bool cut_after = false;   // ... and after its last
  int32_t merges = 0;       // units whose last entry it writes: where a merge is drawn
};

struct CtaFacts {
  uint64_t load = 0;
  int32_t items = 0;
  int32_t cut = 0;     // items that are part of a cut tile
  int32_t shared = 0;  // items of shared levels
  int32_t merges = 0;
  std::vector<int32_t> requests;  // in order of appearance, each once; of shared items the first request
};

struct PlanFacts {
  std::vector<ItemFacts> items;
  std::vector<CtaFacts> ctas;
  std::vector<int32_t> entry_item;  // [entries] the item whose partial it is; -1: none (not a sound plan)
  int32_t num_requests = 0;         // with query tokens
  uint64_t smallest_load = 0;
  uint64_t largest_load = 0;
  uint64_t total_load = 0;
};

PlanFacts facts_of(const PlanView& plan, const AttentionSpec& spec);

inline const char* name_of_class(int32_t kernel_class) { return kernel_class == 0 ? "memory" : "compute"; }

/// out += format(...)
template <class... Args>
void append(std::string& out, fmt::format_string<Args...> format_string, Args&&... args) {
  out += format_erased(format_string, fmt::make_format_args(args...));
}

/// 1234567 -> "1,234,567".
std::string grouped(uint64_t n);
/// a / b with three decimals, rounded to nearest; "1.000" if b is 0.
std::string ratio(uint64_t a, uint64_t b);
/// "1 item", "2 items", "1,000 items".
std::string counted(uint64_t n, const char* noun);

}  // namespace kvloom::plan
