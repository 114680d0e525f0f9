// Attention and the operations around it are the CPU backend, run on what the launch was given; the tool's own kernels are their own
// source, one thread after another.
#include "tests/cuda/fake_kernels.h"

#include "cli/bench/gpu_timing.h"
#include "kvloom/contract/attend_boxes.h"
#include "kvloom/contract/op_args.h"
#include "kvloom/cpu/append_kv.h"
#include "kvloom/cpu/attend.h"
#include "kvloom/cpu/merge_states.h"
#include "kvloom/runtime/user_variant.h"
#include "tests/plan/serial_block.h"

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {

struct Index {
  unsigned x = 0, y = 0, z = 0;
};
thread_local Index threadIdx, blockIdx, blockDim, gridDim;
int64_t clock64() {
  static int64_t now = 0;
  return now += 1000;
}
void atomicAdd(unsigned long long* to, unsigned long long value) { *to += value; }

}  // namespace

#define KVLOOM_EMULATED
#define __global__
#define __device__
#include "cli/replay/gpu_kernels.cuh"

namespace kvloom::test {
bool (*emulate)(const KernelCall& call) = nullptr;
namespace {

/// What device/block/refused.cuh does, by CTAs without items.
void fill_refused(const AttendArgs& args, const AttentionSpec& spec, const PlanHeader& header) {
  const AttendParams& p = args.params;
  for (int64_t token = 0; token < header.total_tokens; ++token) {
    for (int64_t head = 0; head < args.num_qo_heads; ++head) {
      for (int64_t d = 0; d < spec.head_dim_vo; ++d) store_from_float(p.o, spec.o_dtype, token * p.o_token + head * p.o_head + d, NAN);
      if (p.lse != nullptr) p.lse[token * p.lse_token + head * p.lse_head] = NAN;
    }
  }
}

/// What the CPU noted of each list, as a cluster's CTAs would have: all of them the same, and its merges once.
void spread_times(const std::vector<char>& from, const PlanView& plan, int32_t cluster, CtaTimes* to) {
  const TimelineView times = view_timeline(from.data(), {plan.header->num_ctas, 1, plan.header->num_items});
  auto* const items = reinterpret_cast<ItemTimes*>(to + plan.header->num_ctas * cluster);
  for (int64_t i = 0; i < times.ctas.size * cluster; ++i) to[i] = times.ctas[i / cluster];
  for (int64_t i = 0; i < times.items.size * cluster; ++i) {
    const int32_t rank = int32_t(i % cluster);
    items[i] = times.items[i / cluster];
    items[i].cta = items[i].cta * cluster + rank;
    if (rank > 0) items[i].merged = 0;
  }
}

void run_attend(const KernelCall& call) {
  AttendArgs args = call.as<AttendArgs>();
  const PlanView plan = view_plan(args.plan);
  if (plan.header->magic != kPlanMagic || plan.header->num_ctas != int32_t(call.grid)) {
    std::fprintf(stderr, "fake driver: the plan on the device is not one for this launch\n");
    std::abort();
  }
  bool classes[2] = {false, false};
  for (const WorkItem& item : plan.items) classes[item.kernel_class] = true;
  const bool of_many = call.name == "attend_compute" || (call.name == "attend_small" && call.boxed), of_few = call.name == "attend_memory" || call.name == "attend_memory_32" || (call.name == "attend_small" && !call.boxed);
  if ((classes[0] && of_many) || (classes[1] && of_few)) {
    std::fprintf(stderr, "fake driver: %s was launched for a plan with other items\n", call.name.c_str());
    std::abort();
  }
  static ThreadPool pool(1);
  const AttentionSpec& spec = call.spec;
  const int64_t bound = cpu::thread_arena_bytes(spec, plan.header->classes);
  std::vector<char> arena(size_t(bound) + 64);
  args.scratch.thread_arena = reinterpret_cast<void*>((reinterpret_cast<uintptr_t>(arena.data()) + 63) / 64 * 64);
  args.scratch.thread_arena_bytes = int64_t(arena.size()) - 64;
  for (int64_t u = 0; u < plan.header->num_units; ++u) {
    if (args.scratch.counters[u] == 0) continue;
    std::fprintf(stderr, "fake driver: counter %lld is not zero before a launch\n", (long long)u);
    std::abort();
  }
  if (emulate != nullptr && emulate(call)) return;
  if (plan.header->status != PlanStatus::ok) return fill_refused(args, call.spec, *plan.header);
  const cpu::Target target = cpu::best_target();
  const cpu::UserStage user = spec.variant.user ? runtime::user_stage(spec.variant, target) : cpu::UserStage();
  std::vector<char> times(size_t(TimelineLayout{plan.header->num_ctas, 1, plan.header->num_items}.bytes()));
  const bool timed = args.timeline != nullptr;
  cpu::attend(spec, plan, args.params, args.scratch, pool, target, user, timed ? reinterpret_cast<CtaTimes*>(times.data()) : nullptr);
  if (timed) spread_times(times, plan, int32_t(call.cluster), args.timeline);
}

/// The CPU's loop is given slots that append_kv checked; a GPU's are read by the kernel alone, which skips what the cache does not have.
void run_append(const KernelCall& call) {
  AppendArgs args = call.as<AppendArgs>();
  std::vector<int64_t> slots(args.slot, args.slot + args.num_tokens);
  for (int64_t& slot : slots) slot = slot < args.kv.num_pages * args.page_size ? slot : -1;
  args.slot = slots.data();
  cpu::append_kv(args, cpu::element_rows(cpu::best_target()), nullptr);
}
void run_rope(const KernelCall& call) { cpu::apply_rope(call.as<RopeArgs>(), cpu::element_rows(cpu::best_target()), nullptr); }
void run_merge(const KernelCall& call) { cpu::merge_states(call.as<MergeArgs>(), cpu::element_rows(cpu::best_target()), nullptr); }

void run_plan(const KernelCall& call) { plan_serially(call.as<plan::DeviceArgs>()); }

void run_nothing(const KernelCall&) {}  // what it does to shared memory, or to find a ceiling, a CPU does not have

/// A kernel without barriers.
template <class Args, void (*kKernel)(Args)>
void run_threads(const KernelCall& call) {
  gridDim = {call.grid, 1, 1};
  blockDim = {call.block, 1, 1};
  for (unsigned b = 0; b < call.grid; ++b) {
    for (unsigned t = 0; t < call.block; ++t) {
      blockIdx = {b, 0, 0};
      threadIdx = {t, 0, 0};
      kKernel(call.as<Args>());
    }
  }
}

/// Every SM takes a block, 5 ms after the last launch.
void run_clock(const KernelCall& call) {
  static unsigned long long ns = 0;
  ns += 5'000'000;
  const char* mhz = std::getenv("FAKE_SM_MHZ");
  auto* to = call.as<cli::GpuClockReading*>();
  for (unsigned sm = 0; sm < call.grid; ++sm) to[sm] = {ns / 1000 * (mhz != nullptr ? std::strtoull(mhz, nullptr, 10) : 1500), ns};
}

struct Entry {
  const char* name;
  size_t argument_bytes;
  void (*run)(const KernelCall&);
};
constexpr Entry kEntries[] = {
    {"attend_memory", sizeof(BoxedAttendArgs), run_attend},
    {"attend_compute", sizeof(BoxedAttendArgs), run_attend},
    {"attend_mixed", sizeof(BoxedAttendArgs), run_attend},
    {"attend_small", sizeof(BoxedAttendArgs), run_attend},
    {"attend_memory_32", sizeof(BoxedAttendArgs), run_attend},
    {"plan_stream", sizeof(plan::DeviceArgs), run_plan},
    {"append_kv", sizeof(AppendArgs), run_append},
    {"apply_rope", sizeof(RopeArgs), run_rope},
    {"merge_states", sizeof(MergeArgs), run_merge},
    {"sweep", sizeof(void*), run_nothing},
    {"products", sizeof(void*), run_nothing},
    {"read_clock", sizeof(void*), run_clock},
    {"poison_shared", sizeof(unsigned long long), run_nothing},
    {"page_events", sizeof(replay::PageEventsArgs), run_threads<replay::PageEventsArgs, replay::page_events>},
    {"fill_rows", sizeof(replay::FillRowsArgs), run_threads<replay::FillRowsArgs, replay::fill_rows>},
    {"count_nonfinite", sizeof(replay::CountNonfiniteArgs), run_threads<replay::CountNonfiniteArgs, replay::count_nonfinite>},
    {"hold", sizeof(replay::HoldArgs), run_threads<replay::HoldArgs, replay::hold>},
    {"gather_rows", sizeof(replay::GatherRowsArgs), run_threads<replay::GatherRowsArgs, replay::gather_rows>},
};

}  // namespace

bool find_kernel(const std::string& name, const void* argument, KernelCall& call) {
  for (const Entry& e : kEntries) {
    if (name != e.name) continue;
    call.run = e.run;
    call.name = name;
    call.argument.assign(static_cast<const char*>(argument), static_cast<const char*>(argument) + e.argument_bytes);
    return true;
  }
  return false;
}

}  // namespace kvloom::test
