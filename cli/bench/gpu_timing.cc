#include "cli/bench/gpu_timing.h"

#include "cli/bench/timing.h"

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <thread>
#include <vector>

namespace kvloom::cli {

const char* const kGpuClockText =
    "// bench.clock\n#include \"kvloom/device/ptx/sm.cuh\"\n"
    R"(
struct Reading {
  uint64_t cycles, ns;
};
extern "C" __global__ void read_clock(Reading* to) {
  const uint32_t sm = kvloom::ptx::sm_id();
  if (sm < 1024) to[sm] = {kvloom::ptx::sm_cycles(), kvloom::ptx::nanoseconds()};
}
)";

namespace {

constexpr double kShortestMs = 1.0;  // the time steps by a microsecond: an interval of a thousand of them
constexpr int kFewestLaunches = 8;   // of a sustained row

}  // namespace

GpuTimer::GpuTimer(int32_t device, const GpuProtocol& protocol)
    : protocol_(protocol),
      gpu_(gpus()[size_t(device)]),
      stream_(device),
      clock_(device, "bench.clock", kGpuClockText),
      readings_(device, 2 * kMostSms * int64_t(sizeof(GpuClockReading))) {}

double GpuTimer::once_us(const GpuWork& work) {
  stream_.forget_marks();
  const int32_t begin = stream_.mark();
  work.launch();
  return 1e3 * double(stream_.milliseconds(begin, stream_.mark())) / work.runs;
}

/// An SM's cycles and the time, read by every SM that takes a block: one each, as a rule.
void GpuTimer::probe(int slot) {
  void* to = readings_.data() + slot * kMostSms * int64_t(sizeof(GpuClockReading));
  clock_.launch("read_clock", uint32_t(gpu_.num_sms), 1, {&to}, stream_);
}

GpuTimes GpuTimer::timed(const GpuWork& work, int launches) {
  stream_.forget_marks();
  probe(0);
  std::vector<int32_t> marks{stream_.mark()};
  for (int i = 0; i < launches; ++i) {
    work.launch();
    marks.push_back(stream_.mark());
  }
  probe(1);
  std::vector<double> us;
  for (int i = 0; i < launches; ++i) us.push_back(1e3 * double(stream_.milliseconds(marks[size_t(i)], marks[size_t(i) + 1])) / work.runs);
  GpuTimes t;
  t.runs = launches * work.runs;
  t.us = percentile(us, 0.5);
  t.p10_us = percentile(us, 0.1);
  t.p90_us = percentile(us, 0.9);
  stream_.synchronize();
  read_clock(t);
  return t;
}

GpuTimes GpuTimer::burst(const GpuWork& work, bool idle) {
  stream_.fill(readings_.data(), 0, readings_.size());
  stream_.synchronize();
  if (idle) std::this_thread::sleep_for(std::chrono::duration<double>(protocol_.idle_s));
  for (int i = 0; i < protocol_.warm_ups; ++i) work.launch();
  return timed(work, protocol_.repeat);
}

GpuTimes GpuTimer::sustained(const GpuWork& work, double us) {
  const auto launches = [&](double seconds) { return std::max(kFewestLaunches, int(std::ceil(1e6 * seconds / (us * work.runs)))); };
  stream_.fill(readings_.data(), 0, readings_.size());
  for (int i = launches(protocol_.warm_s); i > 0; --i) work.launch();
  const int count = launches(1.1 * protocol_.measured_s);  // `us` may be of a slower minute
  GpuTimes t = timed(work, count);
  // Marks that were passed: 0 before the first launch, `count` behind the last.
  t.us = 1e3 * double(stream_.milliseconds(0, count)) / t.runs;
  return t;
}

/// Cycles over time of every SM that both probes saw; the median. Nothing is said where SMs disagree or the chip can't have been so fast.
void GpuTimer::read_clock(GpuTimes& t) const {
  std::vector<GpuClockReading> r(2 * kMostSms);
  readings_.download(r.data(), readings_.size());
  std::vector<double> mhz;
  for (size_t i = 0; i < kMostSms; ++i) {
    const GpuClockReading &a = r[i], &b = r[i + kMostSms];
    if (a.ns == 0 || b.ns < a.ns + uint64_t(1e6 * kShortestMs) || b.cycles <= a.cycles) continue;
    mhz.push_back(1e3 * double(b.cycles - a.cycles) / double(b.ns - a.ns));
  }
  if (int32_t(mhz.size()) < (gpu_.num_sms + 1) / 2) {
    t.clock_why =
        fmt::format("two probes {} ms or more apart met on {} of {} SMs, wanted half of them", kShortestMs, mhz.size(), gpu_.num_sms);
    return;
  }
  const double low = percentile(mhz, 0.1), high = percentile(mhz, 0.9), most = 1e-3 * gpu_.clock_khz;
  if (high > 1.02 * low || high > 1.05 * most || low < 0.1 * most) {
    t.clock_why = fmt::format("SMs read {:.0f} to {:.0f} MHz where the chip's clock is {:.0f} at most, wanted one frequency below it", low,
                              high, most);
    return;
  }
  t.clock_mhz = percentile(mhz, 0.5);
}

double tensor_flop_a_cycle(const std::string& arch) {
  if (arch == "sm_90a" || arch == "sm_90") return 4096.0;  // 989 TFLOP/s of 132 SMs at 1.83 GHz
  if (arch == "sm_80") return 2048.0;                      // 312 TFLOP/s of 108 SMs at 1.41 GHz
  return 0.0;
}

double tensor_share(const GpuInfo& gpu, double flop, const GpuTimes& t) {
  const double most = tensor_flop_a_cycle(gpu.arch) * gpu.num_sms * t.clock_mhz * t.us;
  return most > 0 ? flop / most : 0.0;
}

nlohmann::ordered_json known(double x) { return x > 0 ? nlohmann::ordered_json(x) : nlohmann::ordered_json(); }

nlohmann::ordered_json to_json(const GpuProtocol& p) {
  return {{"burst", {{"idle_s", p.idle_s}, {"warm_ups", p.warm_ups}, {"median_of", p.repeat}}},
          {"sustained", {{"warm_s", p.warm_s}, {"measured_s", p.measured_s}}}};
}

void add_times(nlohmann::ordered_json& to, const char* us, const GpuTimes& t) {
  to[us] = t.us;
  to["p10_us"] = t.p10_us;
  to["p90_us"] = t.p90_us;
  to["measured_runs"] = t.runs;
  to["clock_mhz"] = known(t.clock_mhz);
  if (t.clock_mhz == 0) to["clock_why"] = t.clock_why;
}

}  // namespace kvloom::cli
