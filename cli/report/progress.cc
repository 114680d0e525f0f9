#include "cli/report/progress.h"

#include <fmt/format.h>

#include <sys/ioctl.h>
#include <unistd.h>
#include <algorithm>
#include <cstdio>

namespace kvloom::cli {
namespace {

constexpr int kBarWidth = 28;

int terminal_width() {
  winsize size{};
  return ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

}  // namespace

Progress::Progress() : terminal_(isatty(STDERR_FILENO) == 1) {}

void Progress::update(double share, const std::string& text) {
  if (!terminal_) return;
  const auto now = std::chrono::steady_clock::now();
  if (drawn_ && now - last_ < std::chrono::milliseconds(100)) return;
  last_ = now;
  drawn_ = true;
  const int full = int(std::clamp(share, 0.0, 1.0) * kBarWidth);
  std::string line =
      fmt::format("{:3.0f} % [{}{}] {}", 100.0 * share, std::string(size_t(full), '#'), std::string(size_t(kBarWidth - full), '.'), text);
  line.resize(std::min(line.size(), size_t(std::max(1, terminal_width() - 1))));
  std::fprintf(stderr, "\r%s\x1b[K", line.c_str());
  std::fflush(stderr);
}

void Progress::clear() {
  if (!drawn_) return;
  std::fputs("\r\x1b[K", stderr);
  std::fflush(stderr);
  drawn_ = false;
}

}  // namespace kvloom::cli
