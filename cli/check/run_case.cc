#include "cli/check/run_case.h"

#include "cli/check/gpu_case.h"
#include "cli/check/gpu_tensors.h"

#include "kvloom/plan/validate.h"
#include "kvloom/support/check.h"

#include <algorithm>
#include <cstring>
#include <memory>

namespace kvloom::check {
namespace {

constexpr int32_t kCtas[] = {1, 7, 132};

/// Working memory that is handed from engine to engine as it was left, with a tail that nobody may write.
class SharedWorkspace {
 public:
  virtual ~SharedWorkspace() = default;
  virtual Workspace take(int64_t bytes) = 0;
  virtual bool tail_untouched() const = 0;
};

/// It ends at a guard page (up to alignment).
class HostWorkspace : public SharedWorkspace {
 public:
  Workspace take(int64_t bytes) override {
    const int64_t aligned = (bytes + 63) / 64 * 64;
    if (aligned > memory_.size()) {
      memory_ = GuardedBuffer(aligned);
      memory_.poison();
    }
    char* data = memory_.data() + memory_.size() - aligned;
    tail_ = data + bytes;
    tail_bytes_ = aligned - bytes;
    std::memset(tail_, 0x5a, size_t(tail_bytes_));
    return {data, bytes};
  }
  bool tail_untouched() const override {
    return std::all_of(tail_, tail_ + tail_bytes_, [](char c) { return c == 0x5a; });
  }

 private:
  GuardedBuffer memory_;
  char* tail_ = nullptr;
  int64_t tail_bytes_ = 0;
};

class GpuWorkspace : public SharedWorkspace {
 public:
  explicit GpuWorkspace(int32_t device) : device_(device), tail_(kTail, 0x5a) {}
  Workspace take(int64_t bytes) override {
    if (bytes + kTail > memory_.size()) {
      memory_ = GpuBuffer(device_, bytes + kTail);
      memory_.fill(0xff);
    }
    memory_.upload(tail_.data(), kTail, bytes);
    bytes_ = bytes;
    return {memory_.data(), bytes};
  }
  bool tail_untouched() const override {
    std::vector<char> now(kTail);
    memory_.download(now.data(), kTail, bytes_);
    return now == tail_;
  }

 private:
  static constexpr int64_t kTail = 4096;
  int32_t device_;
  GpuBuffer memory_;
  std::vector<char> tail_;
  int64_t bytes_ = 0;
};

struct Output {
  std::vector<float> o, lse;
  bool same_bits(const Output& other) const {
    auto same = [](const std::vector<float>& a, const std::vector<float>& b) {
      return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * 4) == 0);
    };
    return same(o, other.o) && same(lse, other.lse);
  }
};

class CaseRun {
 public:
  CaseRun(CaseData& data, const CaseOptions& options) : case_(data.what()), data_(data), options_(options) {
    engine_case_ = case_;
    spoiled_ = spoil_case(options.sabotage, engine_case_);
    batch_ = data_.batch();
    tensors_ = data_.tensors();
    spoiled_ = spoil_inputs(options.sabotage, data_, spoiled_inputs_, batch_, tensors_) || spoiled_;
    std::vector<double> spread;
    data_.reference(ref_o_, ref_lse_, &spread, options.gpu ? &rounding_ : nullptr);
    growth_ = data_.fp32_growth(spread);
    if (options.gpu) {
      workspace_ = std::make_unique<GpuWorkspace>(options.device);
      on_gpu_ = std::make_unique<GpuTensors>(engine_case_, batch_, tensors_, options.device);
    } else {
      workspace_ = std::make_unique<HostWorkspace>();
    }
  }

  void run(const Schedule& schedule, CaseResult& result) {
    EngineOptions options;
    options.policy = schedule.policy;
    options.num_ctas = schedule.ctas;
    options.levels = schedule.levels;
    options.threads = 1;
    if (options_.gpu) {
      options.backend = Backend::cuda;
      options.device = options_.device;
      kernel_ = family_under(schedule.policy == Policy::fixed_split, options_.kernel.empty() ? case_.kernel : options_.kernel, case_.spec);
      if (!kernel_.empty()) options.kernel = kernel_.c_str();
    }
    if (!options_.cpu_target.empty()) options.cpu_target = options_.cpu_target.c_str();
    const Capacity capacity = data_.capacity();

    Engine engine = make_engine(capacity, options);
    result.key = engine.kernel_key();
    const Plan plan = engine.plan(batch_);
    const std::string unsound = plan::validate_plan(plan.bytes().data, plan.bytes().size, engine.spec(), is_small());
    if (!unsound.empty()) return fault(result, schedule, "plan: " + unsound);
    const Plan again = engine.plan(batch_);
    if (!same_bytes(plan, again)) return fault(result, schedule, "plan: the same step planned twice gives other bytes");
    result.sabotaged = spoil_plan(options_.sabotage, plan) || spoiled_ || result.sabotaged;

    Output first;
    if (!run_once(engine, plan, schedule, result, first)) return;
    result.sabotaged = spoil_output(options_.sabotage, first.lse) || result.sabotaged;
    const Errors e = options_.gpu ? compare_gpu(case_, first.o, first.lse, ref_o_, ref_lse_, growth_, rounding_)
                                  : compare(case_, first.o, first.lse, ref_o_, ref_lse_, growth_);
    result.errors.whole = std::max(result.errors.whole, e.whole);
    result.errors.worst_row = std::max(result.errors.worst_row, e.worst_row);
    result.errors.worst_excess = std::max(result.errors.worst_excess, e.worst_excess);
    result.errors.worst_lse = std::max(result.errors.worst_lse, e.worst_lse);
    if (!e.fault.empty()) return fault(result, schedule, e.fault);
    if (schedule.policy == Policy::fixed_split && schedule.levels == LevelMode::automatic) {
      if (fixed_.o.empty()) fixed_ = first;
      if (!first.same_bits(fixed_)) return fault(result, schedule, "fixed_split: another number of CTAs gives other bits");
    }
    if (options_.sabotage != Sabotage::none) return;  // a spoiled plan leaves counters behind: once is enough

    Output second;
    if (!run_once(engine, plan, schedule, result, second)) return;
    if (!second.same_bits(first)) return fault(result, schedule, "a second run of the same plan gives other bits");
    options.threads = 2;
    Engine two = make_engine(capacity, options);
    const Plan same = two.plan(batch_);
    if (!same_bytes(plan, same)) return fault(result, schedule, "plan: a second engine (CPU: of two threads) gives other bytes");
    if (!run_once(two, same, schedule, result, second)) return;
    if (!second.same_bits(first)) return fault(result, schedule, "a second engine (CPU: of two threads) gives other bits");
  }

 private:
  Engine make_engine(const Capacity& capacity, const EngineOptions& options) {
    return Engine(engine_case_.spec, capacity, options, workspace_->take(Engine::workspace_size(engine_case_.spec, capacity, options)));
  }

  bool run_once(Engine& engine, const Plan& plan, const Schedule& schedule, CaseResult& result, Output& out) {
    data_.poison_outputs();
    if (on_gpu_) {
      run_on_gpu(engine, plan);
    } else {
      engine.run(plan, tensors_);
    }
    ++result.runs;
    out = {data_.read_o(), data_.read_lse()};
    const std::string stray = data_.stray_write();
    if (!stray.empty()) fault(result, schedule, stray);
    if (!workspace_->tail_untouched()) fault(result, schedule, "bytes past the end of the workspace were written");
    return result.errors.fault.empty();
  }

  void run_on_gpu(Engine& engine, const Plan& plan) {
    on_gpu_->upload_outputs();
    if (options_.watchdog) options_.watchdog->arm(describe(case_));
    engine.run(plan, on_gpu_->tensors());
    on_gpu_->download_outputs();
    if (options_.watchdog) options_.watchdog->disarm();
  }

  // Small enough to walk every (row, key) pair of its plan.
  bool is_small() const { return case_.total_tokens() * case_.total_kv_tokens() <= 4096; }

  // The sections in use; what lies between them is capacity.
  static bool same_bytes(const Plan& a, const Plan& b) {
    const PlanView x = a.view(), y = b.view();
    auto same = [](const auto& s, const auto& t) {
      return s.size == t.size && (s.size == 0 || std::memcmp(s.data, t.data, size_t(s.size) * sizeof s.data[0]) == 0);
    };
    return a.bytes().size == b.bytes().size && std::memcmp(x.header, y.header, sizeof(PlanHeader)) == 0 && same(x.groups, y.groups) &&
           same(x.row_entries, y.row_entries) && same(x.cta_indptr, y.cta_indptr) && same(x.items, y.items) && same(x.units, y.units) &&
           same(x.entries, y.entries) && same(x.touches, y.touches);
  }
  static void fault(CaseResult& result, const Schedule& schedule, const std::string& what) {
    if (!result.errors.fault.empty()) return;
    result.errors.fault = what;
    result.failed = schedule;
  }

  const Case& case_;
  Case engine_case_;
  CaseData& data_;
  const CaseOptions& options_;
  SpoiledInputs spoiled_inputs_;
  bool spoiled_ = false;
  Batch batch_;
  RunTensors tensors_;
  std::unique_ptr<SharedWorkspace> workspace_;
  std::unique_ptr<GpuTensors> on_gpu_;
  std::vector<double> ref_o_, ref_lse_, growth_;
  std::vector<ref::Rounding> rounding_;
  std::string kernel_;  // of the moment
  Output fixed_;  // of the first schedule by fixed_split
};

}  // namespace

std::vector<Schedule> all_schedules(const Case& c) {
  std::vector<Schedule> all;
  for (int32_t p = 0; p < kNumPolicies; ++p) {
    for (const int32_t ctas : kCtas) all.push_back({Policy(p), ctas, LevelMode::automatic});
  }
  if (!c.shared.empty()) {
    all.push_back({Policy::automatic, 132, LevelMode::off});
    all.push_back({Policy::stream, 7, LevelMode::off});
  }
  return all;
}

CaseResult run_case(const Case& c, const CaseOptions& options) {
  CaseData data(c);
  return run_data(data, options);
}

CaseResult run_data(CaseData& data, const CaseOptions& options) {
  CaseResult result;
  const std::vector<Schedule> schedules = options.schedules.empty() ? all_schedules(data.what()) : options.schedules;
  Schedule at;
  result.errors.fault = data.slope_fault();
  if (!result.errors.fault.empty()) return result;
  try {
    CaseRun run(data, options);
    for (const Schedule& schedule : schedules) {
      at = schedule;
      run.run(schedule, result);
      if (!result.errors.fault.empty()) break;
    }
  } catch (const Error& e) {
    result.errors.fault = std::string("refused: ") + e.what();
    result.failed = at;
  }
  return result;
}

}  // namespace kvloom::check
