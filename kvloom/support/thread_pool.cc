#include "kvloom/support/thread_pool.h"

#include "kvloom/support/check.h"

#include <pthread.h>

namespace kvloom {
namespace {

/// How many forks lie between the first process and this one.
std::atomic<int> forks{0};
[[maybe_unused]] const int counted = pthread_atfork(nullptr, nullptr, [] { ++forks; });

}  // namespace

ThreadPool::ThreadPool(int threads) : forks_before_(forks.load(std::memory_order_relaxed)) {
  require(threads >= 1 && threads <= 4096, "ThreadPool: threads: got {}, wanted 1 .. 4096", threads);
  workers_.reserve(static_cast<size_t>(threads - 1));
  for (int t = 1; t < threads; ++t) workers_.emplace_back([this, t] { work(t); });
}

bool ThreadPool::is_forked() const { return forks.load(std::memory_order_relaxed) != forks_before_; }

ThreadPool::~ThreadPool() {
  if (is_forked()) {
    static_cast<void>(new std::vector<std::thread>(std::move(workers_)));  // neither to be joined nor to be detached
    static_cast<void>(sync_.release());
    return;
  }
  {
    std::lock_guard lock(sync_->mutex);
    stop_ = true;
  }
  sync_->start.notify_all();
  for (auto& w : workers_) w.join();
}

void ThreadPool::run_erased(Job job, void* context) {
  if (is_forked()) {
    for (int t = 0; t < size(); ++t) job(context, t);
    return;
  }
  std::lock_guard one_caller(sync_->caller_mutex);
  if (!workers_.empty()) {
    {
      std::lock_guard lock(sync_->mutex);
      job_ = job;
      context_ = context;
      running_ = static_cast<int>(workers_.size());
      error_ = nullptr;
      ++generation_;
    }
    sync_->start.notify_all();
  }
  std::exception_ptr own;
  try {
    job(context, 0);
  } catch (...) {
    own = std::current_exception();
  }
  if (!workers_.empty()) {
    std::unique_lock lock(sync_->mutex);
    sync_->done.wait(lock, [this] { return running_ == 0; });
    if (!own) own = error_;
  }
  if (own) std::rethrow_exception(own);
}

void ThreadPool::work(int thread) {
  uint64_t seen = 0;
  std::unique_lock lock(sync_->mutex);
  for (;;) {
    sync_->start.wait(lock, [&] { return stop_ || generation_ != seen; });
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
    if (--running_ == 0) sync_->done.notify_one();
  }
}

}  // namespace kvloom
