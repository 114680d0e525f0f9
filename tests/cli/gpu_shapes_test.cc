// The tables of `kvloom bench --backend cuda`: what a row's name says is what is run, and every row has a kernel.
#include "cli/bench/gpu_shapes.h"

#include "kvloom/api/kernels.h"

#include <gtest/gtest.h>

#include <map>
#include <numeric>
#include <set>

namespace kvloom::cli {
namespace {

GpuShape find(const std::string& name, bool odd_lengths = false) {
  for (const GpuShape& s : gpu_bench_shapes(gpu_preset_names(), odd_lengths)) {
    if (s.name == name) return s;
  }
  ADD_FAILURE() << "no row " << name;
  return {};
}

bool same(const GpuShape& a, const GpuShape& b) {
  return a.spec == b.spec && a.q_len == b.q_len && a.kv_len == b.kv_len && a.memory_bound == b.memory_bound &&
         a.shared_prefix == b.shared_prefix && a.shared_with == b.shared_with && a.shared_tokens == b.shared_tokens && a.v_in_k == b.v_in_k &&
         a.policy == b.policy && a.levels == b.levels && a.early_launch == b.early_launch && a.rope_apart == b.rope_apart;
}

TEST(GpuPresets, OneNameIsOneRow) {
  std::map<std::string, GpuShape> seen;
  for (const GpuPreset& p : gpu_presets()) {
    for (const int32_t more : {0, -1, 37}) {
      for (const GpuShape& s : p.rows(more)) {
        const auto [at, fresh] = seen.emplace(s.name, s);
        EXPECT_TRUE(fresh || same(at->second, s)) << s.name;
      }
    }
  }
  EXPECT_EQ(gpu_bench_shapes(gpu_preset_names(), true).size(), seen.size());
}

TEST(GpuPresets, EveryRowHasAKernelOfHopper) {
  for (const GpuShape& s : gpu_bench_shapes(gpu_preset_names(), true)) {
    EXPECT_NO_THROW(EXPECT_NE(gpu_kernel_key(s.spec, "sm_90a"), "")) << s.name;
    ASSERT_EQ(s.q_len.size(), s.kv_len.size()) << s.name;
    for (size_t i = 0; i < s.q_len.size(); ++i) EXPECT_LE(s.q_len[i], s.kv_len[i]) << s.name;
    EXPECT_EQ(s.shared_prefix % s.spec.page_size, 0) << s.name;
  }
}

TEST(GpuPresets, EveryRowAlsoAtOddLengths) {
  const std::vector<GpuShape> named = gpu_bench_shapes({"hopper"}, false), all = gpu_bench_shapes({"hopper"}, true);
  ASSERT_EQ(all.size(), 3 * named.size());
  for (size_t i = 0; i < named.size(); ++i) {
    EXPECT_EQ(all[3 * i].name, named[i].name);
    EXPECT_EQ(all[3 * i].more, 0);
    for (const auto& [at, more] : {std::pair<size_t, int32_t>{3 * i + 1, -1}, {3 * i + 2, 37}}) {
      ASSERT_EQ(all[at].kv_len.size(), named[i].kv_len.size());
      EXPECT_EQ(all[at].more, more);
      for (size_t r = 0; r < named[i].kv_len.size(); ++r) {
        EXPECT_EQ(all[at].kv_len[r], named[i].kv_len[r] + more) << all[at].name;
        const bool whole = named[i].q_len[r] == named[i].kv_len[r];
        EXPECT_EQ(all[at].q_len[r], named[i].q_len[r] + (whole ? more : 0)) << all[at].name;
      }
    }
  }
}

TEST(GpuPresets, PaperRowsHaveTheirMean) {
  const std::vector<GpuShape> rows = gpu_bench_shapes({"paper"}, false);
  ASSERT_EQ(rows.size(), 18u);
  std::set<int32_t> groups;
  for (const GpuShape& s : rows) {
    ASSERT_EQ(s.kv_len.size(), 16u);
    EXPECT_NEAR(std::accumulate(s.kv_len.begin(), s.kv_len.end(), 0) / 16.0, 1024.0, 1.0) << s.name;
    groups.insert(s.spec.group_size());
  }
  EXPECT_EQ(groups, (std::set<int32_t>{1, 4, 8}));
}

TEST(GpuPresets, NamesSayWhatIsRun) {
  const GpuShape zipf = find("decode-zipf-16x1061-page16-32/4", true);
  EXPECT_EQ(zipf.spec.num_kv_heads, 4);
  EXPECT_GT(zipf.kv_len.front(), 4 * zipf.kv_len.back());
  EXPECT_EQ(zipf.q_len, std::vector<int32_t>(16, 1));
  const GpuShape window = find("prefill-causal-4x4096-ragged-window1024");
  EXPECT_EQ(window.spec.variant.range, (KeyRange{true, 1023, -1}));
  EXPECT_EQ(window.spec.storage, Storage::ragged);
  const GpuShape chunk = find("prefill-causal-1x512at131109-ragged-8/1", true);
  EXPECT_EQ(chunk.q_len, std::vector<int32_t>{512});
  EXPECT_EQ(chunk.kv_len, std::vector<int32_t>{131109});
  const GpuShape fp8 = find("decode-128x8192-page16-e4m3");
  EXPECT_EQ(fp8.spec.kv_dtype, DType::e4m3);
  EXPECT_TRUE(fp8.memory_bound);
  EXPECT_EQ(find("prefill-full-1x16384-ragged-8/8-d256").spec.head_dim_vo, 256);
}

// Every key of every row once, by hand.
TEST(GpuShape, Work) {
  EXPECT_EQ(flop_of(find("prefill-full-1x4096-ragged")), 4.0 * 128 * 4096 * 4096 * 32);
  EXPECT_EQ(flop_of(find("prefill-causal-1x16384-ragged")), 4.0 * 128 * (16384.0 * 16385 / 2) * 32);
  EXPECT_EQ(flop_of(find("decode-mla-128x8192-page64-128/1")), 2.0 * (576 + 512) * 128 * 8192 * 128);
  EXPECT_EQ(flop_of(find("decode-128x8192-page16-window1024")), 4.0 * 128 * 128 * 1024 * 32);
  const double rows = 128 * 32 * 128 * 4.0;  // Q and O
  EXPECT_EQ(bytes_of(find("decode-128x8192-page16")), 128.0 * 8192 * 8 * 256 * 2 + rows);
  EXPECT_EQ(bytes_of(find("decode-128x8192-page16-e4m3")), 128.0 * 8192 * 8 * 256 + rows);
  EXPECT_EQ(bytes_of(find("decode-128x8192-page16-window1024")), 128.0 * 1024 * 8 * 256 * 2 + rows);
  EXPECT_EQ(bytes_of(find("decode-shared8192-64x8448-page16")), (8192 + 64 * 256) * 8 * 256 * 2.0 + rows / 2);
  EXPECT_EQ(bytes_of(find("decode-mla-128x8192-page64-128/1")), 128.0 * 8192 * 576 * 2 + 128 * 128 * (576 + 512) * 2.0);
}

// 64 requests in 16 families of 4, those in 4 families of 16, those in one: the earlier request that shares most, whose pages are there already.
TEST(GpuShape, ATreeOfSharedPrefixes) {
  const GpuShape s = find("decode-tree2048of1+1024of4+512of16-64x4096-page16-levels");
  EXPECT_EQ(s.kv_len, std::vector<int32_t>(64, 4096));
  const auto part = [&](size_t i) { return std::pair(shared_part(s, i).with, shared_part(s, i).tokens); };
  EXPECT_EQ(part(0), std::pair(-1, 0));
  EXPECT_EQ(part(3), std::pair(0, 2048)) << "the first of its family of 16";
  EXPECT_EQ(part(7), std::pair(3, 3072)) << "the first of its family of 4";
  EXPECT_EQ(part(16 + 7), std::pair(7, 3584));
  EXPECT_EQ(bytes_of(s), (2048 + 4 * 1024 + 16 * 512 + 64 * 512) * 8 * 256 * 2.0 + 64 * 32 * 128 * 4.0);
  EXPECT_EQ(to_json(s)["shared_tokens"].size(), 64u);
}

TEST(GpuShape, ARowBesideAnotherIsTheSameStepRunInAnotherWay) {
  int pairs = 0;
  for (const GpuPreset& preset : gpu_presets()) {
    const std::vector<GpuShape> rows = preset.rows(0);
    std::map<std::string, GpuShape> before;
    for (const GpuShape& s : rows) {
      if (!s.beside.empty()) {
        ASSERT_TRUE(before.count(s.beside)) << s.name << ": measured after what it is compared with";
        GpuShape other = before[s.beside];
        EXPECT_FALSE(same(s, other)) << s.name;
        other.policy = s.policy, other.levels = s.levels, other.early_launch = s.early_launch, other.rope_apart = s.rope_apart;
        EXPECT_TRUE(same(s, other)) << s.name;
        EXPECT_EQ(bytes_of(s), bytes_of(other)) << s.name;
        ++pairs;
      }
      before[s.name] = s;
    }
  }
  EXPECT_GE(pairs, 25);
}

TEST(GpuShape, AsJsonHasWhatAnotherEngineNeeds) {
  const nlohmann::ordered_json j = to_json(find("prefill-causal-1x16384-ragged-softcap"));
  EXPECT_EQ(j["soft_cap"], 30.0);
  EXPECT_EQ(j["page_size"], 0);
  EXPECT_EQ(j["q_len"], nlohmann::ordered_json::array({16384}));
  EXPECT_EQ(j["bound"], "compute");
  EXPECT_EQ(to_json(find("decode-shared8192-64x8448-page16"))["shared_prefix"], 8192);
}

}  // namespace
}  // namespace kvloom::cli
