#include "kvloom/support/thread_pool.h"

#include "kvloom/support/check.h"

namespace kvloom {

ThreadPool::ThreadPool(int threads) {
  require(threads >= 1 && threads <= 4096, "ThreadPool: threads: got {}, wanted 1 .. 4096", threads);
  workers_.reserve(static_cast<size_t>(threads - 1));
  for (int t = 1; t < threads; ++t) workers_.emplace_back([this, t] { work(t); });
}

ThreadPool::~ThreadPool() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  start_.notify_all();
  for (auto& w : workers_) w.join();
}

void ThreadPool::run_erased(Job job, void* context) {
  std::lock_guard one_caller(caller_mutex_);
  if (!workers_.empty()) {
    {
      std::lock_guard lock(mutex_);
      job_ = job;
      context_ = context;
      running_ = static_cast<int>(workers_.size());
      error_ = nullptr;
      ++generation_;
    }
    start_.notify_all();
  }
  std::exception_ptr own;
  try {
    job(context, 0);
  } catch (...) {
    own = std::current_exception();
  }
  if (!workers_.empty()) {
    std::unique_lock lock(mutex_);
    done_.wait(lock, [this] { return running_ == 0; });
    if (!own) own = error_;
  }
  if (own) std::rethrow_exception(own);
}

void ThreadPool::work(int thread) {
  uint64_t seen = 0;
  std::unique_lock lock(mutex_);
  for (;;) {
    start_.wait(lock, [&] { return stop_ || generation_ != seen; });
    if (stop_) return;
    seen = generation_;
    const Job job = job_;
    void* const context = context_;
    lock.unlock();
    std::exception_ptr error;
    try {
      job(context, thread);
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    if (error && !error_) error_ = error;
    if (--running_ == 0) done_.notify_one();
  }
}

}  // namespace kvloom
