// A plan as text: a summary, then a line a CTA. Of a big plan, the heaviest and the lightest CTAs.
#include "kvloom/plan/describe.h"
#include "kvloom/plan/describe_facts.h"

#include <algorithm>
#include <numeric>

namespace kvloom::plan {
namespace {

constexpr size_t kAllCtas = 32;       // up to so many CTAs are all listed
constexpr size_t kSomeCtas = 8;       // of more, so many from either end
constexpr size_t kBarWidth = 24;      // characters of a full load bar
constexpr size_t kNamedRequests = 8;  // a line

void write_summary(const PlanView& plan, const AttentionSpec& spec, const PlanFacts& facts, std::string& out) {
  const PlanHeader& h = *plan.header;
  const uint64_t ctas = uint64_t(h.num_ctas);
  append(out, "{}: {}, {}, {}/{} heads, {} on {}\n", name_of(h.policy), counted(uint64_t(facts.num_requests), "request"),
         counted(uint64_t(h.total_tokens), "query token"), spec.num_qo_heads, spec.num_kv_heads, counted(uint64_t(h.num_levels), "level"),
         counted(ctas, "CTA"));
  append(out, "  balance    {}: largest load {}, mean {}, smallest {}\n", ratio(facts.largest_load * ctas, facts.total_load),
         grouped(facts.largest_load), grouped((facts.total_load + ctas / 2) / ctas), grouped(facts.smallest_load));
  const auto idle = std::count_if(facts.ctas.begin(), facts.ctas.end(), [](const CtaFacts& c) { return c.items == 0; });
  if (idle > 0)
    append(out, "  idle       {} of {} have nothing to do; balance, mean and smallest load count them\n", idle, counted(ctas, "CTA"));
  uint64_t of_class[2] = {0, 0}, cut = 0, shared = 0, partials = 0;
  for (int64_t i = 0; i < plan.items.size; ++i) {
    ++of_class[plan.items[i].kernel_class & 1];
    cut += facts.items[i].cut_before || facts.items[i].cut_after;
    shared += facts.items[i].shared;
    if (plan.items[i].partial_row >= 0) partials += uint64_t(item_partials(h, plan.items[i]));
  }
  append(out, "  items      {}: {} memory class, {} compute class; {} are parts of a cut tile, {} are shared\n",
         grouped(uint64_t(plan.items.size)), grouped(of_class[0]), grouped(of_class[1]), grouped(cut), grouped(shared));
  int32_t most = 0;
  for (const MergeUnit& u : plan.units) most = std::max(most, u.entry_count);
  append(out, "  merges     {} of {} in {}, at most {} a row\n", counted(uint64_t(plan.units.size), "unit"), counted(partials, "partial"),
         counted(uint64_t(h.scratch_rows), "scratch row"), most);
  if (h.chunk_cap > 0) append(out, "  chunk cap  {}\n", counted(uint64_t(h.chunk_cap), "token"));
  if (h.split_tokens > 0) append(out, "  split      every {}\n", counted(uint64_t(h.split_tokens), "token"));
}

void write_classes(const PlanHeader& h, std::string& out) {
  for (int c = 0; c < 2; ++c) {
    const KernelClass& k = h.classes[c];
    append(out, "  {:<10} {} x {} x {}; cost {} a token, {} a row, {} an item\n", name_of_class(c), counted(uint64_t(k.tile_rows), "row"),
           counted(uint64_t(k.tile_kv), "key"), counted(uint64_t(k.heads_per_item), "head"), k.cost_per_token, k.cost_per_tile_row,
           k.cost_per_item);
  }
}

void write_levels(const PlanView& plan, std::string& out) {
  const int32_t levels = plan.header->num_levels;
  for (int32_t level = 0; level < levels; ++level) {
    uint64_t groups = 0, tokens = 0, keys = 0, longest = 0;
    for (const RowGroup& g : plan.groups) {
      if (g.level != level) continue;
      ++groups;
      tokens += uint64_t(g.token_count);
      keys += uint64_t(g.kv_end - g.kv_begin);
      longest = std::max(longest, uint64_t(g.kv_end - g.kv_begin));
    }
    append(out, "  level {:<4} {}, {}, {} of keys, the longest {}{}\n", level, counted(groups, "group"), counted(tokens, "query token"),
           counted(keys, "token"), grouped(longest),
           level < levels - 1 ? ""
           : levels > 1       ? " (what is not shared)"
                              : "");
  }
}

/// CTAs to list, by number; all of a small plan.
std::vector<int32_t> listed_ctas(const PlanFacts& facts) {
  std::vector<int32_t> order(facts.ctas.size());
  std::iota(order.begin(), order.end(), 0);
  if (order.size() <= kAllCtas) return order;
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return facts.ctas[a].load > facts.ctas[b].load; });
  order.erase(order.begin() + kSomeCtas, order.end() - kSomeCtas);
  std::sort(order.begin(), order.end());
  return order;
}

void write_ctas(const PlanFacts& facts, std::string& out) {
  const std::vector<int32_t> listed = listed_ctas(facts);
  const size_t width = std::max<size_t>(4, grouped(facts.largest_load).size());
  append(out, "\n   CTA  {:>{}}  {:<{}}  items    cut  shared  merges  requests\n", "load", width, "", kBarWidth);
  for (int32_t c : listed) {
    const CtaFacts& cta = facts.ctas[c];
    const size_t bar = facts.largest_load > 0 ? size_t((cta.load * kBarWidth + facts.largest_load / 2) / facts.largest_load) : 0;
    append(out, "{:>6}  {:>{}}  {:<{}}  {:>5}  {:>5}  {:>6}  {:>6} ", c, grouped(cta.load), width, std::string(bar, '#'), kBarWidth,
           cta.items, cta.cut, cta.shared, cta.merges);
    for (size_t i = 0; i < std::min(cta.requests.size(), kNamedRequests); ++i) append(out, " {}", cta.requests[i]);
    if (cta.requests.size() > kNamedRequests) append(out, " +{}", cta.requests.size() - kNamedRequests);
    append(out, "\n");
  }
  if (listed.size() < facts.ctas.size()) {
    append(out, "        the {} heaviest and the {} lightest of {} CTAs\n", kSomeCtas, kSomeCtas, facts.ctas.size());
  }
}

}  // namespace

std::string describe_text(const PlanView& plan, const AttentionSpec& spec) {
  std::string out;
  const PlanFacts facts = facts_of(plan, spec);
  write_summary(plan, spec, facts, out);
  write_classes(*plan.header, out);
  write_levels(plan, out);
  append(out, "  graph key  {:#018x}\n", plan.header->graph_key);
  write_ctas(facts, out);
  return out;
}

}  // namespace kvloom::plan
