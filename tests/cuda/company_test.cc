// fixed_split: a row's bits are those that it has alone, in any batch, however its prefill was cut, with any number of CTAs.
#include "tests/cuda/engine_fixture.h"

#include <algorithm>
#include <cstring>
#include <numeric>

namespace kvloom::test {
namespace {

struct World {
  const char* name;
  void (*bend)(AttentionSpec&);
  int32_t split_tokens = 0;
};

constexpr World kWorlds[] = {
    {"plain", [](AttentionSpec&) {}},
    {"short chunks", [](AttentionSpec& s) { s.variant.sink = true; s.o_dtype = DType::f32; }, 128},
    {"groups of one", [](AttentionSpec& s) { s.num_kv_heads = s.num_qo_heads; }, 256},
    {"pages of 3", [](AttentionSpec& s) { s.page_size = 3; }},
    {"window", [](AttentionSpec& s) { s.variant.range.left = 150; }},
    {"not causal", [](AttentionSpec& s) { s.variant.range.causal = false; s.variant.range.left = 90; s.variant.range.right = 40; }},
    {"d128, groups of 8", [](AttentionSpec& s) { s.head_dim_qk = s.head_dim_vo = 128; s.num_qo_heads = 8; s.num_kv_heads = 1; }},
    {"alibi", [](AttentionSpec& s) { s.variant.alibi = true; s.head_dim_qk = s.head_dim_vo = 128; }},
    {"soft cap", [](AttentionSpec& s) { s.variant.soft_cap = 3.0f; s.head_dim_qk = s.head_dim_vo = 128; }},
    {"mask", [](AttentionSpec& s) { s.variant.custom_mask = true; s.head_dim_qk = s.head_dim_vo = 128; }},
    {"sigmoid", [](AttentionSpec& s) { s.variant.reduction = Reduction::sum; s.variant.sigmoid_bias = -4.0f; s.head_dim_qk = s.head_dim_vo = 128; }},
    {"fp8", [](AttentionSpec& s) { s.kv_dtype = DType::e4m3; s.head_dim_qk = s.head_dim_vo = 128; s.num_kv_heads = 4; }},
    {"fp8, three heads", [](AttentionSpec& s) { s.kv_dtype = DType::e4m3; s.head_dim_qk = s.head_dim_vo = 128; s.num_qo_heads = s.num_kv_heads = 3; }, 512},
    {"ragged", [](AttentionSpec& s) { s.storage = Storage::ragged; s.page_size = 1; s.head_dim_qk = s.head_dim_vo = 128; }},
    {"d256", [](AttentionSpec& s) { s.head_dim_qk = s.head_dim_vo = 256; }},
};

/// Some query tokens of a request, with all keys that they can see.
struct Part {
  int32_t request, begin, end;
};

/// Requests of which any part may be asked for, in any company.
class Company {
 public:
  Company(FakeGpu& gpu, const AttentionSpec& spec, const World& world, const char* family)
      : spec_(spec), all_(make_step({{901, 901}, {640, 640}, {300, 300}, {257, 257}, {31, 31}, {1, 1}}, spec, 5)), there_(all_) {
    gpu.add_kernel(spec, true);
    gpu.set_spec(&spec_);
    for (const int32_t ctas : {0, 3, 41}) {
      EngineOptions options = cuda_options();
      options.policy = Policy::fixed_split;
      options.kernel = family;
      options.num_ctas = ctas;
      options.split_tokens = world.split_tokens;
      engines_.emplace_back(spec, Capacity{kMost, 4000, 12000, 0, 0}, options);
    }
    for (int32_t r = 0; r < requests(); ++r) alone_.push_back(run({{r, 0, length(r)}}, 0));
  }

  int32_t requests() const { return int32_t(all_.requests.size()); }
  int32_t length(int32_t r) const { return all_.kv_len[size_t(r)]; }
  const std::string& key() const { return engines_[0].kernel_key(); }
  static constexpr int32_t kMost = 40;

  /// What differs; "": nothing.
  std::string fault_of(const std::vector<Part>& parts, int32_t engine) {
    const std::vector<char> got = run(parts, engine);
    const int64_t tokens = tokens_of(parts);
    int64_t token = 0;
    for (const Part& p : parts) {
      const std::vector<char>& want = alone_[size_t(p.request)];
      for (int32_t t = p.begin; t < p.end; ++t, ++token) {
        const auto differs = [&](int64_t got_at, int64_t want_at, int64_t bytes) { return std::memcmp(&got[size_t(got_at)], &want[size_t(want_at)], size_t(bytes)) != 0; };
        if (!differs(token * o_bytes_, t * o_bytes_, o_bytes_) && !differs(tokens * o_bytes_ + token * lse_bytes_, length(p.request) * o_bytes_ + t * lse_bytes_, lse_bytes_)) continue;
        return "request " + std::to_string(p.request) + " of " + std::to_string(length(p.request)) + " tokens, " + std::to_string(p.begin) + " to " + std::to_string(p.end) +
               " among " + std::to_string(parts.size()) + ", engine " + std::to_string(engine) + ": token " + std::to_string(t);
      }
    }
    return "";
  }
  /// The requests alone are right.
  void expect_right_alone() {
    Step s = make_step(all_.requests, spec_, 5);
    int64_t token = 0;
    for (int32_t r = 0; r < requests(); token += length(r), ++r) {
      std::memcpy(&s.o.bytes[size_t(token * o_bytes_)], alone_[size_t(r)].data(), size_t(length(r) * o_bytes_));
      std::memcpy(&s.lse.bytes[size_t(token * lse_bytes_)], &alone_[size_t(r)][size_t(length(r) * o_bytes_)], size_t(length(r) * lse_bytes_));
    }
    if (spec_.variant.custom_mask) std::copy(all_mask_.begin(), all_mask_.end(), s.mask.begin());
    expect_gpu_right(s, key());
  }

 private:
  static int64_t tokens_of(const std::vector<Part>& parts) {
    return std::accumulate(parts.begin(), parts.end(), int64_t(0), [](int64_t n, const Part& p) { return n + p.end - p.begin; });
  }
  static bool keeps(int32_t request, int32_t token, int32_t key) {
    const uint32_t x = (uint32_t(request) * 7919u + uint32_t(token) * 104729u + uint32_t(key)) * 2654435761u;
    return (x >> 16) % 5 != 0 && (key / 64 + token / 32) % 3 != 0;
  }
  void add_mask(const Part& p) {
    const size_t first = mask_.size();
    mask_.resize(first + size_t((int64_t(p.end - p.begin) * p.end + 7) / 8));
    int64_t bit = 0;
    for (int32_t t = p.begin; t < p.end; ++t) {
      for (int32_t k = 0; k < p.end; ++k, ++bit) mask_[first + size_t(bit / 8)] |= uint8_t(keeps(p.request, t, k) << bit % 8);
    }
  }

  /// O, then LSE.
  std::vector<char> run(const std::vector<Part>& parts, int32_t engine) {
    std::vector<int32_t> qo_indptr{0}, kv_len, q_pos0;
    std::vector<int64_t> list_indptr, mask_indptr{0};
    std::vector<char> q;
    mask_.clear();
    const size_t q_bytes = size_t(spec_.num_qo_heads * spec_.head_dim_qk * size_of(spec_.q_dtype));
    for (const Part& p : parts) {
      const auto first = all_.q.bytes.begin() + int64_t(size_t(all_.qo_indptr[size_t(p.request)]) * q_bytes);
      q.insert(q.end(), first + int64_t(size_t(p.begin) * q_bytes), first + int64_t(size_t(p.end) * q_bytes));
      qo_indptr.push_back(qo_indptr.back() + p.end - p.begin);
      kv_len.push_back(spec_.variant.range.causal ? p.end : length(p.request));
      q_pos0.push_back(p.begin);
      list_indptr.push_back(all_.list_indptr[size_t(p.request)]);
      if (spec_.variant.custom_mask) add_mask(p), mask_indptr.push_back(int64_t(mask_.size()));
    }
    const int64_t tokens = qo_indptr.back();
    Batch batch;
    batch.num_requests = int32_t(parts.size());
    batch.qo_indptr = IndexView(qo_indptr.data(), int64_t(qo_indptr.size()));
    batch.kv_len = IndexView(kv_len.data(), int64_t(kv_len.size()));
    batch.list_indptr = IndexView(list_indptr.data(), int64_t(list_indptr.size()));
    batch.q_pos0 = q_pos0.data();
    if (spec_.storage == Storage::paged) batch.pages = IndexView(all_.pages.data(), int64_t(all_.pages.size()));
    const GpuBuffer q_there = put(q), mask_there = put(mask_.empty() ? std::vector<uint8_t>(1) : mask_), indptr_there = put(mask_indptr);
    GpuBuffer o(0, tokens * o_bytes_), lse(0, tokens * lse_bytes_);
    o.fill(0xff), lse.fill(0xff);
    RunTensors t = there_.tensors;
    t.q = Tensor::dense(q_there.data(), spec_.q_dtype, {tokens, spec_.num_qo_heads, spec_.head_dim_qk});
    t.o = Tensor::dense(o.data(), spec_.o_dtype, {tokens, spec_.num_qo_heads, spec_.head_dim_vo});
    if (t.lse.given()) t.lse = Tensor::dense(lse.data(), DType::f32, {tokens, spec_.num_qo_heads});
    if (spec_.variant.custom_mask) t.mask = mask_there.as<uint8_t>(), t.mask_indptr = indptr_there.as<int64_t>();
    Engine& e = engines_[size_t(engine)];
    const Plan plan = e.plan(batch);
    e.run(plan, t);
    gpu_synchronize(0);
    std::vector<char> bits(size_t(tokens * (o_bytes_ + lse_bytes_)));
    o.download(bits.data(), tokens * o_bytes_);
    lse.download(bits.data() + tokens * o_bytes_, tokens * lse_bytes_);
    if (parts.size() == 1 && parts[0].begin == 0) all_mask_.insert(all_mask_.end(), mask_.begin(), mask_.end());
    return bits;
  }

  const AttentionSpec spec_;
  Step all_;  // every request whole
  GpuStep there_;
  std::vector<Engine> engines_;
  std::vector<std::vector<char>> alone_;
  std::vector<uint8_t> mask_, all_mask_;
  const int64_t o_bytes_ = int64_t(spec_.num_qo_heads) * spec_.head_dim_vo * size_of(spec_.o_dtype), lse_bytes_ = int64_t(spec_.num_qo_heads) * 4;
};

class GpuCompany : public GpuEngine, public testing::WithParamInterface<int> {
 protected:
  const World& world() const { return kWorlds[GetParam()]; }
  /// The usual fake driver computes on the CPU: one kernel, whatever the key.
  bool is_worth_it() const { return !gpu.is_fake() || gpu.is_emulated() || GetParam() < 4; }
};

/// 200 batches of a request's parts and others', a whole prefill cut anew in every tenth.
void expect_same_in_any_company(FakeGpu& gpu, const World& world, const char* family) {
  AttentionSpec spec = gpu_spec();
  world.bend(spec);
  Company company(gpu, spec, world, family);
  company.expect_right_alone();
  std::mt19937 random(11);
  const auto below = [&](int32_t n) { return int32_t(random() % uint32_t(n)); };
  const int32_t batches = gpu.is_fake() && !gpu.is_emulated() ? 15 : 200;
  for (int32_t i = 0; i < batches; ++i) {
    std::vector<Part> parts;
    if (i % 10 == 0) {
      const int32_t r = below(company.requests()), step = 1 + below(300);
      for (int32_t t = 0; t < company.length(r) && parts.size() < size_t(Company::kMost); t += step) parts.push_back({r, t, std::min(t + step, company.length(r))});
    }
    for (int32_t others = below(i % 3 == 0 ? 30 : 5) + 1; others > 0 && parts.size() < size_t(Company::kMost); --others) {
      const int32_t r = below(company.requests()), end = 1 + below(company.length(r)), most = std::min(end, below(4) == 0 ? 130 : 6);
      parts.push_back({r, end - 1 - below(most), end});
    }
    int64_t tokens = 0, keys = 0;  // as much as the engines take
    std::shuffle(parts.begin(), parts.end(), random);
    std::erase_if(parts, [&](const Part& p) { return (tokens += p.end - p.begin) > 4000 || (keys += company.length(p.request)) > 12000; });
    const std::string fault = company.fault_of(parts, below(3));
    ASSERT_EQ(fault, "") << company.key() << ", " << world.name << ", batch " << i;
  }
  gpu.set_spec(nullptr);
}

TEST_P(GpuCompany, OfFamilySm90) {
  if (gpu.is_fake() && !gpu.is_emulated()) GTEST_SKIP() << "the CPU's kernels of items with few rows and with many don't agree, as that family's do";
  if (!gpu.is_fake() && gpus()[0].arch != "sm_90a") GTEST_SKIP() << "wants a GPU of compute capability 9.0";
  expect_same_in_any_company(gpu, world(), "sm90");
}

TEST_P(GpuCompany, OfFamilySm80) {
  if (!is_worth_it()) GTEST_SKIP() << "the CPU's arithmetic, once more";
  expect_same_in_any_company(gpu, world(), "sm80");
}

INSTANTIATE_TEST_SUITE_P(Worlds, GpuCompany, testing::Range(0, int(std::size(kWorlds))), [](const auto& info) {
  std::string name = kWorlds[info.param].name;
  for (char& c : name) c = std::isalnum(uint8_t(c)) ? c : '_';
  return name;
});

}  // namespace
}  // namespace kvloom::test
