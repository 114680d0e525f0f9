#include "cli/bench/gpu_constants.h"

#include "cli/bench/gpu_problem.h"
#include "cli/bench/gpu_rows.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <thread>

namespace kvloom::cli {
namespace {

using Json = nlohmann::ordered_json;

GpuShape shape(int32_t requests, int32_t q_len, int32_t kv_len, int32_t shared_prefix = 0) {
  GpuShape s;
  AttentionSpec& a = s.spec;
  a.num_qo_heads = 32, a.num_kv_heads = 8;
  a.head_dim_qk = a.head_dim_vo = 128;
  a.q_dtype = a.kv_dtype = a.o_dtype = DType::bf16;
  a.variant.range.causal = true;
  s.q_len.assign(size_t(requests), q_len);
  s.kv_len.assign(size_t(requests), kv_len);
  s.shared_prefix = shared_prefix;
  s.levels = LevelMode::off;
  return s;
}

/// A step planned for so many CTAs, ready to run. CTAs of a step of many rows may be clusters of two SMs.
struct Work {
  GpuShape step;
  GpuProblem problem;
  std::optional<Engine> engine;
  std::optional<Plan> plan;

  Work(const GpuShape& s, int32_t ctas, int32_t device, const std::string& kernel, GpuNormals& normals) : step(s), problem(step, device, normals) {
    EngineOptions o;
    o.backend = Backend::cuda;
    o.device = device;
    o.num_ctas = ctas;
    o.levels = LevelMode::off;
    if (!kernel.empty()) o.kernel = kernel.c_str();
    engine.emplace(step.spec, problem.capacity(), o);
    plan.emplace(engine->plan(problem.batch()));
  }
  void run(int i, GpuStream& stream) { engine->run(*plan, problem.tensors(i), stream.handle()); }
};

class Constants {
 public:
  Constants(int32_t device, const std::string& kernel, GpuTimer& timer, GpuNormals& normals, int32_t keys)
      : device_(device), kernel_(kernel), timer_(timer), normals_(normals), keys_(keys), sms_(gpus()[size_t(device)].num_sms) {}

  Json measure() {
    Json j{{"sms", sms_}};
    for (const int32_t ctas : {1, 8, sms_ / 4, sms_ / 2, sms_ * 3 / 4, sms_}) j["read"].push_back(read(std::clamp(ctas, 1, sms_)));
    for (const int32_t ctas : {sms_ / 4, sms_ / 2, sms_ * 5 / 8}) j["read_beside_computing"].push_back(beside(std::max(1, ctas / 2 * 2)));
    j["compute"] = {compute(1, 2), compute(std::max(1, sms_ / 2), 16)};
    j["few_rows_from_l2"] = {from_l2(1), from_l2(4)};
    j["merge"] = merges();
    j["item"] = items();
    return j;
  }

 private:
  double us_of(Work& work) {
    GpuStream& stream = timer_.stream();
    timer_.once_us({[&] { work.run(0, stream); }});
    const int runs = graph_runs(timer_.once_us({[&] { work.run(0, stream); }}), work.problem.copies());
    stream.begin_capture();
    for (int i = 0; i < runs; ++i) work.run(i, stream);
    stream.end_capture();
    return timer_.burst({[&] { stream.launch(); }, runs}, false).us;
  }
  double us_of(const GpuShape& s, int32_t ctas) {
    Work work(s, ctas, device_, kernel_, normals_);
    return us_of(work);
  }

  /// 32 MB of keys and values a CTA, of 1024 keys.
  GpuShape long_decode(int32_t ctas) const { return shape(8, 1, keys_ * ctas); }

  Json read(int32_t ctas) {
    const GpuShape s = long_decode(ctas);
    const double us = us_of(s, ctas);
    return {{"ctas", ctas}, {"us", us}, {"bytes_per_ns_per_cta", 1e-3 * bytes_of(s) / us / ctas}};
  }

  Json compute(int32_t ctas, int32_t units) {
    const int32_t tokens = units * keys_;
    const GpuShape s = shape(1, tokens, tokens);
    Work work(s, ctas, device_, kernel_, normals_);
    const double us = us_of(work);
    return {{"ctas", ctas}, {"tokens", tokens}, {"us", us}, {"flop_per_ns_per_cta", 1e-3 * flop_of(s) / us / ctas}, {"cost_total_us", planned_us(work)}};
  }
  static double planned_us(const Work& work) { return 1e-3 * double(work.plan->view().header->cost_total); }

  /// `ctas` SMs read while the others compute; both by themselves first.
  Json beside(int32_t ctas) {
    Work computing(shape(1, 16 * keys_, 16 * keys_), std::max(1, (sms_ - ctas) / 2), device_, kernel_, normals_);
    Work reading(long_decode(ctas), ctas, device_, kernel_, normals_);
    GpuStream& first = timer_.stream();
    GpuStream second(device_);
    timer_.once_us({[&] { computing.run(0, first); }});
    const double alone = timer_.once_us({[&] { computing.run(0, first); }});
    reading.run(0, second);
    second.synchronize();
    first.forget_marks();
    const int32_t begin = first.mark();
    computing.run(0, first);
    const int32_t end = first.mark();
    std::this_thread::sleep_for(std::chrono::microseconds(500));  // its CTAs are in their places
    std::vector<int32_t> marks{second.mark()};
    const int launches = std::max(2, int(alone / 600.0));
    for (int i = 0; i < launches; ++i) {
      reading.run(i, second);
      marks.push_back(second.mark());
    }
    const double both = 1e3 * double(first.milliseconds(begin, end));
    // The first launch lies within the other kernel's time, unless that was over too soon.
    const double us = 1e3 * double(second.milliseconds(marks[0], marks[1]));
    second.synchronize();
    Json j{{"reading_ctas", ctas}, {"us", us}, {"bytes_per_ns_per_cta", 1e-3 * bytes_of(reading.step) / us / ctas}, {"computing_us_alone", alone}, {"computing_us_beside", both}};
    if (both < 500.0 + us) j["why"] = "the computing kernel ended first";
    return j;
  }

  /// All requests read the same 2048 keys, 8 MB, again and again.
  Json from_l2(int32_t q_len) {
    const GpuShape s = shape(2 * sms_, q_len, 2 * keys_ + q_len, 2 * keys_);
    const double us = us_of(s, sms_), tokens = 2.0 * sms_ * (2 * keys_ + q_len);
    return {{"q_len", q_len}, {"us", us}, {"bytes_per_ns_per_cta", 1e-3 * tokens * 4096 / us / sms_}, {"flop_per_ns_per_cta", 1e-3 * flop_of(s) / us / sms_}};
  }

  /// The same bytes of the same CTAs in units that are whole, and cut into 4 and 16 parts.
  Json merges() {
    const double whole = us_of(shape(16, 1, 2 * keys_), kCtas), four = us_of(shape(4, 1, 8 * keys_), kCtas), sixteen = us_of(shape(1, 1, 32 * keys_), kCtas);
    const double sixteen_of_16_rows = us_of(shape(1, 4, 32 * keys_), kCtas), whole_of_16_rows = us_of(shape(16, 4, 2 * keys_), kCtas);
    return {{"whole_us", whole},
            {"in_4_parts_us", four - whole},
            {"in_16_parts_us", sixteen - whole},
            {"of_16_rows_whole_us", whole_of_16_rows},
            {"of_16_rows_in_16_parts_us", sixteen_of_16_rows - whole_of_16_rows}};
  }

  /// The same bytes of the same CTAs in one item each, and in 8 and 32.
  Json items() {
    const double one = us_of(shape(16, 1, 8 * keys_), kCtas), eight = us_of(shape(128, 1, keys_), kCtas), many = us_of(shape(512, 1, keys_ / 4), kCtas);
    return {{"one_us", one}, {"us_per_item_of_8_a_cta", (eight - one) / 7}, {"us_per_item_of_32_a_cta", (many - one) / 31}};
  }

  static constexpr int32_t kCtas = 128;  // 16 requests of 8 KV heads: one unit each

  int32_t device_;
  std::string kernel_;
  GpuTimer& timer_;
  GpuNormals& normals_;
  int32_t keys_, sms_;
};

}  // namespace

Json measure_gpu_constants(int32_t device, const std::string& kernel, GpuTimer& timer, GpuNormals& normals, int32_t keys) {
  return Constants(device, kernel, timer, normals, keys).measure();
}

}  // namespace kvloom::cli
