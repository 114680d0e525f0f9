#include "cli/replay/replay.h"

#include "cli/bench/gpu_ceilings.h"
#include "cli/bench/gpu_products.h"
#include "cli/replay/memory.h"
#include "cli/replay/step_export.h"
#include "cli/replay/step_machine.h"
#include "kvloom/api/gpu.h"
#include "kvloom/support/check.h"
#include "kvloom/support/thread_pool.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <optional>

namespace kvloom::replay {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

std::vector<TraceRequest> load(const ReplayOptions& o, const std::atomic<bool>& stop, Report& report) {
  std::vector<TraceRequest> trace;
  if (o.trace.empty()) {
    SyntheticOptions synthetic = o.synthetic;
    synthetic.seed = o.seed;
    if (o.requests >= 0) synthetic.requests = o.requests;
    trace = synthetic_trace(synthetic);
    report.trace = "synthetic";
    report.trace_format = fmt::format("seed {}", o.seed);
  } else {
    TraceReader reader(o.trace == "-" ? "stdin" : o.trace, std::make_unique<FileSource>(o.trace, &stop), o.skip_bad);
    for (TraceRequest r; (o.requests < 0 || int64_t(trace.size()) < o.requests) && reader.next(r);) trace.push_back(std::move(r));
    report.trace = o.trace;
    report.trace_format = reader.format();
    report.skipped_rows = reader.skipped_rows();
    report.first_skipped = reader.first_skipped();
    if (stop.load(std::memory_order_relaxed)) report.stopped = "interrupted";  // what has been read is not all
    if (trace.empty() && o.requests != 0 && report.stopped.empty()) {
      fail(ErrorCode::invalid_argument, "trace {}: got no request{}, wanted one at least: a CSV header (Azure) with rows below it, or JSON objects (Mooncake), one a line",
           o.trace == "-" ? "stdin" : o.trace,
           report.skipped_rows > 0 ? fmt::format(" ({} rows left out by --skip-bad; the first: {})", report.skipped_rows, report.first_skipped) : "");
    }
  }
  for (TraceRequest& r : trace) r.arrival_ns = int64_t(double(r.arrival_ns) / o.rate_scale);
  return trace;
}

/// Tokens of one continuation whose K and V are kept: the last one produced is never computed.
int64_t held_tokens(const TraceRequest& r) { return r.prompt_tokens + std::max<int64_t>(r.output_tokens - 1, 0); }

struct PoolSize {
  int64_t pages = 0;
  int32_t pools = 1;
};

/// Bytes that pools may take: of their own accord, and where the user gave a size.
struct PoolRoom {
  int64_t automatic = 0, wanted = 0;
};

PoolRoom room_of(const ReplayOptions& o) {
  if (o.engine.backend == Backend::cuda) {
    const int64_t free = gpu_memory(o.engine.device).free_bytes;
    return {free / 100 * 85, free / 100 * 95};
  }
  const int64_t available = available_memory() > 0 ? available_memory() : int64_t(8) << 30;
  return {std::min<int64_t>(available / 4, int64_t(4) << 30), available * 3 / 4};
}

/// A pool a layer where memory allows it; else one pool that all layers read.
PoolSize pool_size(const ReplayOptions& o, const std::vector<TraceRequest>& trace, int64_t token_bytes) {
  const int64_t page = o.batch.page_size;
  int64_t largest = page, useful = page;
  for (const TraceRequest& r : trace) {
    const int64_t rounded = (held_tokens(r) + page - 1) / page * page;
    largest = std::max(largest, rounded);
    useful += o.batch.samples * (rounded + page);
  }
  const PoolRoom room = room_of(o);
  const int64_t wanted = o.kv_pool_tokens > 0 ? o.kv_pool_tokens : useful;
  const int64_t enough = o.kv_pool_tokens > 0 ? wanted : std::min(useful, std::max<int64_t>(largest, 65536));
  PoolSize size;
  const int64_t roof = o.kv_pool_tokens > 0 ? room.wanted : room.automatic;
  if (roof / (token_bytes * o.layers) >= enough) size.pools = o.layers;
  const int64_t tokens = o.kv_pool_tokens > 0 ? wanted : std::min(useful, room.automatic / (token_bytes * size.pools));
  size.pages = std::max<int64_t>(tokens / page, 1);
  return size;
}

constexpr int32_t kMostCheckRows = 65536;  // a step: each is attention over all of its keys in double precision
constexpr double kMostStepUs = 1e9;        // 1000 s: millions of them fit the simulated clock

void validate(const ReplayOptions& o, const Model& model) {
  require(o.rate_scale > 0 && std::isfinite(o.rate_scale), "--rate-scale: got {}, wanted a number above 0", o.rate_scale);
  require(o.layers >= 1 && o.layers <= model.layers, "--layers: got {}, wanted 1 to {} ({})", o.layers, model.layers, model.name);
  require(o.engine.backend == Backend::cpu || o.engine.backend == Backend::cuda, "--backend: got {}, wanted cpu or cuda",
          int(o.engine.backend));
  require(o.check_rows >= 1 && o.check_rows <= kMostCheckRows, "--check-rows: got {}, wanted 1 to {}; every step is checked", o.check_rows, kMostCheckRows);
  require(o.fixed_step_us >= 0 && o.fixed_step_us <= kMostStepUs, "--fixed-step-us: got {}, wanted 0 (measured) to {}", o.fixed_step_us, kMostStepUs);
}

class Replay {
 public:
  Replay(const ReplayOptions& options, const std::atomic<bool>& stop, const std::function<void(const ReplayProgress&)>& progress)
      : o_(options), stop_(stop), progress_(progress), model_(find_model(options.model, options.overrides)) {
    validate(o_, model_);
    trace_ = load(o_, stop_, report_);
    if (!o_.export_path.empty()) export_.emplace(o_.export_path);
    for (const TraceRequest& r : trace_) owed_tokens_ += o_.batch.samples * held_tokens(r);
  }

  Report run() {
    if (on_gpu()) report_.gpu = cli::gpu_at(o_.engine.device, "replay");
    if (o_.measure_ceilings) measure_ceilings();
    reset_peak_rss();
    set_up();
    const auto start = Clock::now();
    int64_t now_ns = 0;
    std::optional<PlannedStep> next;
    while (true) {
      if (!next) {
        batcher_->arrive(now_ns);
        if (batcher_->done()) break;
        if (batcher_->idle()) {
          now_ns = batcher_->next_arrival_ns();
          continue;
        }
      }
      if (stop_.load(std::memory_order_relaxed)) report_.stopped = "interrupted";
      if (o_.limit_seconds > 0 && seconds_since(start) > o_.limit_seconds) report_.stopped = "time limit";
      if (!report_.stopped.empty()) break;
      if (!next) next = plan_step();
      now_ns += run_step(now_ns, next);
      show_progress(seconds_since(start));
    }
    if (export_) export_->close();
    report_.simulated_seconds = double(now_ns) * 1e-9;
    report_.wall_seconds = seconds_since(start);
    finish();
    return std::move(report_);
  }

 private:
  /// A step that was planned and not run yet.
  struct PlannedStep {
    StepKind kind = StepKind::decode;
    int64_t tokens = 0, sequences = 0, kv_tokens = 0;
    uint64_t cost = 0;  // of the first layer's plan
    double plan_us = 0.0;
    bool ahead = false;  // planned while the step before ran
    std::vector<StepStats> stats;
    std::vector<ref::Row> rows;
    int32_t checked_layer = 0;
  };

  bool on_gpu() const { return o_.engine.backend == Backend::cuda; }

  void measure_ceilings() {
    if (trace_.empty()) return;
    cli::Ceilings c;
    if (on_gpu()) {
      cli::GpuTimer timer(o_.engine.device, {});
      c.read_gbps = 1e3 * cli::measure_gpu_read_tbps(o_.engine.device, timer);
      c.fma_gflops = 1e3 * cli::measure_gpu_products_tflops(o_.engine.device);
    } else {
      ThreadPool pool(threads());
      cli::ReadCeiling memory;
      c = cli::measure_ceilings(pool, memory);
    }
    report_.ceilings.read_gbps = std::max(report_.ceilings.read_gbps, c.read_gbps);
    report_.ceilings.fma_gflops = std::max(report_.ceilings.fma_gflops, c.fma_gflops);
  }

  int32_t threads() const { return o_.engine.threads > 0 ? o_.engine.threads : std::max(1, cli::this_machine().cores); }

  void set_up() {
    const int64_t token_bytes = model_.kv_elements() * size_of(o_.types.kv);
    const PoolSize size = pool_size(o_, trace_, token_bytes);
    pages_.emplace(size.pages);
    cache_.emplace(*pages_);
    batcher_.emplace(o_.batch, trace_, *pages_, *cache_);
    MachineOptions m;
    m.engine = o_.engine;
    m.engine.threads = threads();
    m.engine.timeline = o_.timeline;
    m.types = o_.types;
    m.layout = o_.layout;
    m.page_size = o_.batch.page_size;
    m.pages = size.pages;
    m.pools = size.pools;
    m.layers = o_.layers;
    m.max_batch = o_.batch.max_batch;
    m.token_budget = o_.batch.token_budget;
    for (const TraceRequest& request : trace_) m.longest = std::max(m.longest, held_tokens(request));
    m.check_rows = o_.check_rows;
    m.seed = o_.seed;
    machine_ = make_machine(model_, m);
    rows_.emplace(mix(o_.seed, 0x726f7773));
    describe(size, token_bytes);
  }

  void describe(const PoolSize& size, int64_t token_bytes) {
    report_.model = model_;
    report_.types = o_.types;
    report_.layers = o_.layers;
    report_.samples = o_.batch.samples;
    report_.rate_scale = o_.rate_scale;
    for (int32_t kind = 0; kind < machine_->kinds(); ++kind) {
      report_.kernel_keys += (kind > 0 ? ", " : "") + machine_->engine(kind).kernel_key();
    }
    report_.policy = name_of(o_.engine.policy);
    report_.levels = o_.engine.levels == LevelMode::automatic ? "auto" : "off";
    report_.threads = on_gpu() ? 1 : threads();
    report_.num_ctas = machine_->engine(0).config().num_ctas;
    report_.page_size = o_.batch.page_size;
    report_.pool_tokens = size.pages * o_.batch.page_size;
    report_.pools = size.pools;
    report_.token_bytes = token_bytes;
    report_.fixed_step_us = o_.fixed_step_us;
    report_.takes_times = o_.timeline;
    report_.tolerance = tolerance_of(machine_->spec(0), on_gpu());
    report_.machine = cli::this_machine();
  }

  /// Chooses, lays out and plans the next step; !batcher_->idle().
  PlannedStep plan_step() {
    const Step& step = batcher_->schedule();
    machine_->prepare(*batcher_, step);
    PlannedStep p;
    p.kind = kind_of(step);
    p.tokens = step.tokens;
    p.sequences = int64_t(step.slices.size());
    for (const Slice& slice : step.slices) p.kv_tokens += slice.kv_len;
    for (int32_t kind = 0; kind < machine_->kinds(); ++kind) {
      const double us = machine_->plan(kind);
      p.plan_us += us;
      report_.plan_us.add(us);
      p.stats.push_back(step_stats(machine_->plan_view(kind), machine_->spec(kind), step.slices, report_.token_bytes));
    }
    p.cost = machine_->plan_view(0).header->cost_total;
    p.checked_layer = int32_t(report_.steps % o_.layers);  // the steps before this one: all started, so all counted
    const int32_t checked_kind = machine_->kind_of(p.checked_layer);
    p.rows = rows_->choose(machine_->plan_view(checked_kind), machine_->spec(checked_kind), o_.check_rows);
    return p;
  }

  /// Runs the step in `next`, and leaves the one after it there if that was planned meanwhile. Returns how long the step takes on the
  /// simulated clock, in nanoseconds.
  int64_t run_step(int64_t now_ns, std::optional<PlannedStep>& next) {
    const PlannedStep p = std::move(*next);
    next.reset();
    const int64_t number = report_.steps;
    if (export_) export_->write(number, now_ns, *batcher_, batcher_->step(), o_.batch.page_size);
    machine_->start(p.checked_layer, p.rows);
    count_step(p);
    batcher_->commit();
    if (machine_->plans_ahead()) {
      // By the measured clock nobody knows when the step ends: who arrives meanwhile takes part one step later.
      batcher_->arrive(now_ns + fixed_step_ns());
      if (!batcher_->idle()) {
        next = plan_step();
        next->ahead = true;
      }
    }
    const StepResult result = machine_->finish();
    double run_us = 0.0;
    for (int32_t layer = 0; layer < o_.layers; ++layer) {
      const double us = result.layer_us[size_t(layer)];
      run_us += us;
      count_run(p.stats[size_t(machine_->kind_of(layer))], p.kind, us);
    }
    if (o_.timeline) take_times(p, number);
    rows_->add(machine_->spec(machine_->kind_of(p.checked_layer)), result.rows);
    report_.nonfinite_outputs += result.nonfinite_outputs;
    const double model_us = run_us * model_.layers / o_.layers;
    double hidden_us = 0.0;  // of planning the next step
    if (next) {
      hidden_us = std::min(next->plan_us, run_us);
      ++report_.plans_ahead;
      report_.hidden_plan_us += hidden_us;
    }
    if (o_.fixed_step_us > 0) return fixed_step_ns();
    const double shown_us = p.ahead ? 0.0 : p.plan_us;  // a plan made ahead was counted with the step that it was made in
    return std::max<int64_t>(1, int64_t((shown_us + model_us + (next ? next->plan_us - hidden_us : 0.0)) * 1e3));
  }

  int64_t fixed_step_ns() const { return o_.fixed_step_us > 0 ? std::max<int64_t>(1, int64_t(o_.fixed_step_us * 1e3)) : 0; }

  static StepKind kind_of(const Step& step) {
    int64_t decodes = 0;
    for (const Slice& slice : step.slices) decodes += slice.q_len == 1;
    if (decodes == int64_t(step.slices.size())) return StepKind::decode;
    return decodes == 0 ? StepKind::prefill : StepKind::mixed;
  }

  void count_plan(const StepStats& s) {
    ++report_.policies[name_of(s.policy)];
    if (s.tiles_per_cta >= 32.0) report_.balance.add(s.balance);
    if (!s.can_split) return;
    ++report_.split_steps;
    report_.steps_over_one_tile += s.excess_tiles > 1.0;
    report_.max_excess_tiles = std::max(report_.max_excess_tiles, s.excess_tiles);
  }

  void count_run(const StepStats& s, StepKind kind, double us) {
    for (StepTotals* t : {&report_.all, &report_.kinds[static_cast<int>(kind)]}) {
      t->run_us += us;
      t->read_bytes += double(s.read_bytes);
      t->flop += s.flop;
      t->layer_us.add(us);
    }
    report_.run_us.add(us);
    if (s.levels > 1) report_.saved_bytes += double(s.flat_bytes - s.read_bytes);
  }

  /// Of each kind of step that with the most work keeps its timeline.
  void take_times(const PlannedStep& p, int64_t number) {
    std::optional<TimedStep>& timed = report_.timed[static_cast<int>(p.kind)];
    if (timed && p.cost <= timed->cost) return;
    const std::string name = fmt::format("step {}, {}: {} sequences, {} query tokens, {} keys", number, kStepKindNames[static_cast<int>(p.kind)],
                                         p.sequences, p.tokens, p.kv_tokens);
    timed = {number, p.cost, machine_->timeline(name)};
  }

  void count_step(const PlannedStep& p) {
    for (const StepStats& stats : p.stats) count_plan(stats);
    report_.plan_us_total += p.plan_us;
    ++report_.steps;
    for (StepTotals* t : {&report_.all, &report_.kinds[static_cast<int>(p.kind)]}) {
      ++t->steps;
      t->tokens += p.tokens;
    }
    report_.steps_with_levels += p.stats[0].levels > 1;
    report_.most_sequences = std::max(report_.most_sequences, p.sequences);
    report_.most_used_pages = std::max(report_.most_used_pages, pages_->total_pages() - pages_->free_pages());
    step_kv_tokens_ = p.kv_tokens;
    step_sequences_ = p.sequences;
  }

  void show_progress(double seconds) {
    if (!progress_) return;
    const BatchCounts& c = batcher_->counts();
    ReplayProgress p;
    p.share = owed_tokens_ > 0 ? std::min(1.0, double(c.tokens - c.recomputed + c.hit_tokens) / double(owed_tokens_)) : 1.0;
    p.steps = report_.steps;
    p.sequences = step_sequences_;
    p.kv_tokens = step_kv_tokens_;
    p.seconds = seconds;
    progress_(p);
  }

  void finish() {
    report_.requests = batcher_->arrived();
    report_.counts = batcher_->counts();
    report_.rejected = batcher_->rejected();
    report_.rows_checked = rows_->rows();
    report_.rel_error = rows_->whole_error();
    report_.max_rel_error = rows_->worst_row();
    report_.max_excess_error = rows_->worst_excess();
    report_.max_lse_error = rows_->worst_lse();
    report_.effective_elements = rows_->effective_elements();
    report_.peak_rss_bytes = peak_rss();
    report_.peak_device_bytes = machine_->device_bytes();
    machine_.reset();
    if (o_.measure_ceilings && report_.stopped.empty()) measure_ceilings();  // the machine's speed may have moved: the better one counts
  }

  const ReplayOptions o_;
  const std::atomic<bool>& stop_;
  const std::function<void(const ReplayProgress&)>& progress_;
  const Model model_;
  Report report_;
  std::vector<TraceRequest> trace_;
  std::optional<StepExport> export_;
  std::optional<PageAllocator> pages_;
  std::optional<RadixTree> cache_;
  std::optional<Batcher> batcher_;
  std::unique_ptr<StepMachine> machine_;
  std::optional<RowCheck> rows_;
  int64_t owed_tokens_ = 0;
  int64_t step_kv_tokens_ = 0, step_sequences_ = 0;
};

}  // namespace

Report run_replay(const ReplayOptions& options, const std::atomic<bool>& stop, const std::function<void(const ReplayProgress&)>& progress) {
  return Replay(options, stop, progress).run();
}

}  // namespace kvloom::replay
