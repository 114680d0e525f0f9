// A timeline in numbers: how much of the kernel its items are, how even the CTAs were, and how well the planner's costs tell what items take.
#include "cli/report/timeline.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace kvloom::cli {
namespace {

double over(double a, double b) { return b > 0.0 ? a / b : 0.0; }

/// The largest over the mean; 1 where there is nothing.
double balance_of(const std::vector<double>& loads) {
  double sum = 0.0, most = 0.0;
  for (const double x : loads) sum += x, most = std::max(most, x);
  return sum > 0.0 ? most * double(loads.size()) / sum : 1.0;
}

/// Pearson's, of all pairs that were added.
struct Correlation {
  double n = 0, x = 0, y = 0, xx = 0, yy = 0, xy = 0;
  void add(double a, double b) { n += 1, x += a, y += b, xx += a * a, yy += b * b, xy += a * b; }
  double value() const {
    const double vx = n * xx - x * x, vy = n * yy - y * y;
    if (n < 3 || vx <= 1e-9 * n * xx || vy <= 1e-9 * n * yy) return std::numeric_limits<double>::quiet_NaN();
    return (n * xy - x * y) / std::sqrt(vx * vy);
  }
};

void sum_up_class(const Timeline& t, int32_t number, ClassTimes& c) {
  Correlation with_cost;
  double cost = 0.0, bytes = 0.0, flop = 0.0;
  for (const TimedItem& x : t.items) {
    const PlannedItem& p = t.planned[size_t(x.item)];
    if (p.work.kernel_class != number) continue;
    ++c.items;
    c.us += x.us();
    cost += double(p.cost);
    bytes += p.bytes / t.cluster;
    flop += p.flop / t.cluster;
    with_cost.add(double(p.cost), x.us());
  }
  c.correlation = with_cost.value();
  c.ns_per_cost = over(c.us * 1e3, cost);
  c.bytes_per_ns = over(bytes, c.us * 1e3);
  c.flop_per_ns = over(flop, c.us * 1e3);
}

nlohmann::ordered_json to_json(const ClassTimes& c, const Timeline& t) {
  nlohmann::ordered_json j{{"items", c.items / t.cluster}, {"mean_us", over(c.us, double(c.items))}};
  j["cost_correlation"] = std::isfinite(c.correlation) ? nlohmann::ordered_json(c.correlation) : nlohmann::ordered_json();
  j["ns_per_cost"] = c.ns_per_cost;
  j["bytes_per_ns"] = c.bytes_per_ns;
  j["flop_per_ns"] = c.flop_per_ns;
  return j;
}

}  // namespace

TimelineSummary summarise(const Timeline& t) {
  TimelineSummary s;
  std::vector<double> lanes(size_t(t.num_lanes), 0.0), lists(size_t(t.num_lists), 0.0);
  double all = 0.0, there = 0.0;
  for (const TimedItem& x : t.items) {
    lanes[size_t(x.lane)] += x.us();
    all += x.us();
    s.merged += x.merged;
    s.wait += x.fed - x.begin;
    s.attend += x.attended - x.fed;
    s.store += x.stored - x.attended;
    s.merge += x.end - x.stored;
  }
  for (const PlannedItem& p : t.planned) lists[size_t(p.list)] += double(p.cost);
  for (const TimedCta& c : t.ctas) there += c.end - c.begin;
  for (double* share : {&s.wait, &s.attend, &s.store, &s.merge}) *share = over(*share, all);
  if (!lanes.empty()) {
    const auto [least, most] = std::minmax_element(lanes.begin(), lanes.end());
    s.least = over(*least, t.kernel_us);
    s.most = over(*most, t.kernel_us);
    s.mean = over(all, t.kernel_us * double(lanes.size()));
  }
  s.within = over(all, there);
  s.planned_balance = balance_of(lists);
  s.measured_balance = balance_of(lanes);
  for (int32_t i = 0; i < 2; ++i) sum_up_class(t, i, s.classes[i]);
  return s;
}

nlohmann::ordered_json to_json(const Timeline& t, const TimelineSummary& s) {
  nlohmann::ordered_json j{{"kernel_us", t.kernel_us},
                           {t.on_cpu ? "threads" : "ctas", t.num_lanes},
                           {"cluster", t.cluster},
                           {"items", t.planned.size()},
                           {"merged_units", s.merged},
                           {"coverage", {{"mean", s.mean}, {"max", s.most}, {"min", s.least}, {"within_ctas", s.within}}},
                           {"balance", {{"planned", s.planned_balance}, {"measured", s.measured_balance}}},
                           {"shares", {{"wait", s.wait}, {"attend", s.attend}, {"store", s.store}, {"merge", s.merge}}},
                           {"clock_step_ns", t.step_ns}};
  for (int32_t i = 0; i < 2; ++i) {
    if (s.classes[i].items > 0) j["classes"][kClassNames[i]] = to_json(s.classes[i], t);
  }
  return j;
}

std::string to_text(const Timeline& t, const TimelineSummary& s) {
  return fmt::format("kernel {:.1f} us; items cover {:.1f} % of {} {}{} ({:.1f} % of the fullest); balance {:.3f} planned, {:.3f} measured", t.kernel_us,
                     100 * s.mean, t.num_lanes, t.on_cpu ? "thread" : "CTA", t.num_lanes == 1 ? "" : "s", 100 * s.most, s.planned_balance,
                     s.measured_balance);
}

}  // namespace kvloom::cli
