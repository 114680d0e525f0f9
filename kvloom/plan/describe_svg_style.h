// Sizes and colours of pictures of plans (here, and the tool's timelines), in integers: lengths are hundredths of a pixel.
#pragma once

#include "kvloom/base/platform.h"

#include <string>
#include <vector>

namespace kvloom::plan {

inline constexpr int64_t kWidth = 120000;
inline constexpr int64_t kGutter = 6000;  // left of the lanes: CTA numbers
inline constexpr int64_t kPlotWidth = kWidth - kGutter - 3500;
inline constexpr int64_t kLanesTop = 9200;    // below title and subtitle
inline constexpr int64_t kAxisHeight = 5200;  // below the lanes
inline constexpr int32_t kLegendColumns = 16;
inline constexpr int32_t kLegendRequests = 64;
inline constexpr int64_t kTitledItems = 20000;  // plans of more items have no tooltips: the file would be too large

inline constexpr const char* kInk = "#0f172a";
inline constexpr const char* kSoftInk = "#64748b";
inline constexpr const char* kGrid = "#e2e8f0";
inline constexpr const char* kTrack = "#f1f5f9";

/// Lanes for a number of CTAs: few are tall enough for words, many thin enough for a page.
struct Lanes {
  int64_t pitch;   // from lane to lane
  int64_t height;  // of a lane
  int32_t label_every;
};
Lanes lanes_for(int32_t num_ctas);

struct Colour {
  int32_t r, g, b;  // 0 .. 255
};
/// Colours whose hues are a golden angle apart, so that neighbouring requests differ most and no two of the first hundreds are equal.
Colour request_colour(int32_t request);
bool is_dark(const Colour& c);  // white words are legible on it
std::string hex(const Colour& c);

/// Hundredths of a pixel as SVG writes them: 1250 -> "12.5".
std::string px(int64_t hundredths);

/// Round numbers from 0 to `largest`, five to ten of them.
std::vector<uint64_t> axis_ticks(uint64_t largest);

}  // namespace kvloom::plan
