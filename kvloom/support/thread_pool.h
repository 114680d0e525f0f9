// A fixed set of threads that run one function together. No allocation and no lock-free cleverness in run(): a step is >= 10 us.
// A process that was forked off has no such threads: there the caller's own does all the work.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <type_traits>
#include <vector>

namespace kvloom {

class ThreadPool {
 public:
  /// `threads` >= 1, the caller's own thread included.
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const { return static_cast<int>(workers_.size()) + 1; }

  /// Calls f(thread) once on every thread (0 is the caller) and returns when all are done. The first exception is rethrown.
  template <class F>
  void run(F&& f) {
    run_erased([](void* context, int thread) { (*static_cast<std::remove_reference_t<F>*>(context))(thread); }, &f);
  }

  /// Calls f(index, thread) for every index in [0, count), handed out in order by an atomic counter.
  template <class F>
  void for_each(int64_t count, F&& f) {
    std::atomic<int64_t> next{0};
    run([&](int thread) {
      for (int64_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < count;) f(i, thread);
    });
  }

 private:
  using Job = void (*)(void* context, int thread);
  void run_erased(Job job, void* context);
  void work(int thread);
  bool is_forked() const;

  /// Left alone in a forked process: there nobody will ever wake the waiters that these still count.
  struct Sync {
    std::mutex mutex;
    std::mutex caller_mutex;  // one run() at a time
    std::condition_variable start;
    std::condition_variable done;
  };

  std::vector<std::thread> workers_;
  std::unique_ptr<Sync> sync_ = std::make_unique<Sync>();
  int forks_before_;
  uint64_t generation_ = 0;
  int running_ = 0;
  bool stop_ = false;
  Job job_ = nullptr;
  void* context_ = nullptr;
  std::exception_ptr error_;
};

}  // namespace kvloom
