// The model table, and what a layer's spec is made of.
#include "cli/replay/models.h"

#include "kvloom/support/error.h"

#include <gtest/gtest.h>

#include <cmath>

namespace kvloom::replay {
namespace {

std::string refusal(const std::string& name, const ModelOverrides& overrides = {}) {
  try {
    find_model(name, overrides);
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

TEST(Models, EveryPresetIsSound) {
  for (const Model& m : model_table()) {
    SCOPED_TRACE(m.name);
    EXPECT_EQ(find_model(m.name).name, m.name);
    EXPECT_GT(m.layers, 0);
    EXPECT_EQ(m.qo_heads % m.kv_heads, 0);
    EXPECT_FALSE(m.windows.empty());
    for (int32_t kind = 0; kind < m.kinds(); ++kind) {
      const AttentionSpec s = layer_spec(m, kind, {}, 16);
      EXPECT_EQ(s.storage, Storage::paged);
      EXPECT_TRUE(s.variant.range.causal);
      EXPECT_GT(s.sm_scale, 0.0f);
    }
  }
}

TEST(Models, ScalesAreThoseOfTheModels) {
  EXPECT_FLOAT_EQ(layer_spec(find_model("llama-3.1-8b"), 0, {}, 16).sm_scale, float(1.0 / std::sqrt(128.0)));
  EXPECT_FLOAT_EQ(layer_spec(find_model("gemma-2-9b"), 0, {}, 16).sm_scale, 1.0f / 16.0f);
  const double yarn = 0.1 * std::log(40.0) + 1.0;
  EXPECT_NEAR(layer_spec(find_model("deepseek-v3"), 0, {}, 16).sm_scale, yarn * yarn / std::sqrt(192.0), 1e-7);
}

// B22: a model's "window of N" keeps N keys, the row's own included; the engine counts the keys before it.
TEST(Models, B22WindowsOfNKeysBecomeNMinusOneToTheLeft) {
  const Model gemma = find_model("gemma-2-9b");
  EXPECT_EQ(layer_spec(gemma, 0, {}, 16).variant.range.left, 4095);
  EXPECT_EQ(layer_spec(gemma, 1, {}, 16).variant.range.left, -1);
  EXPECT_EQ(layer_spec(gemma, 2, {}, 16).variant.range.left, 4095);
  EXPECT_EQ(layer_spec(find_model("gpt-oss-20b"), 0, {}, 16).variant.range.left, 127);
  EXPECT_TRUE(layer_spec(find_model("gpt-oss-20b"), 1, {}, 16).variant.sink);
  EXPECT_EQ(layer_spec(find_model("mistral-7b"), 7, {}, 16).variant.range.left, 4095);
}

TEST(Models, OverridesReplaceHeadsAndDims) {
  const Model m = find_model("llama-3.1-8b", {12, 4, 64});
  const AttentionSpec s = layer_spec(m, 0, {DType::f32, DType::e4m3}, 8);
  EXPECT_EQ(s.num_qo_heads, 12);
  EXPECT_EQ(s.num_kv_heads, 4);
  EXPECT_EQ(s.head_dim_qk, 64);
  EXPECT_FLOAT_EQ(s.sm_scale, 0.125f);
  EXPECT_EQ(s.o_dtype, DType::f32);
  EXPECT_EQ(s.kv_dtype, DType::e4m3);
  EXPECT_EQ(m.kv_elements(), 4 * 128);
  EXPECT_EQ(find_model("deepseek-v3").kv_elements(), 576);  // V lies in K
}

TEST(Models, RefusalsNameWhatIsWrong) {
  EXPECT_NE(refusal("llama-9").find("--model: got 'llama-9', wanted one of llama-3.1-8b, "), std::string::npos);
  EXPECT_NE(refusal("llama-3.1-8b", {30, 0, 0}).find("30 query heads and 8 KV heads"), std::string::npos);
  EXPECT_NE(refusal("deepseek-v3", {0, 0, 64}).find("MLA"), std::string::npos);
  EXPECT_THROW(parse_dtype("int4", "--kv-dtype"), Error);
  EXPECT_EQ(parse_dtype("e5m2", "--kv-dtype"), DType::e5m2);
}

}  // namespace
}  // namespace kvloom::replay
