// A timeline as a picture: a panel of planned lanes above one of measured lanes, microseconds to the right, colours by what is done. Planned costs are
// drawn in the scale in which all items are as long together as they took. The panels share their axis, but for a CPU's, where a thread does many CTAs.
#include "cli/report/timeline.h"

#include "kvloom/plan/describe_svg_style.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace kvloom::cli {
namespace {

using namespace kvloom::plan;  // the style of a plan's picture

constexpr const char* kWait = "#cbd5e1";
constexpr const char* kAttend[2] = {"#3b82f6", "#f59e0b"};  // by class
constexpr const char* kStore = "#0d9488";
constexpr const char* kMerge = "#be185d";
constexpr const char* kMark = "#dc2626";
constexpr int64_t kHeading = 8800, kPanelTop = 4200, kPanelBottom = 3600, kLegend = 4200;

std::string escaped(const std::string& words) {
  std::string out;
  for (const char c : words) out += c == '&' ? "&amp;" : c == '<' ? "&lt;" : c == '>' ? "&gt;" : std::string(1, c);
  return out;
}

/// Nanoseconds of an axis as microseconds: 1500 -> "1.5".
std::string microseconds(uint64_t ns) {
  std::string s = fmt::format("{}.{:03}", ns / 1000, ns % 1000);
  s.erase(s.find_last_not_of('0') + 1);
  if (s.back() == '.') s.pop_back();
  return s;
}

class Section {
 public:
  Section(const Timeline& t, int64_t top) : t_(t), summary_(summarise(t)), y_(top), titled_(int64_t(t.planned.size() + t.items.size()) <= kTitledItems) {
    measured_ = lanes_for(t.num_lanes);
    planned_ = lanes_for(t.num_lists);
    if (!t.on_cpu) planned_ = {measured_.pitch * t.cluster, measured_.pitch * t.cluster - (measured_.pitch - measured_.height), planned_.label_every};
    std::vector<double> loads(size_t(t.num_lists), 0.0);
    for (const PlannedItem& p : t.planned) loads[size_t(p.list)] += double(p.cost) * t.us_per_cost;
    for (const double us : loads) planned_us_ = std::max(planned_us_, us), mean_us_ += us / double(loads.size());
    if (!t.on_cpu) planned_us_ = std::max(planned_us_, t.kernel_us);
  }

  /// Appends the section; returns where the next one begins.
  int64_t draw(std::string& out) {
    heading();
    span_ = std::max(planned_us_, 1e-3);
    panel("planned", planned_, t_.num_lists, [&] { draw_planned(); });
    mark(mean_us_, "mean");
    if (t_.on_cpu) span_ = std::max(t_.kernel_us, 1e-3);
    panel("measured", measured_, t_.num_lanes, [&] { draw_measured(); });
    mark(t_.kernel_us, "kernel");
    legend();
    out += text_;
    return y_;
  }

 private:
  template <class... Args>
  void add(fmt::format_string<Args...> form, Args&&... args) {
    fmt::format_to(std::back_inserter(text_), form, std::forward<Args>(args)...);
  }
  int64_t x_of(double us) const { return kGutter + int64_t(std::llround(us / span_ * double(kPlotWidth))); }
  void words(int64_t x, int64_t y, int64_t size, const char* anchor, const char* fill, const std::string& what, const char* more = "") {
    add("<text x=\"{}\" y=\"{}\" font-size=\"{}\" text-anchor=\"{}\" fill=\"{}\"{}>{}</text>\n", px(x), px(y), px(size), anchor, fill, more, escaped(what));
  }
  void box(double from, double to, int64_t y, int64_t height, const char* fill) {
    const int64_t x = x_of(from), width = x_of(to) - x;
    if (width > 2) add("<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" fill=\"{}\"/>", px(x), px(y), px(width), px(height), fill);
  }

  void heading() {
    words(kGutter, y_ + 3200, 2000, "start", kInk, t_.name, " font-weight=\"600\"");
    words(kGutter, y_ + 5300, 1250, "start", kSoftInk, t_.key + "; " + to_text(t_, summary_));
    words(kGutter, y_ + 7100, 1250, "start", kSoftInk,
          fmt::format("sum of items / ({}s x kernel time) = {:.3f}; of that time {:.1f} % waiting, {:.1f} % attending, {:.1f} % storing, {:.1f} % arriving and merging "
                      "({} units); clock steps of {:.0f} ns",
                      t_.on_cpu ? "thread" : "CTA", summary_.mean, 100 * summary_.wait, 100 * summary_.attend, 100 * summary_.store, 100 * summary_.merge,
                      summary_.merged, t_.step_ns));
    y_ += kHeading;
  }

  template <class Draw>
  void panel(const char* title, const Lanes& lanes, int32_t count, Draw draw) {
    words(kGutter - 900, y_ + kPanelTop - 900, 1100, "end", kSoftInk, t_.on_cpu && &lanes == &measured_ ? "thread" : "CTA");
    words(kGutter, y_ + kPanelTop - 2600, 1400, "start", kInk, title, " font-weight=\"600\"");
    top_ = y_ + kPanelTop;
    const int64_t bottom = top_ + count * lanes.pitch;
    for (const uint64_t tick : axis_ticks(uint64_t(span_ * 1e3))) {
      const int64_t x = x_of(double(tick) * 1e-3);
      add("<path d=\"M{0} {1}V{2}\" stroke=\"{3}\" stroke-width=\"1\"/>\n", px(x), px(top_ - 400), px(bottom + 400), kGrid);
      words(x, bottom + 1700, 1100, "middle", kSoftInk, microseconds(tick));
    }
    words(kGutter + kPlotWidth, bottom + 3000, 1100, "end", kSoftInk, "us");
    for (int32_t c = 0; c < count; ++c) {
      const int64_t y = top_ + c * lanes.pitch;
      if (c % lanes.label_every == 0) {
        words(kGutter - 900, y + lanes.height / 2 + 400, std::min<int64_t>(1100, lanes.height * 9 / 10 + 200), "end", kSoftInk, fmt::format("{}", c));
      }
      add("<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" fill=\"{}\"/>\n", px(kGutter), px(y), px(kPlotWidth), px(lanes.height), kTrack);
    }
    draw();
    y_ = bottom + kPanelBottom;
  }

  void draw_planned() {
    std::vector<double> at(size_t(t_.num_lists), 0.0);
    for (size_t i = 0; i < t_.planned.size(); ++i) {
      const PlannedItem& p = t_.planned[i];
      double& from = at[size_t(p.list)];
      const double to = from + double(p.cost) * t_.us_per_cost;
      const int64_t y = top_ + p.list * planned_.pitch;
      open_item(fmt::format("CTA {}, item {}: {}; planned {:.2f} us (cost {})", p.list, i, words_of(p), to - from, p.cost));
      box(from, to, y, planned_.height, kAttend[p.work.kernel_class]);
      close_item(from, to, y, planned_.height);
      from = to;
    }
  }
  void draw_measured() {
    for (const TimedItem& x : t_.items) {
      const PlannedItem& p = t_.planned[size_t(x.item)];
      const int64_t y = top_ + x.lane * measured_.pitch, h = measured_.height;
      open_item(fmt::format("CTA {} at {}, item {}: {}; {:.2f} us from {:.2f} (planned {:.2f}): wait {:.2f}, attend {:.2f}, store {:.2f}, merge {:.2f} ({} units)",
                            x.cta, t_.ctas[size_t(x.cta)].place, x.item, words_of(p), x.us(), x.begin, double(p.cost) * t_.us_per_cost, x.fed - x.begin,
                            x.attended - x.fed, x.stored - x.attended, x.end - x.stored, x.merged));
      box(x.begin, x.fed, y, h, kWait);
      box(x.fed, x.attended, y, h, kAttend[p.work.kernel_class]);
      box(x.attended, x.stored, y, h, kStore);
      box(x.stored, x.end, y, h, kMerge);
      close_item(x.begin, x.end, y, h);
    }
  }
  void open_item(const std::string& title) {
    text_ += "<g>";
    if (titled_) add("<title>{}</title>", escaped(title));
  }
  /// A thin line where the next one begins.
  void close_item(double from, double to, int64_t y, int64_t height) {
    if (x_of(to) - x_of(from) >= 300) add("<path d=\"M{} {}v{}\" stroke=\"#ffffff\" stroke-width=\"0.8\"/>", px(x_of(to)), px(y), px(height));
    text_ += "</g>\n";
  }

  void mark(double us, const char* what) {
    const int64_t x = x_of(us), bottom = y_ - kPanelBottom;
    add("<path d=\"M{0} {1}V{2}\" stroke=\"{3}\" stroke-width=\"1.4\" stroke-dasharray=\"6 3\"/>\n", px(x), px(top_ - 600), px(bottom + 500), kMark);
    const bool left = x < kGutter + kPlotWidth / 2;
    words(left ? x + 400 : x, top_ - 900, 1100, left ? "start" : "end", kMark, fmt::format("{} {:.1f} us", what, us));
  }

  void legend() {
    int64_t x = kGutter;
    const auto entry = [&](const char* fill, const char* what, int64_t width) {
      add("<rect x=\"{}\" y=\"{}\" width=\"24\" height=\"13\" rx=\"2\" fill=\"{}\"/>", px(x), px(y_), fill);
      words(x + 3100, y_ + 1050, 1200, "start", kInk, what);
      x += width;
    };
    entry(kWait, "waiting for the first data", 21000);
    entry(kAttend[0], "attending, memory class", 20500);
    entry(kAttend[1], "attending, compute class", 21000);
    entry(kStore, "storing rows", 13000);
    entry(kMerge, "arriving and merging", 18000);
    y_ += kLegend;
  }

  const Timeline& t_;
  const TimelineSummary summary_;
  Lanes measured_, planned_;
  double planned_us_ = 0.0, mean_us_ = 0.0;  // of a planned lane
  double span_ = 1.0;  // of the axis, us
  int64_t y_, top_ = 0;
  bool titled_;
  std::string text_;
};

}  // namespace

std::string timeline_svg(const std::vector<Timeline>& steps) {
  std::string body;
  int64_t y = 0;
  for (const Timeline& t : steps) y = Section(t, y).draw(body);
  return fmt::format(
             "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1}\" width=\"{0}\" height=\"{1}\" "
             "font-family=\"Inter, 'Helvetica Neue', Helvetica, Arial, 'DejaVu Sans', sans-serif\">\n<rect width=\"{0}\" height=\"{1}\" fill=\"#ffffff\"/>\n",
             px(kWidth), px(std::max<int64_t>(y, 100))) +
         body + "</svg>\n";
}

}  // namespace kvloom::cli
