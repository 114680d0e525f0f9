#include "cli/bench/gpu_rows.h"

#include <algorithm>

namespace kvloom::cli {
namespace {

AttentionSpec llama_spec(int32_t page_size, bool causal, DType kv = DType::bf16) {
  AttentionSpec s;
  s.num_qo_heads = 32;
  s.num_kv_heads = 8;
  s.head_dim_qk = s.head_dim_vo = 128;
  s.q_dtype = s.o_dtype = DType::bf16;
  s.kv_dtype = kv;
  s.storage = page_size > 0 ? Storage::paged : Storage::ragged;
  s.page_size = std::max(1, page_size);
  s.variant.range.causal = causal;
  return s;
}

std::vector<int32_t> repeated(int32_t n, int32_t x) { return std::vector<int32_t>(size_t(n), x); }

/// Lengths proportional to 1 / rank, of the given mean.
std::vector<int32_t> zipf(int32_t n, int32_t mean) {
  double harmonic = 0.0;
  for (int32_t i = 1; i <= n; ++i) harmonic += 1.0 / i;
  std::vector<int32_t> x;
  for (int32_t i = 1; i <= n; ++i) x.push_back(std::max(1, int32_t(double(n) * mean / harmonic / i)));
  return x;
}

void add_decode(std::vector<GpuShape>& list) {
  const auto add = [&](const char* name, int32_t page, DType kv, std::vector<int32_t> lengths) {
    list.push_back({name, llama_spec(page, true, kv), repeated(int32_t(lengths.size()), 1), std::move(lengths), true});
  };
  add("decode-128x8192-page16", 16, DType::bf16, repeated(128, 8192));
  add("decode-128x8191-page16", 16, DType::bf16, repeated(128, 8191));
  add("decode-128x8229-page16", 16, DType::bf16, repeated(128, 8229));
  add("decode-128x8192-page1", 1, DType::bf16, repeated(128, 8192));
  add("decode-128x8192-page64", 64, DType::bf16, repeated(128, 8192));
  add("decode-128x8192-page16-e4m3", 16, DType::e4m3, repeated(128, 8192));
  add("decode-zipf-64x4096-page16", 16, DType::bf16, zipf(64, 4096));
  add("decode-16x1024-page16", 16, DType::bf16, repeated(16, 1024));
  add("decode-1x32768-page16", 16, DType::bf16, {32768});
}

void add_prefill(std::vector<GpuShape>& list) {
  const auto add = [&](const char* name, int32_t page, bool causal, int32_t n, int32_t length) {
    list.push_back({name, llama_spec(page, causal), repeated(n, length), repeated(n, length), false});
  };
  add("prefill-causal-1x16384-ragged", 0, true, 1, 16384);
  add("prefill-causal-1x16384-page64", 64, true, 1, 16384);
  add("prefill-causal-1x16384-page16", 16, true, 1, 16384);
  add("prefill-causal-1x16384-page1", 1, true, 1, 16384);
  add("prefill-causal-1x16421-page16", 16, true, 1, 16421);
  add("prefill-full-1x16384-ragged", 0, false, 1, 16384);
  add("prefill-causal-4x4096-page16", 16, true, 4, 4096);
  add("prefill-causal-16x1024-page16", 16, true, 16, 1024);
  GpuShape d64{"prefill-causal-1x16384-ragged-d64", llama_spec(0, true), {16384}, {16384}, false};
  d64.spec.head_dim_qk = d64.spec.head_dim_vo = 64;
  list.push_back(d64);
  GpuShape d256{"prefill-causal-1x16384-ragged-d256", llama_spec(0, true), {16384}, {16384}, false};
  d256.spec.head_dim_qk = d256.spec.head_dim_vo = 256;
  d256.spec.num_qo_heads = 16;
  d256.spec.num_kv_heads = 8;
  list.push_back(d256);
  GpuShape mixed{"mixed-4x512at4096-60x4096-page16", llama_spec(16, true), repeated(4, 512), repeated(64, 4096), false};
  mixed.q_len.resize(64, 1);
  list.push_back(mixed);
}

/// Each feature on the plain rows, whose names they extend.
void add_features(std::vector<GpuShape>& list) {
  const auto add = [&](const char* feature, auto change) {
    GpuShape prefill{std::string("prefill-causal-1x16384-ragged-") + feature, llama_spec(0, true), {16384}, {16384}, false};
    GpuShape decode{std::string("decode-128x8192-page16-") + feature, llama_spec(16, true), repeated(128, 1), repeated(128, 8192), true};
    change(prefill.spec.variant);
    change(decode.spec.variant);
    list.push_back(prefill);
    list.push_back(decode);
  };
  add("window1024", [](VariantSpec& v) { v.range.left = 1023; });
  add("alibi", [](VariantSpec& v) { v.alibi = true; });
  add("softcap", [](VariantSpec& v) { v.soft_cap = 30.0f; });
  add("sink", [](VariantSpec& v) { v.sink = true; });
  add("rope", [](VariantSpec& v) { v.rope.mode = RopeMode::half_split; });
  GpuShape mask{"prefill-1x4096-ragged-mask", llama_spec(0, false), {4096}, {4096}, false};
  GpuShape plain{"prefill-1x4096-ragged", llama_spec(0, false), {4096}, {4096}, false};
  mask.spec.variant.custom_mask = true;
  list.push_back(plain);
  list.push_back(mask);
}

}  // namespace

std::vector<GpuShape> gpu_bench_shapes() {
  std::vector<GpuShape> list;
  add_decode(list);
  add_prefill(list);
  add_features(list);
  return list;
}

}  // namespace kvloom::cli
