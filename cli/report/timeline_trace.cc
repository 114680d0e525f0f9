// A timeline as the events of a Chrome trace: complete events ("X"), an item with its parts inside; names of processes and threads beside them.
#include "cli/report/timeline.h"

#include <fmt/format.h>

namespace kvloom::cli {
namespace {

class Trace {
 public:
  void add(const Timeline& t) {
    const int planned = ++pids_, measured = ++pids_;
    name("process_name", planned, 0, t.name + ", planned");
    name("process_name", measured, 0, t.name + ", measured");
    for (int32_t c = 0; c < t.num_lists; ++c) name("thread_name", planned, c, fmt::format("CTA {}", c));
    for (const TimedCta& c : t.ctas) {
      if (!t.on_cpu) name("thread_name", measured, c.lane, fmt::format("CTA {} on SM {}", c.lane, c.place));
    }
    for (int32_t lane = 0; t.on_cpu && lane < t.num_lanes; ++lane) name("thread_name", measured, lane, fmt::format("thread {}", lane));
    add_planned(t, planned);
    add_measured(t, measured);
  }
  std::string whole() { return "{\"displayTimeUnit\": \"ns\", \"traceEvents\": [\n" + text_ + "\n]}\n"; }

 private:
  void line(const std::string& event) { text_ += (text_.empty() ? "" : ",\n") + event; }
  void name(const char* what, int pid, int32_t tid, const std::string& words) {
    line(fmt::format(R"({{"ph": "M", "name": "{}", "pid": {}, "tid": {}, "args": {{"name": {}}}}})", what, pid, tid, nlohmann::json(words).dump()));
  }
  /// `more`: further members of "args", or "".
  void event(int pid, int32_t tid, const char* category, const std::string& words, double begin, double end, const std::string& more = "") {
    line(fmt::format(R"({{"ph": "X", "pid": {}, "tid": {}, "cat": "{}", "name": {}, "ts": {:.3f}, "dur": {:.3f}{}}})", pid, tid, category,
                     nlohmann::json(words).dump(), begin, end - begin, more.empty() ? "" : ", \"args\": {" + more + "}"));
  }
  static std::string arguments(const PlannedItem& p, int64_t item) {
    const WorkItem& w = p.work;
    return fmt::format(R"("item": {}, "request": {}, "rows": {}, "kv_head": {}, "kv_heads": {}, "kv_begin": {}, "kv_end": {}, "partial": {}, "cost": {})", item,
                       p.request, int(w.row_count), int(w.kv_head), int(w.kv_head_count), w.kv_begin, w.kv_end, w.partial_row >= 0, p.cost);
  }

  void add_planned(const Timeline& t, int pid) {
    std::vector<double> at(size_t(t.num_lists), 0.0);
    for (size_t i = 0; i < t.planned.size(); ++i) {
      const PlannedItem& p = t.planned[i];
      double& from = at[size_t(p.list)];
      const double to = from + double(p.cost) * t.us_per_cost;
      event(pid, p.list, kClassNames[p.work.kernel_class], words_of(p), from, to, arguments(p, int64_t(i)));
      from = to;
    }
  }
  void add_measured(const Timeline& t, int pid) {
    for (const TimedItem& x : t.items) {
      const PlannedItem& p = t.planned[size_t(x.item)];
      const char* const kind = kClassNames[p.work.kernel_class];
      event(pid, x.lane, kind, words_of(p), x.begin, x.end, arguments(p, x.item) + fmt::format(R"(, "cta": {}, "merged": {})", x.cta, x.merged));
      event(pid, x.lane, "wait", "wait", x.begin, x.fed);
      event(pid, x.lane, kind, "attend", x.fed, x.attended);
      event(pid, x.lane, "store", "store", x.attended, x.stored);
      if (p.work.partial_row >= 0) event(pid, x.lane, "merge", x.merged > 0 ? fmt::format("merge {}", x.merged) : "arrive", x.stored, x.end);
    }
  }

  std::string text_;
  int pids_ = 0;
};

}  // namespace

std::string chrome_trace(const std::vector<Timeline>& steps) {
  Trace trace;
  for (const Timeline& t : steps) trace.add(t);
  return trace.whole();
}

}  // namespace kvloom::cli
