// A kernel that never ends can't be stopped from within the process: a thread that watches the clock ends the process, and says what ran.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>

namespace kvloom::check {

class Watchdog {
 public:
  explicit Watchdog(std::chrono::seconds limit);
  ~Watchdog();
  /// From now on `what` has `limit` to be over.
  void arm(const std::string& what);
  void disarm();

 private:
  void watch();

  const std::chrono::seconds limit_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::string what_;
  std::chrono::steady_clock::time_point deadline_;
  bool armed_ = false, stop_ = false;
  std::thread thread_;
};

}  // namespace kvloom::check
