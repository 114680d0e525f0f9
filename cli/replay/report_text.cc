#include "cli/replay/report.h"

#include <fmt/format.h>

#include <cmath>

namespace kvloom::replay {
namespace {

std::string bytes(double n) {
  const char* const units[] = {"B", "KB", "MB", "GB", "TB"};
  int u = 0;
  for (; n >= 999.5 && u < 4; ++u) n /= 1000.0;
  return fmt::format("{:.{}f} {}", n, n < 9.995 && u > 0 ? 2 : 0, units[u]);
}

std::string duration(double us) {
  if (us < 999.5) return fmt::format("{:.1f} us", us);
  if (us < 999.5e3) return fmt::format("{:.2f} ms", us * 1e-3);
  return fmt::format("{:.2f} s", us * 1e-6);
}

std::string count(int64_t n) {
  std::string digits = std::to_string(n), out;
  for (size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && (digits.size() - i) % 3 == 0) out += ',';
    out += digits[i];
  }
  return out;
}

void line(std::string& out, const char* name, const std::string& text) { out += fmt::format("  {:<12} {}\n", name, text); }

std::string share(double part, double whole) { return whole > 0 ? fmt::format("{:3.0f} %", 100.0 * part / whole) : "    -"; }

void setting(const Report& r, std::string& out) {
  const Model& m = r.model;
  const std::string dims =
      m.head_dim_qk == m.head_dim_vo ? fmt::format("d{}", m.head_dim_qk) : fmt::format("d{}/{}", m.head_dim_qk, m.head_dim_vo);
  line(out, "model",
       fmt::format("{}: {}/{} heads, {}, q {}, KV {}, {} of {} layers", m.name, m.qo_heads, m.kv_heads, dims, name_of(r.types.q),
                   name_of(r.types.kv), r.layers, m.layers));
  line(out, "trace",
       fmt::format("{} ({}), arrivals x {:g}{}", r.trace, r.trace_format, r.rate_scale,
                   r.samples > 1 ? fmt::format(", {} samples a prompt", r.samples) : ""));
  line(out, "kernel", r.kernel_keys);
  line(out, "plan",
       fmt::format("policy {}, levels {}, {} virtual CTAs, taken one by one by {} thread{}", r.policy, r.levels, r.num_ctas, r.threads,
                   r.threads == 1 ? "" : "s"));
  line(out, "KV pool",
       fmt::format("{} tokens in pages of {}, {} {}, at most {} in use", count(r.pool_tokens), r.page_size,
                   bytes(double(r.pool_tokens * r.token_bytes) * r.pools),
                   r.pools == r.layers ? "(a pool a layer)" : "(one pool for all layers)",
                   bytes(double(r.most_used_pages * r.page_size * r.token_bytes) * r.pools)));
  line(out, "clock",
       r.fixed_step_us > 0
           ? fmt::format("{} a step (fixed)", duration(r.fixed_step_us))
           : fmt::format("measured attention time x {:g}: what {} layers would take", double(r.model.layers) / r.layers, r.model.layers));
}

void traffic(const Report& r, std::string& out) {
  line(out, "requests",
       fmt::format("{} taken in, {} sequences finished, {} rejected, {} preempted, {} rows skipped", count(r.requests),
                   count(r.counts.finished), r.rejected.size(), count(r.counts.preempted), count(r.skipped_rows)));
  for (size_t i = 0; i < r.rejected.size() && i < 5; ++i) {
    line(out, "",
         fmt::format("rejected: line {}: {} tokens need {} pages, the pool has {}; give a larger --kv-pool-tokens", r.rejected[i].line,
                     count(r.rejected[i].tokens), count(r.rejected[i].pages), count(r.pool_tokens / r.page_size)));
  }
  if (r.rejected.size() > 5) line(out, "", fmt::format("... and {} more", r.rejected.size() - 5));
  if (!r.first_skipped.empty()) line(out, "", "skipped: " + r.first_skipped);
  line(out, "steps",
       fmt::format("{}, at most {} sequences together; {:.1f} s simulated, {:.1f} s of this machine", count(r.steps), r.most_sequences,
                   r.simulated_seconds, r.wall_seconds));
  line(out, "tokens",
       fmt::format("{} computed ({} again after preemption), {:.1f} % of prompt tokens found in the prefix cache", count(r.counts.tokens),
                   count(r.counts.recomputed), 100.0 * r.prefix_hit_rate()));
}

void speed(const Report& r, std::string& out) {
  out += fmt::format("  {:<12} {:>9} {:>12} {:>12} {:>10} {:>6} {:>10} {:>6}\n", "", "steps", "median", "p99", "GB/s", "", "GFLOP/s", "");
  out += fmt::format("  {:<12} {:>9} {:>12} {:>12}\n", "plan", count(r.plan_us.count()), duration(r.plan_us.median()),
                     duration(r.plan_us.p99()));
  const char* const names[] = {"run, decode", "run, mixed", "run, prefill", "run, all"};
  const StepTotals* const rows[] = {&r.kinds[0], &r.kinds[1], &r.kinds[2], &r.all};
  for (int i = 0; i < 4; ++i) {
    const StepTotals& t = *rows[i];
    if (t.steps == 0) continue;
    out += fmt::format("  {:<12} {:>9} {:>12} {:>12} {:>10.1f} {:>6} {:>10.1f} {:>6}\n", names[i], count(t.steps),
                       duration(t.layer_us.median()), duration(t.layer_us.p99()), t.gbps(), share(t.gbps(), r.ceilings.read_gbps),
                       t.gflops(), share(t.gflops(), r.ceilings.fma_gflops));
  }
  if (r.ceilings.read_gbps > 0) {
    out += fmt::format("  {:<12} {:>9} {:>12} {:>12} {:>10.1f} {:>6} {:>10.1f}\n", "ceiling", "", "", "", r.ceilings.read_gbps, "",
                       r.ceilings.fma_gflops);
  }
  if (r.plans_ahead > 0) {
    line(out, "",
         fmt::format("{} of {} steps were planned while the one before them ran; {} of planning was left in the way", count(r.plans_ahead),
                     count(r.steps), duration(r.plan_us_total - r.hidden_plan_us)));
  }
  line(
      out, "throughput",
      fmt::format("{} tokens/s through the attention of {} layer{}", count(int64_t(r.tokens_per_s())), r.layers, r.layers == 1 ? "" : "s"));
}

void scheduling(const Report& r, std::string& out) {
  std::string chosen;
  for (const auto& [name, steps] : r.policies) chosen += fmt::format("{}{} {}", chosen.empty() ? "" : ", ", name, count(steps));
  line(out, "policies", chosen.empty() ? "-" : chosen);
  if (r.balance.count() > 0) {
    line(out, "balance",
         fmt::format("most loaded CTA / mean: median {:.3f}, p99 {:.3f} ({} steps with 32 tiles a CTA or more)", r.balance.median(),
                     r.balance.p99(), count(r.balance.count())));
  }
  line(out, "",
       fmt::format("most loaded CTA above the mean by at most {:.2f} tiles; by more than one in {} of {} steps", r.max_excess_tiles,
                   count(r.steps_over_one_tile), count(r.split_steps)));
  line(out, "levels",
       fmt::format("in {} steps, {} of K and V not read again ({:.1f} %)", count(r.steps_with_levels), bytes(r.saved_bytes),
                   r.all.read_bytes > 0 ? 100.0 * r.saved_bytes / (r.saved_bytes + r.all.read_bytes) : 0.0));
}

void timelines(const Report& r, std::string& out) {
  if (!r.takes_times) return;
  for (const auto& timed : r.timed) {
    if (!timed) continue;
    line(out, "timeline", timed->timeline.name);
    line(out, "", cli::to_text(timed->timeline, cli::summarise(timed->timeline)));
  }
  if (r.on_gpu()) line(out, "", "kernels that take times are a little slower than the usual: figures of this replay are none to quote");
}

std::string bound(double x) { return std::isinf(x) ? "-" : fmt::format("{:.1e}", x); }

void errors(const Report& r, std::string& out) {
  const std::string fault = r.fault();
  line(out, "checked",
       fmt::format("{} rows against fp64: whole {:.2e} (bound {:.1e}), worst row {:.2e} ({})", count(r.rows_checked), r.rel_error,
                   r.tolerance.whole, r.max_rel_error, bound(r.tolerance.row)));
  line(out, "",
       fmt::format("beyond the output's rounding {:.1e} ({}), LSE {:.1e} ({:.0e}): {}", r.max_excess_error, bound(r.tolerance.excess),
                   r.max_lse_error, r.tolerance.lse, fault.empty() ? "within tolerance" : "NOT WITHIN TOLERANCE: " + fault));
}

void correctness(const Report& r, std::string& out) {
  if (r.rows_checked > 0 || !r.fault().empty()) {
    errors(r, out);
  } else {
    line(out, "checked", "nothing: no row was computed");
  }
  line(out, "memory",
       fmt::format("{} at most{}", bytes(double(r.peak_rss_bytes)),
                   r.on_gpu() ? fmt::format(", and {} of the GPU's", bytes(double(r.peak_device_bytes))) : ""));
}

}  // namespace

std::string to_text(const Report& r) {
  std::string out = fmt::format("kvloom replay: attention only (no projections, MLP, norms or sampling), on {}\n",
                                r.on_gpu() ? "one " + r.gpu.name : "the CPU");
  if (!r.stopped.empty()) out += fmt::format("STOPPED BEFORE THE END ({}): a partial report\n", r.stopped);
  out += '\n';
  setting(r, out);
  out += '\n';
  traffic(r, out);
  out += '\n';
  speed(r, out);
  out += '\n';
  scheduling(r, out);
  timelines(r, out);
  out += '\n';
  correctness(r, out);
  line(out, "machine", fmt::format("{}, {} cores, {}", r.machine.cpu, r.machine.cores, r.machine.targets));
  return out;
}

}  // namespace kvloom::replay
