// How times on a GPU are taken: by the GPU's own clock, in two protocols, beside the frequency that its SMs had meanwhile.
#pragma once

#include "kvloom/api/gpu.h"

#include <nlohmann/json.hpp>

#include <functional>
#include <string>

namespace kvloom::cli {

/// Compute-bound work is timed twice: a GPU's clock falls as soon as its power limit acts.
struct GpuProtocol {
  double idle_s = 0.7;  // burst: after a pause `warm_ups` launches and `repeat` that count, back to back; the median
  int warm_ups = 4, repeat = 12;
  double warm_s = 0.15, measured_s = 0.25;  // sustained: that long back to back, then at least that long measured; the mean
};

/// Puts `runs` equal runs into the timer's stream.
struct GpuWork {
  std::function<void()> launch;
  int runs = 1;
};

struct GpuTimes {
  double us = 0;                  // of one run: burst the median, sustained the mean
  double p10_us = 0, p90_us = 0;  // of the launches
  int runs = 0;                   // that count
  double clock_mhz = 0;           // of the SMs, mean over those runs; 0: unknown
  std::string clock_why;          // why it is
};

class GpuTimer {
 public:
  GpuTimer(int32_t device, const GpuProtocol& protocol);

  GpuStream& stream() { return stream_; }
  const GpuProtocol& protocol() const { return protocol_; }
  /// One launch, by itself.
  double once_us(const GpuWork& work);
  /// `idle`: with the pause. Memory-bound work does not need it.
  GpuTimes burst(const GpuWork& work, bool idle);
  /// `us`: about what a run takes.
  GpuTimes sustained(const GpuWork& work, double us);

 private:
  GpuTimes timed(const GpuWork& work, int launches);
  void probe(int slot);
  void read_clock(GpuTimes& times) const;

  GpuProtocol protocol_;
  GpuInfo gpu_;
  GpuStream stream_;
  GpuProgram clock_;
  GpuBuffer readings_;
};

/// The kernel that reads an SM's cycles and the time, as CUDA C++.
extern const char* const kGpuClockText;
/// What it is given.
struct GpuClockReading {
  unsigned long long cycles = 0, ns = 0;  // 0: the SM ran no block
};
constexpr int kMostSms = 1024;  // readings of one probe, by SM

/// FLOP that the tensor cores of an SM do a cycle at most, dense products of 16-bit numbers with fp32 sums; 0: unknown for this chip.
double tensor_flop_a_cycle(const std::string& arch);
/// `flop` a run over what the tensor cores could have done in as many cycles; 0: unknown.
double tensor_share(const GpuInfo& gpu, double flop, const GpuTimes& times);

nlohmann::ordered_json to_json(const GpuProtocol& protocol);
/// null for 0, which stands for what is not known.
nlohmann::ordered_json known(double x);
/// The time under the name `us`, spread, and the clock or why it is not known.
void add_times(nlohmann::ordered_json& to, const char* us, const GpuTimes& times);

}  // namespace kvloom::cli
