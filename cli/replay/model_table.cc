#include "cli/replay/models.h"

namespace kvloom::replay {

// DeepSeek-V3, absorbed MLA: 128 query heads on one latent of 512 + 64 (RoPE) dims. Scale: 1/sqrt(128 + 64), times the square of YaRN's
// attention factor 0.1 * mscale_all_dim * ln(factor) + 1 with factor 40 and mscale_all_dim 1: 0.0721688 * 1.3688879^2.
constexpr double kDeepSeekScale = 0.13523377;

const std::vector<Model>& model_table() {
  // clang-format off
  static const std::vector<Model> table = {
  // name            layers  heads   kv  d_qk d_vo  scale           cap    sinks  v_in_k windows     source
    {"llama-3.1-8b",   32,    32,    8,  128, 128,  0,              0.0f,  false, false, {0},        "config.json of Llama-3.1-8B"},
    {"llama-3.1-70b",  80,    64,    8,  128, 128,  0,              0.0f,  false, false, {0},        "config.json of Llama-3.1-70B"},
    {"qwen2.5-7b",     28,    28,    4,  128, 128,  0,              0.0f,  false, false, {0},        "config.json of Qwen2.5-7B"},
    {"gemma-2-9b",     42,    16,    8,  256, 256,  1.0 / 16,       50.0f, false, false, {4096, 0},  "config.json of gemma-2-9b; query_pre_attn_scalar 256"},
    {"mistral-7b",     32,    32,    8,  128, 128,  0,              0.0f,  false, false, {4096},     "config.json of Mistral-7B-v0.1"},
    {"gpt-oss-20b",    24,    64,    8,   64,  64,  0,              0.0f,  true,  false, {128, 0},   "config.json of gpt-oss-20b"},
    {"deepseek-v3",    61,   128,    1,  576, 512,  kDeepSeekScale, 0.0f,  false, true,  {0},        "config.json of DeepSeek-V3; kv_lora_rank 512, YaRN factor 40"},
    {"smollm2-135m",   30,     9,    3,   64,  64,  0,              0.0f,  false, false, {0},        "config.json of SmolLM2-135M"},
  };
  // clang-format on
  return table;
}

}  // namespace kvloom::replay
