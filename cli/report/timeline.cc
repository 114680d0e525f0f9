#include "cli/report/timeline.h"

#include "kvloom/plan/describe.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace kvloom::cli {
namespace {

PlannedItem planned_item(const PlanView& plan, const AttentionSpec& s, int32_t list, int32_t i) {
  const WorkItem& w = plan.items[i];
  const RowGroup& group = plan.groups[w.group];
  const double pairs = double(w.kv_end - w.kv_begin) * w.kv_head_count;
  PlannedItem p;
  p.list = list;
  p.work = w;
  p.request = row_of(plan, group, w.row_begin / s.group_size()).request;
  p.cost = plan::item_cost(plan, w);
  p.bytes = pairs * (s.head_dim_qk + s.head_dim_vo) * size_of(s.kv_dtype);
  p.flop = 2.0 * pairs * w.row_count * (s.head_dim_qk + s.head_dim_vo);
  return p;
}

/// Microseconds since the first CTA began.
class Clock {
 public:
  explicit Clock(const Span<const CtaTimes>& ctas) {
    for (const CtaTimes& c : ctas) {
      if (c.begin > 0 && (begin_ == 0 || c.begin < begin_)) begin_ = c.begin;
    }
  }
  double us(uint64_t ns) const { return ns > begin_ ? double(ns - begin_) * 1e-3 : 0.0; }

 private:
  uint64_t begin_ = 0;
};

void add_items(const TimelineView& times, const PlanView& plan, const Clock& clock, Timeline& t, int32_t cta) {
  const int32_t list = cta / t.cluster;
  double before = clock.us(times.ctas[cta].ready);
  for (int32_t i = plan.cta_indptr[list]; i < plan.cta_indptr[list + 1]; ++i) {
    const ItemTimes& x = times.items[int64_t(i) * t.cluster + cta % t.cluster];
    const double at[4] = {clock.us(x.fed), clock.us(x.attended), clock.us(x.stored), clock.us(x.end)};
    t.items.push_back({i, cta, t.ctas[size_t(cta)].lane, before, at[0], at[1], at[2], at[3], x.merged});
    for (const double next : at) {
      const double ns = (next - before) * 1e3;
      if (ns > 0.5 && (t.step_ns == 0.0 || ns < t.step_ns)) t.step_ns = std::round(ns);
      before = next;
    }
  }
}

}  // namespace

Timeline read_timeline(const std::string& name, const Engine& engine, const Plan& made, const void* memory) {
  const PlanView plan = made.view();
  const TimelineLayout layout = engine.timeline_layout(made);
  const TimelineView times = view_timeline(memory, layout);
  const Clock clock(times.ctas);
  Timeline t;
  t.name = name;
  t.key = made.kernel_key();
  t.on_cpu = engine.backend() == Backend::cpu;
  t.num_lists = plan.header->num_ctas;
  t.cluster = layout.cluster;
  for (int32_t list = 0; list < t.num_lists; ++list) {
    for (int32_t i = plan.cta_indptr[list]; i < plan.cta_indptr[list + 1]; ++i) t.planned.push_back(planned_item(plan, engine.spec(), list, i));
  }
  for (int32_t c = 0; c < layout.num_ctas; ++c) {
    const CtaTimes& cta = times.ctas[c];
    const int32_t lane = t.on_cpu ? cta.place : c;
    t.ctas.push_back({cta.place, lane, clock.us(cta.begin), clock.us(cta.end)});
    t.num_lanes = std::max(t.num_lanes, lane + 1);
    t.kernel_us = std::max(t.kernel_us, t.ctas.back().end);
    add_items(times, plan, clock, t, c);
  }
  double us = 0.0, cost = 0.0;
  for (const TimedItem& x : t.items) us += x.us();
  for (const PlannedItem& p : t.planned) cost += double(p.cost);
  if (cost > 0.0) t.us_per_cost = us / t.cluster / cost;
  return t;
}

std::string words_of(const PlannedItem& p) {
  const WorkItem& w = p.work;
  return fmt::format("request {}, rows {}-{}, KV heads {}-{}, keys [{}, {}){}", p.request, w.row_begin, w.row_begin + w.row_count - 1, w.kv_head,
                     w.kv_head + w.kv_head_count - 1, w.kv_begin, w.kv_end, w.partial_row >= 0 ? ", partial" : "");
}

}  // namespace kvloom::cli
