// MASKROW and PADNAN: rows that keep nothing, and what lies where nobody looks.
#include "tests/bugs/bug_case.h"

#include <cmath>

namespace kvloom::bugs {
namespace {

constexpr float kInf = __builtin_inff();

TEST(MaskRow, B10_AChunkThatARowCannotSeeIsTheIdentity) {
  expect_right("B10");
  // Forced: chunks of one tile, and one key more than a tile, so that row 0 sees nothing of the second chunk.
  Case c = bug_case("B10.empty_chunk");
  EngineOptions options = with_policy(Policy::fixed_split);
  const SchedulerConfig config = Engine(c.spec, {1, 2, 129, 0, 0}, options).config();
  options.split_tokens = std::max(config.classes[0].tile_kv, config.classes[1].tile_kv);
  c.kv_len = {options.split_tokens + 1};
  CaseData data(c);
  std::vector<double> o, lse;
  data.reference(o, lse);
  const Output got = run_once(data, options);
  EXPECT_EQ(check::compare(c, got.o, got.lse, o, lse).fault, "");
}

TEST(MaskRow, B11_RowsPastTheKeysAreWritten) {
  expect_right("B11");
  CaseData data(bug_case("B11.negative_length"));
  const Output got = run_once(data);
  const size_t row = 28 * 128;
  for (size_t i = 0; i < 47 * row; ++i) ASSERT_EQ(got.o[i], 0.0f);
  for (size_t i = 0; i < 47 * 28; ++i) ASSERT_EQ(got.lse[i], -kInf);
  EXPECT_NE(got.lse[47 * 28], -kInf);
}

TEST(MaskRow, B12_AMaskWithoutABitSetGivesZeros) {
  expect_right("B12");
  CaseData data(bug_case("B12.corner"));
  const Output got = run_once(data);
  for (size_t i = 0; i < 8 * 2; ++i) EXPECT_EQ(got.lse[i] == -kInf, i >= 4 * 2) << i;
  for (size_t i = 4 * 2 * 64; i < got.o.size(); ++i) ASSERT_EQ(got.o[i], 0.0f);
}

TEST(MaskRow, B13_CausalIsBottomRightAligned) {
  expect_right("B13");
  CaseData data(bug_case("B13.bottom_right"));
  for (int32_t j = 0; j < 3; ++j) {  // equal scores, V counts: row 0 is the mean over keys 0 and 1, row 1 over all three
    data.set_k(0, j, 0, std::vector<float>(16, 0.0f));
    data.set_v(0, j, 0, std::vector<float>(16, float(j)));
  }
  const Output got = run_once(data);
  EXPECT_FLOAT_EQ(got.o[0], 0.5f);
  EXPECT_FLOAT_EQ(got.o[16], 1.0f);
  EXPECT_FLOAT_EQ(got.lse[0], std::log(2.0f));
  EXPECT_FLOAT_EQ(got.lse[1], std::log(3.0f));
}

TEST(PadNan, B14_SlotsThatNobodyKeepsDoNotMatter) {
  expect_right("B14");
  for (const char* name : {"B14.tail_12", "B14.tail_13", "B14.tail_prefill"}) {
    CaseData data(bug_case(name));
    for (const Policy policy : {Policy::none, Policy::heap, Policy::stream, Policy::fill, Policy::fixed_split}) {
      const EngineOptions options = with_policy(policy);
      CaseData clear(bug_case(name));
      clear.clear_unkept();
      expect_same_bits(run_once(data, options), run_once(clear, options));
    }
  }
}

TEST(PadNan, B16_PaddingLanesDoNotCountWithoutCausal) {
  expect_right("B16");
  for (const int32_t n : {1, 100, 255, 257}) {
    CaseData data(bug_case("B16.length_" + std::to_string(n)));
    const Output got = run_once(data);
    for (const float lse : got.lse) EXPECT_NEAR(lse, std::log(double(n)), 2e-6 * (1.0 + std::log(double(n))));
  }
}

TEST(PadNan, B17_WhatEarlierWorkLeftInScratchDoesNotMatter) {
  expect_right("B17");
  CaseData data(bug_case("B17.prefill"));
  const AttentionSpec& spec = data.what().spec;
  for (const Policy policy : {Policy::heap, Policy::stream, Policy::fill}) {
    const EngineOptions options = with_policy(policy, 64);
    const int64_t bytes = Engine::workspace_size(spec, data.capacity(), options);
    std::vector<Output> outputs;
    for (const int fill : {0x00, 0xff, 0x7f}) {
      std::vector<char> memory(size_t(bytes) + 64, char(fill));
      char* aligned = memory.data() + (64 - reinterpret_cast<uintptr_t>(memory.data()) % 64) % 64;
      Engine engine(spec, data.capacity(), options, {aligned, bytes});
      outputs.push_back(run_plan(engine, engine.plan(data.batch()), data));
    }
    expect_same_bits(outputs[0], outputs[1]);
    expect_same_bits(outputs[0], outputs[2]);
  }
}

TEST(PadNan, B18_ChunksThatEndInsideATileMaskTheirEnd) {
  expect_right("B18");
  for (const char* name : {"B18.chunk_200", "B18.chunk_200_causal"}) {
    CaseData data(bug_case(name));
    check::CaseOptions options;  // five CTAs: 200 tokens each, not a multiple of a tile
    for (const Policy policy : {Policy::heap, Policy::stream, Policy::fill}) options.schedules.push_back({policy, 5, LevelMode::off});
    expect_right(data, options);
  }
}

}  // namespace
}  // namespace kvloom::bugs
