#include "kvloom/runtime/launch_cpu.h"

#include <sched.h>

#include <cstring>
#include <mutex>
#include <thread>

namespace kvloom::runtime {

void launch_cpu(const AttendKernel& kernel, const AttentionSpec& spec, const PlanView& plan, const AttendParams& params,
                const Scratch& scratch, ThreadPool& pool, const cpu::UserStage& user, CtaTimes* timeline) {
  if (plan.header->num_items == 0) return;
  if (plan.header->num_units > 0) std::memset(scratch.counters, 0, size_t(plan.header->num_units) * sizeof(uint32_t));
  kernel.entry(spec, plan, params, scratch, pool, kernel.target, user, timeline);
}

int32_t usable_cores() {
#if defined(__linux__)
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) == 0 && CPU_COUNT(&set) > 0) return CPU_COUNT(&set);
#endif
  const unsigned n = std::thread::hardware_concurrency();
  return n > 0 ? int32_t(n) : 1;
}

std::shared_ptr<ThreadPool> shared_threads() {
  static std::mutex mutex;
  static std::weak_ptr<ThreadPool> current;
  std::lock_guard lock(mutex);
  std::shared_ptr<ThreadPool> pool = current.lock();
  if (!pool) current = pool = std::make_shared<ThreadPool>(usable_cores());
  return pool;
}

std::shared_ptr<ThreadPool> threads_for(int64_t elements) {
  constexpr int64_t kWorthThreads = 1 << 18;
  return elements >= kWorthThreads ? shared_threads() : nullptr;
}

}  // namespace kvloom::runtime
