#include "cli/check/watchdog.h"

#include <unistd.h>

#include <cstdio>

namespace kvloom::check {

Watchdog::Watchdog(std::chrono::seconds limit) : limit_(limit), thread_([this] { watch(); }) {}

Watchdog::~Watchdog() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void Watchdog::arm(const std::string& what) {
  std::lock_guard lock(mutex_);
  what_ = what;
  deadline_ = std::chrono::steady_clock::now() + limit_;
  armed_ = true;
  changed_.notify_all();
}

void Watchdog::disarm() {
  std::lock_guard lock(mutex_);
  armed_ = false;
}

void Watchdog::watch() {
  std::unique_lock lock(mutex_);
  while (!stop_) {
    if (!armed_) {
      changed_.wait(lock);
      continue;
    }
    changed_.wait_until(lock, deadline_);
    if (!armed_ || stop_ || std::chrono::steady_clock::now() < deadline_) continue;
    std::fprintf(stderr, "\nkvloom: %s: still running after %lld s: the kernel hangs; the process ends here\n", what_.c_str(),
                 static_cast<long long>(limit_.count()));
    std::fflush(nullptr);
    ::_exit(3);
  }
}

}  // namespace kvloom::check
