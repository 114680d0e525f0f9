#include "cli/bench/gpu_rows.h"

#include "cli/bench/gpu_products.h"
#include "cli/bench/timing.h"
#include "kvloom/api/gpu.h"
#include "kvloom/base/math.h"
#include "kvloom/support/check.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <numeric>
#include <random>

namespace kvloom::cli {
namespace {

constexpr int kWarmUps = 4;
constexpr int kHostRuns = 40;
constexpr double kShortUs = 400.0;  // below this several runs make a graph: between two events alone stands the host's launch, too
constexpr int64_t kRotateBytes = int64_t(1) << 30;  // copies of K and V until they are larger than any cache by far
constexpr int kMostCopies = 16;
constexpr int64_t kBlockValues = 4000037;  // a prime number

/// Normal values on the device: a block of a prime number of them from the host, repeated by copies on the device.
void fill_random(GpuBuffer& buffer, GpuStream& stream, DType dtype, uint32_t seed) {
  const std::vector<char> block = normal_block(dtype, kBlockValues, seed);
  const int64_t first = std::min<int64_t>(buffer.size(), int64_t(block.size()));
  buffer.upload(block.data(), first);
  for (int64_t done = first; done < buffer.size(); done += first) {
    stream.copy(buffer.data() + done, buffer.data(), std::min(first, buffer.size() - done));
  }
  stream.synchronize();
}

struct Problem {
  std::vector<int32_t> qo_indptr{0}, list_indptr{0}, pages;
  std::vector<int64_t> mask_indptr{0};
  Batch batch;
  Capacity capacity;
  RunTensors tensors;
  std::vector<std::pair<void*, void*>> copies;  // K and V
  std::deque<GpuBuffer> buffers;
};

void make_tables(const GpuShape& s, Problem& p) {
  const int32_t page = s.spec.page_size;
  for (size_t r = 0; r < s.q_len.size(); ++r) {
    p.qo_indptr.push_back(p.qo_indptr.back() + s.q_len[r]);
    p.list_indptr.push_back(p.list_indptr.back() + ceil_div(s.kv_len[r], page));
    p.mask_indptr.push_back(p.mask_indptr.back() + (int64_t(s.q_len[r]) * s.kv_len[r] + 7) / 8);
  }
  p.batch.num_requests = int32_t(s.q_len.size());
  p.batch.qo_indptr = IndexView(p.qo_indptr.data(), int64_t(p.qo_indptr.size()));
  p.batch.kv_len = IndexView(s.kv_len.data(), int64_t(s.kv_len.size()));
  p.batch.list_indptr = IndexView(p.list_indptr.data(), int64_t(p.list_indptr.size()));
  if (s.spec.storage == Storage::paged) {
    p.pages.resize(size_t(p.list_indptr.back()));
    std::iota(p.pages.begin(), p.pages.end(), 0);
    std::shuffle(p.pages.begin(), p.pages.end(), std::mt19937(3));
    p.batch.pages = IndexView(p.pages.data(), int64_t(p.pages.size()));
  }
  p.capacity = {p.batch.num_requests, p.qo_indptr.back(), std::accumulate(s.kv_len.begin(), s.kv_len.end(), int64_t(0)), 0, 0};
}

class Uploads {
 public:
  Uploads(Problem& p, GpuStream& stream, int32_t device) : p_(p), stream_(stream), device_(device) {}
  char* random(int64_t elements, DType dtype, uint32_t seed) {
    p_.buffers.emplace_back(device_, elements * size_of(dtype));
    fill_random(p_.buffers.back(), stream_, dtype, seed);
    return p_.buffers.back().data();
  }
  template <class T>
  T* array(const std::vector<T>& x) {
    p_.buffers.emplace_back(device_, int64_t(x.size() * sizeof(T)));
    p_.buffers.back().upload(x.data(), int64_t(x.size() * sizeof(T)));
    return p_.buffers.back().as<T>();
  }

 private:
  Problem& p_;
  GpuStream& stream_;
  int32_t device_;
};

void make_tensors(const GpuShape& s, Problem& p, GpuStream& stream, int32_t device) {
  const AttentionSpec& spec = s.spec;
  Uploads put(p, stream, device);
  const int64_t tokens = p.qo_indptr.back(), lists = p.list_indptr.back(), heads = spec.num_kv_heads;
  const int64_t slots = lists * spec.page_size, k_elements = slots * heads * spec.head_dim_qk,
                v_elements = slots * heads * spec.head_dim_vo;
  const int64_t bytes = (k_elements + v_elements) * size_of(spec.kv_dtype);
  const int copies = int(std::clamp<int64_t>(kRotateBytes / std::max<int64_t>(bytes, 1), 1, kMostCopies));
  for (int i = 0; i < copies; ++i) {
    void* k = put.random(k_elements, spec.kv_dtype, uint32_t(10 + 2 * i));
    p.copies.push_back({k, put.random(v_elements, spec.kv_dtype, uint32_t(11 + 2 * i))});
  }
  const auto cache = [&](void* data, int64_t dim) {
    return spec.storage == Storage::paged ? Tensor::dense(data, spec.kv_dtype, {lists, spec.page_size, heads, dim})
                                          : Tensor::dense(data, spec.kv_dtype, {slots, heads, dim});
  };
  RunTensors& t = p.tensors;
  t.k = cache(p.copies[0].first, spec.head_dim_qk);
  t.v = cache(p.copies[0].second, spec.head_dim_vo);
  t.q = Tensor::dense(put.random(tokens * spec.num_qo_heads * spec.head_dim_qk, spec.q_dtype, 1), spec.q_dtype,
                      {tokens, spec.num_qo_heads, spec.head_dim_qk});
  t.o = Tensor::dense(put.random(tokens * spec.num_qo_heads * spec.head_dim_vo, spec.o_dtype, 2), spec.o_dtype,
                      {tokens, spec.num_qo_heads, spec.head_dim_vo});
  if (!p.pages.empty()) t.pages = IndexView(put.array(p.pages), int64_t(p.pages.size()));
  if (spec.variant.alibi) t.alibi_slopes = put.array(std::vector<float>(size_t(spec.num_qo_heads), 0.01f));
  if (spec.variant.sink) t.sink = put.array(std::vector<float>(size_t(spec.num_qo_heads), 0.5f));
  if (spec.variant.custom_mask) {
    std::vector<uint8_t> mask(size_t(p.mask_indptr.back()));
    std::mt19937 random(5);
    for (uint8_t& byte : mask) byte = uint8_t(random());
    t.mask = put.array(mask);
    t.mask_indptr = put.array(p.mask_indptr);
  }
}

/// (row, key) pairs that are kept by order and window; a random mask counts as full: what is computed is tiles.
double kept_pairs(const GpuShape& s) {
  const KeyRange& r = s.spec.variant.range;
  double pairs = 0.0;
  for (size_t i = 0; i < s.q_len.size(); ++i) {
    for (int32_t q = 0; q < s.q_len[i]; ++q) {
      const int64_t pos = int64_t(s.kv_len[i]) - s.q_len[i] + q, end = r.causal ? pos + 1 : s.kv_len[i];
      const int64_t begin = r.left >= 0 ? std::max<int64_t>(0, pos - r.left) : 0;
      pairs += double(std::max<int64_t>(0, end - begin));
    }
  }
  return pairs * s.spec.num_qo_heads;
}

double bytes_read_once(const GpuShape& s) {
  const AttentionSpec& spec = s.spec;
  const double dims = double(spec.head_dim_qk) + spec.head_dim_vo;
  double kv_tokens = 0.0, tokens = 0.0;
  for (size_t i = 0; i < s.q_len.size(); ++i) {
    const int32_t left = spec.variant.range.left;
    kv_tokens += left >= 0 ? std::min<int64_t>(s.kv_len[i], int64_t(left) + s.q_len[i]) : s.kv_len[i];
    tokens += s.q_len[i];
  }
  return kv_tokens * spec.num_kv_heads * dims * size_of(spec.kv_dtype) +
         tokens * spec.num_qo_heads * (double(spec.head_dim_qk) * size_of(spec.q_dtype) + double(spec.head_dim_vo) * size_of(spec.o_dtype));
}

/// What `work` takes of the stream, by the GPU's clock.
template <class F>
double time_us(GpuStream& stream, F&& work) {
  stream.forget_marks();
  const int32_t begin = stream.mark();
  work();
  return 1e3 * double(stream.milliseconds(begin, stream.mark()));
}

GpuBenchRow measure(const GpuShape& s, const GpuBenchOptions& o) {
  GpuStream stream(o.device);
  Problem p;
  make_tables(s, p);
  make_tensors(s, p, stream, o.device);
  EngineOptions options;
  options.backend = Backend::cuda;
  options.device = o.device;
  Engine engine(s.spec, p.capacity, options);
  GpuBenchRow row;
  row.shape = s.name;
  row.key = engine.kernel_key();
  std::vector<double> plans, hosts;
  Plan plan = engine.plan(p.batch);
  for (int i = 0; i < 3 * o.repeat; ++i) {
    const double start = now_us();
    engine.replan(plan, p.batch);
    plans.push_back(now_us() - start);
  }
  row.plan_bytes = plan.bytes().size;
  engine.upload(plan, stream.handle());
  const auto run_copy = [&](size_t i) {
    RunTensors t = p.tensors;
    t.k.data = p.copies[i % p.copies.size()].first;
    t.v.data = p.copies[i % p.copies.size()].second;
    engine.run(plan, t, stream.handle());
  };
  for (int i = 0; i < kHostRuns; ++i) {
    const double start = now_us();
    run_copy(size_t(i));
    hosts.push_back(now_us() - start);
  }
  stream.synchronize();
  row.runs = time_us(stream, [&] { run_copy(0); }) < kShortUs ? 2 * int(p.copies.size()) : 1;
  stream.begin_capture();
  for (int i = 0; i < row.runs; ++i) run_copy(size_t(i));
  stream.end_capture();
  std::vector<double> times;
  for (int i = 0; i < kWarmUps + o.repeat; ++i) {
    const double us = time_us(stream, [&] { stream.launch(); }) / row.runs;
    if (i >= kWarmUps) times.push_back(us);
  }
  row.median_us = percentile(times, 0.5);
  row.p10_us = percentile(times, 0.1);
  row.p90_us = percentile(times, 0.9);
  row.plan_us = percentile(plans, 0.5);
  row.run_host_us = percentile(hosts, 0.5);
  row.tbps = bytes_read_once(s) / row.median_us * 1e-6;
  row.tflops = 2.0 * (double(s.spec.head_dim_qk) + s.spec.head_dim_vo) * kept_pairs(s) / row.median_us * 1e-6;
  row.policy = name_of(plan.view().header->policy);
  return row;
}

constexpr const char* kReadText = R"(// bench.read
extern "C" __global__ void sweep(const uint4* from, long long count, unsigned* to) {
  unsigned sum = 0;
  const long long step = (long long)gridDim.x * blockDim.x;
  long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
  for (; i + 7 * step < count; i += 8 * step) {
    uint4 x[8];
#pragma unroll
    for (int u = 0; u < 8; ++u) x[u] = __ldcs(from + i + u * step);
#pragma unroll
    for (int u = 0; u < 8; ++u) sum += x[u].x ^ x[u].y ^ x[u].z ^ x[u].w;
  }
  if (sum == 0x12345678u) *to = sum;
}
)";

template <class F>
double median_us_of(GpuStream& stream, int repeat, F&& work) {
  std::vector<double> times;
  for (int i = 0; i < repeat; ++i) times.push_back(time_us(stream, work));
  return percentile(times, 0.5);
}

}  // namespace

GpuCeilings measure_gpu_ceilings(int32_t device) {
  constexpr int64_t kBytes = int64_t(4) << 30;
  GpuStream stream(device);
  GpuBuffer from(device, kBytes), to(device, kBytes);
  from.fill(1);
  GpuProgram program(device, "bench.read", kReadText);
  GpuCeilings c;
  c.copy_tbps = 2.0 * kBytes / median_us_of(stream, 9, [&] { stream.copy(to.data(), from.data(), kBytes); }) * 1e-6;
  const void* source = from.data();
  void* sink = to.data();
  long long count = kBytes / 16;
  const uint32_t grid = uint32_t(gpus()[size_t(device)].num_sms) * 8;
  c.read_tbps = double(kBytes) /
                median_us_of(stream, 9,
                             [&] {
                               program.launch("sweep", grid, 256, {&source, &count, &sink}, stream);
                             }) *
                1e-6;
  c.products_tflops = measure_gpu_products_tflops(device);
  return c;
}

std::vector<GpuBenchRow> run_gpu_bench(const GpuBenchOptions& options, const GpuCeilings& ceilings,
                                       const std::function<void(const GpuBenchRow&)>& report) {
  std::vector<GpuBenchRow> rows;
  for (const GpuShape& s : gpu_bench_shapes()) {
    if (s.name.find(options.filter) == std::string::npos) continue;
    GpuBenchRow row = measure(s, options);
    row.share = s.memory_bound ? row.tbps / ceilings.read_tbps : row.tflops / ceilings.products_tflops;
    rows.push_back(row);
    report(rows.back());
  }
  require(!rows.empty(), "bench: --filter: got \"{}\", wanted part of a shape's name; leave it out to see all of them", options.filter);
  return rows;
}

nlohmann::ordered_json to_json(const GpuBenchRow& r) {
  return {{"shape", r.shape},          {"key", r.key},   {"policy", r.policy}, {"median_us", r.median_us}, {"p10_us", r.p10_us},
          {"p90_us", r.p90_us},        {"tbps", r.tbps}, {"tflops", r.tflops}, {"plan_us", r.plan_us},     {"run_host_us", r.run_host_us}, {"runs", r.runs},          {"share", r.share},
          {"plan_bytes", r.plan_bytes}};
}

nlohmann::ordered_json to_json(const GpuCeilings& c) { return {{"copy_tbps", c.copy_tbps}, {"read_tbps", c.read_tbps}, {"products_tflops", c.products_tflops}}; }

}  // namespace kvloom::cli
