#include "kvloom/plan/describe_svg_style.h"

#include "kvloom/support/format.h"

#include <cstdlib>

namespace kvloom::plan {

Lanes lanes_for(int32_t num_ctas) {
  if (num_ctas <= 8) return {4400, 3600, 1};
  if (num_ctas <= 16) return {3000, 2400, 1};
  if (num_ctas <= 40) return {1900, 1500, 1};
  if (num_ctas <= 160) return {900, 720, 4};
  if (num_ctas <= 400) return {500, 400, 8};
  return {300, 240, 20};
}

Colour request_colour(int32_t request) {
  const int64_t hue = (int64_t(request) * 137508 + 215000) % 360000;  // thousandths of a degree; 137.508 is the golden angle
  static constexpr int32_t kLightness[3] = {58, 46, 70}, kSaturation[3] = {62, 58, 66};
  const int32_t tier = request % 3;
  // HSL to RGB, in hundred-thousandths: chroma, and the position within the sixth of the circle.
  const int64_t chroma = (100 - std::abs(2 * kLightness[tier] - 100)) * kSaturation[tier] * 10;
  const int64_t within = hue % 120000;  // of a third
  const int64_t rising = chroma * (60000 - std::llabs(within - 60000)) / 60000;
  const int64_t low = kLightness[tier] * 1000 - chroma / 2;
  const int64_t third = hue / 60000;
  static constexpr int8_t kPlace[6][3] = {{2, 1, 0}, {1, 2, 0}, {0, 2, 1}, {0, 1, 2}, {1, 0, 2}, {2, 0, 1}};  // who is chroma, rising, 0
  const int64_t level[3] = {0, rising, chroma};
  auto channel = [&](int i) { return int32_t((low + level[kPlace[third][i]]) * 255 / 100000); };
  return {channel(0), channel(1), channel(2)};
}

bool is_dark(const Colour& c) { return c.r * 299 + c.g * 587 + c.b * 114 < 140000; }

std::string hex(const Colour& c) { return format("#{:02x}{:02x}{:02x}", c.r, c.g, c.b); }

std::string px(int64_t hundredths) {
  const char* sign = hundredths < 0 ? "-" : "";
  const int64_t n = std::llabs(hundredths), rest = n % 100;
  if (rest == 0) return format("{}{}", sign, n / 100);
  if (rest % 10 == 0) return format("{}{}.{}", sign, n / 100, rest / 10);
  return format("{}{}.{:02}", sign, n / 100, rest);
}

std::vector<uint64_t> axis_ticks(uint64_t largest) {
  uint64_t step = 1;
  for (uint64_t unit = 1; largest / step > 9; unit *= 10) {
    for (uint64_t m : {1, 2, 5}) {
      step = unit * m;
      if (largest / step <= 9) break;
    }
  }
  std::vector<uint64_t> ticks;
  for (uint64_t t = 0; t <= largest; t += step) ticks.push_back(t);
  return ticks;
}

}  // namespace kvloom::plan
