// A plan as a picture: a lane a CTA, x is cost, colour is a request. Lengths are in hundredths of a pixel, so the same plan gives the same
// bytes everywhere; the canvas is as wide as a page and grows downwards with the number of CTAs.
#include "kvloom/plan/describe.h"
#include "kvloom/plan/describe_facts.h"
#include "kvloom/plan/describe_svg_style.h"

#include <algorithm>

namespace kvloom::plan {
namespace {

class Picture {
 public:
  Picture(const PlanView& plan, const AttentionSpec& spec)
      : plan_(plan), spec_(spec), facts_(facts_of(plan, spec)), lanes_(lanes_for(plan.header->num_ctas)) {
    scale_ = std::max<uint64_t>(1, facts_.largest_load);
    lanes_bottom_ = kLanesTop + int64_t(plan.header->num_ctas) * lanes_.pitch;
  }

  std::string draw() {
    open();
    draw_axis();
    for (int32_t c = 0; c < plan_.header->num_ctas; ++c) draw_lane(c);
    draw_mean();
    draw_legend();
    text_ += "</svg>\n";
    return std::move(text_);
  }

 private:
  int64_t x_of(uint64_t cost) const { return kGutter + int64_t(cost * uint64_t(kPlotWidth) / scale_); }

  void text(int64_t x, int64_t y, int64_t size, const char* anchor, const char* fill, const std::string& words, const char* more = "") {
    append(text_, "<text x=\"{}\" y=\"{}\" font-size=\"{}\" text-anchor=\"{}\" fill=\"{}\"{}>{}</text>\n", px(x), px(y), px(size), anchor,
           fill, more, words);
  }

  void open() {
    const PlanHeader& h = *plan_.header;
    const int64_t height = lanes_bottom_ + kAxisHeight + legend_height();
    append(text_,
           "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1}\" width=\"{0}\" height=\"{1}\" "
           "font-family=\"Inter, 'Helvetica Neue', Helvetica, Arial, 'DejaVu Sans', sans-serif\">\n",
           px(kWidth), px(height));
    append(text_,
           "<defs><pattern id=\"shared\" width=\"6\" height=\"6\" patternUnits=\"userSpaceOnUse\" patternTransform=\"rotate(45)\">"
           "<rect width=\"2.4\" height=\"6\" fill=\"#ffffff\" fill-opacity=\"0.6\"/></pattern></defs>\n"
           "<rect width=\"{}\" height=\"{}\" fill=\"#ffffff\"/>\n",
           px(kWidth), px(height));
    text(kGutter, 3200, 2000, "start", kInk,
         format("{} on {}, balance {}", name_of(h.policy), counted(uint64_t(h.num_ctas), "CTA"),
                ratio(facts_.largest_load * uint64_t(h.num_ctas), facts_.total_load)),
         " font-weight=\"600\"");
    uint64_t cut = 0;
    for (const ItemFacts& f : facts_.items) cut += f.cut_before || f.cut_after;
    text(kGutter, 5300, 1250, "start", kSoftInk,
         format("{}, {}, {}/{} heads, {}; {} ({} of cut tiles), {}", counted(uint64_t(facts_.num_requests), "request"),
                counted(uint64_t(h.total_tokens), "query token"), spec_.num_qo_heads, spec_.num_kv_heads,
                counted(uint64_t(h.num_levels), "level"), counted(uint64_t(h.num_items), "item"), grouped(cut),
                counted(uint64_t(h.num_units), "merge")));
  }

  uint64_t mean() const {
    const uint64_t ctas = uint64_t(plan_.header->num_ctas);
    return (facts_.total_load + ctas / 2) / ctas;
  }

  void draw_axis() {
    text(kGutter - 900, kLanesTop - 1000, 1100, "end", kSoftInk, "CTA");
    for (uint64_t tick : axis_ticks(facts_.largest_load)) {
      const int64_t x = x_of(tick);
      append(text_, "<path d=\"M{0} {1}V{2}\" stroke=\"{3}\" stroke-width=\"1\"/>\n", px(x), px(kLanesTop - 400), px(lanes_bottom_ + 500),
             kGrid);
      text(x, lanes_bottom_ + 1900, 1100, "middle", kSoftInk, grouped(tick));
    }
    text(kGutter + kPlotWidth, lanes_bottom_ + 3600, 1100, "end", kSoftInk, "cost");
  }

  void draw_lane(int32_t c) {
    const int64_t y = kLanesTop + c * lanes_.pitch;
    if (c % lanes_.label_every == 0) {
      text(kGutter - 900, y + lanes_.height / 2 + 400, std::min<int64_t>(1100, lanes_.height * 9 / 10 + 200), "end", kSoftInk,
           format("{}", c));
    }
    append(text_, "<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" fill=\"{}\"/>\n", px(kGutter), px(y), px(kPlotWidth),
           px(lanes_.height), kTrack);
    uint64_t at = 0;
    for (int32_t i = plan_.cta_indptr[c]; i < plan_.cta_indptr[c + 1]; ++i) {
      const uint64_t end = at + facts_.items[i].cost;
      draw_item(c, i, x_of(at), std::max(x_of(end), x_of(at) + 40), y);
      at = end;
    }
  }

  void draw_item(int32_t cta, int32_t i, int64_t x, int64_t x_end, int64_t y) {
    const WorkItem& w = plan_.items[i];
    const ItemFacts& f = facts_.items[i];
    const int64_t width = x_end - x, corner = lanes_.height >= 1400 && width >= 600 ? 200 : 0;
    const Colour colour = request_colour(f.request);
    append(text_, "<g>");
    if (plan_.items.size <= kTitledItems) write_title(cta, i);
    const std::string box =
        format("x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" rx=\"{}\"", px(x), px(y), px(width), px(lanes_.height), px(corner));
    append(text_, "<rect {} fill=\"{}\"{}/>", box, hex(colour), width >= 300 ? " stroke=\"#ffffff\" stroke-width=\"0.8\"" : "");
    if (f.shared) append(text_, "<rect {} fill=\"url(#shared)\"/>", box);
    if (w.kernel_class == 1) {
      append(text_, "<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" fill=\"{}\"/>", px(x), px(y + lanes_.height * 82 / 100), px(width),
             px(lanes_.height * 18 / 100), kInk);
    }
    if (f.cut_before) draw_cut(x + 50, y);
    if (f.cut_after) draw_cut(x_end - 50, y);
    label_item(w, f, colour, x, width, y);
    if (f.merges > 0) draw_merge(f.merges, x_end, y);
    append(text_, "</g>\n");
  }

  void write_title(int32_t cta, int32_t i) {
    const WorkItem& w = plan_.items[i];
    const ItemFacts& f = facts_.items[i];
    append(text_, "<title>CTA {}, item {}: request {}, level {}, rows {}-{}, KV heads {}-{}, keys [{}, {}), cost {}{}{}</title>", cta, i,
           f.request, plan_.groups[w.group].level, w.row_begin, w.row_begin + w.row_count - 1, w.kv_head, w.kv_head + w.kv_head_count - 1,
           w.kv_begin, w.kv_end, grouped(f.cost), w.partial_row >= 0 ? ", partial" : "",
           f.merges > 0 ? format(", last of {}", counted(uint64_t(f.merges), "merge")) : "");
  }

  /// An edge that goes on elsewhere: open, dashed.
  void draw_cut(int64_t x, int64_t y) {
    const int64_t dash = lanes_.height >= 1400 ? 350 : 180;
    append(text_, "<path d=\"M{0} {1}V{2}\" stroke=\"#ffffff\" stroke-width=\"1.6\"/>", px(x), px(y), px(y + lanes_.height));
    append(text_, "<path d=\"M{0} {1}V{2}\" stroke=\"{4}\" stroke-width=\"1.3\" stroke-dasharray=\"{3} {3}\"/>", px(x), px(y),
           px(y + lanes_.height), px(dash), kInk);
  }

  /// Request, heads and key positions, as far as they fit.
  void label_item(const WorkItem& w, const ItemFacts& f, const Colour& colour, int64_t x, int64_t width, int64_t y) {
    if (lanes_.height < 1300) return;
    constexpr int64_t kLetter = 640, kPad = 500;
    std::string words = format("r{}", f.request);
    if (f.shared) words += format(" +{}", plan_.groups[w.group].token_count - 1);
    const int64_t room = (width - (f.merges > 0 ? 2200 : 900)) / kLetter;
    const std::string heads =
        w.kv_head_count > 1 ? format(" h{}-{}", w.kv_head, w.kv_head + w.kv_head_count - 1) : format(" h{}", w.kv_head);
    const std::string keys = format(" [{}, {})", first_key(w), first_key(w) + (w.kv_end - w.kv_begin));
    if (int64_t(words.size() + heads.size() + keys.size()) <= room) {
      words += heads + keys;
    } else if (int64_t(words.size() + heads.size()) <= room) {
      words += heads;
    }
    if (int64_t(words.size()) > room) return;
    if (f.shared) {  // words on hatching need a ground of their own
      append(text_, "<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"13.4\" rx=\"3\" fill=\"{}\"/>", px(x + kPad - 200),
             px(y + lanes_.height / 2 - 670), px(int64_t(words.size()) * kLetter + 300), hex(colour));
    }
    text(x + kPad, y + lanes_.height / 2 + 390, 1100, "start", is_dark(colour) ? "#ffffff" : kInk, words);
  }

  /// Position of an item's first key where positions count up, else its place in the list.
  int32_t first_key(const WorkItem& w) const {
    const RowGroup& g = plan_.groups[w.group];
    return w.kv_begin + (g.kv_position == KvPosition::linear ? g.kv_pos0 : 0);
  }

  void draw_merge(int32_t merges, int64_t x_end, int64_t y) {
    const int64_t radius = std::clamp<int64_t>(lanes_.height * 30 / 100, 90, 700), x = x_end - radius - 150, middle = y + lanes_.height / 2;
    append(text_, "<circle cx=\"{}\" cy=\"{}\" r=\"{}\" fill=\"#ffffff\" stroke=\"{}\" stroke-width=\"{}\"/>", px(x), px(middle),
           px(radius), kInk, lanes_.height >= 1000 ? "1.4" : "0.9");
    if (merges > 1 && radius >= 550 && merges < 100) text(x, middle + 320, 900, "middle", kInk, format("{}", merges));
  }

  void draw_mean() {
    const int64_t x = x_of(mean());
    append(text_, "<path d=\"M{0} {1}V{2}\" stroke=\"#dc2626\" stroke-width=\"1.4\" stroke-dasharray=\"6 3\"/>\n", px(x),
           px(kLanesTop - 700), px(lanes_bottom_ + 500));
    text(x, kLanesTop - 1000, 1100, "end", "#dc2626", "mean " + grouped(mean()));
  }

  int32_t legend_requests() const { return std::min(facts_.num_requests, kLegendRequests); }
  int64_t legend_height() const { return 3400 + (legend_requests() + kLegendColumns - 1) / kLegendColumns * 2000 + 1200; }

  void draw_legend() {
    int64_t x = kGutter, y = lanes_bottom_ + kAxisHeight;
    const int64_t sample = 2400, box = 1300;
    auto entry = [&](const std::string& words, int64_t width) {
      text(x + sample + 700, y + 1050, 1200, "start", kInk, words);
      x += width;
    };
    auto swatch = [&](const std::string& fill) {
      append(text_, "<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" rx=\"2\" fill=\"{}\"/>", px(x), px(y), px(sample), px(box), fill);
    };
    const std::string grey = "#94a3b8";
    swatch(grey), swatch("url(#shared)");
    entry("shared level", 13500);
    swatch(grey);
    append(text_, "<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"2.4\" fill=\"{}\"/>", px(x), px(y + box - 240), px(sample), kInk);
    entry("compute class", 14500);
    swatch(grey);
    append(text_, "<path d=\"M{0} {1}V{2}\" stroke=\"#ffffff\" stroke-width=\"1.6\"/>", px(x + sample - 60), px(y), px(y + box));
    append(text_, "<path d=\"M{0} {1}V{2}\" stroke=\"{3}\" stroke-width=\"1.3\" stroke-dasharray=\"3 3\"/>", px(x + sample - 60), px(y),
           px(y + box), kInk);
    entry("cut: goes on elsewhere", 20000);
    append(text_, "<circle cx=\"{}\" cy=\"{}\" r=\"5\" fill=\"#ffffff\" stroke=\"{}\" stroke-width=\"1.4\"/>", px(x + sample / 2),
           px(y + box / 2), kInk);
    entry("merge (at its last partial)", 21500);
    append(text_, "<path d=\"M{} {}h{}\" stroke=\"#dc2626\" stroke-width=\"1.4\" stroke-dasharray=\"6 3\"/>", px(x), px(y + box / 2),
           px(sample));
    entry("mean load", 10000);
    draw_request_legend(y + 2600);
  }

  void draw_request_legend(int64_t y) {
    std::vector<int32_t> requests;
    for (const CtaFacts& cta : facts_.ctas) requests.insert(requests.end(), cta.requests.begin(), cta.requests.end());
    std::sort(requests.begin(), requests.end());
    requests.erase(std::unique(requests.begin(), requests.end()), requests.end());
    const int64_t column = kPlotWidth / kLegendColumns, count = std::min<int64_t>(int64_t(requests.size()), kLegendRequests);
    for (int64_t i = 0; i < count; ++i) {
      const int64_t x = kGutter + i % kLegendColumns * column, row = y + i / kLegendColumns * 2000;
      const bool last = i + 1 == kLegendRequests && int64_t(requests.size()) > kLegendRequests;
      if (last) {
        text(x, row + 1050, 1200, "start", kSoftInk, format("+ {} more", int64_t(requests.size()) - i));
        continue;
      }
      append(text_, "<rect x=\"{}\" y=\"{}\" width=\"13\" height=\"13\" rx=\"2\" fill=\"{}\"/>", px(x), px(row),
             hex(request_colour(requests[i])));
      text(x + 1900, row + 1050, 1200, "start", kInk, format("r{}", requests[i]));
    }
  }

  const PlanView& plan_;
  const AttentionSpec& spec_;
  const PlanFacts facts_;
  const Lanes lanes_;
  std::string text_;
  uint64_t scale_;
  int64_t lanes_bottom_;
};

}  // namespace

std::string describe_svg(const PlanView& plan, const AttentionSpec& spec) { return Picture(plan, spec).draw(); }

}  // namespace kvloom::plan
