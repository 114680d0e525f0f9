// The rows of `kvloom bench --backend cuda`, as data: which requests of which attention. A preset is a list of them.
#pragma once

#include "kvloom/contract/spec.h"
#include "kvloom/plan/scheduler_config.h"

#include <nlohmann/json.hpp>

#include <string>
#include <vector>

namespace kvloom::cli {

struct GpuShape {
  std::string name;  // prefill-causal-4x4096-ragged-8/8-d256-window1024; what is not said is 32/8 heads of 128, bf16
  AttentionSpec spec;
  std::vector<int32_t> q_len, kv_len;  // [requests]
  bool memory_bound = false;           // the roof that counts
  int32_t shared_prefix = 0;           // first tokens of every request, in the same pages: a multiple of the page size
  std::vector<int32_t> shared_with, shared_tokens;  // [requests], or neither: the first shared_tokens[i] tokens of i lie in the pages of the
                                                    // earlier request shared_with[i] (-1: none); in the place of shared_prefix
  bool v_in_k = false;                 // MLA: V is the first head_dim_vo values of K
  bool plan_alone = false;             // timed is the planning of the step on the device, and nothing else
  int32_t more = 0;                    // tokens that every length is longer than in the table

  // How it is run, where that is not the engine's own choice.
  Policy policy = Policy::automatic;
  LevelMode levels = LevelMode::automatic;
  int32_t max_levels = 0;  // shared levels that a query token may be part of; 0: one where requests share pages
  bool early_launch = true;
  bool rope_apart = false;  // of a spec with RoPE: keys are rotated by a launch of its own, attention has none
  std::string beside;       // the row before it that its time is compared with
};

/// The earlier request whose pages request `i` begins with (-1: none), and how many tokens lie in them.
struct SharedPart {
  int32_t with = -1, tokens = 0;
};
SharedPart shared_part(const GpuShape& shape, size_t i);
/// The spec of the engine that runs it.
AttentionSpec run_spec(const GpuShape& shape);

/// 2 (head_dim_qk + head_dim_vo) x (row, key) pairs kept by order and window; a custom mask counts as full: what is computed is tiles.
double flop_of(const GpuShape& shape);
/// K and V bytes that must be read once, Q and O.
double bytes_of(const GpuShape& shape);
/// Slope of head h: 2^(-8 (h + 1) / heads).
std::vector<float> alibi_slopes(int32_t heads);
/// Everything that another engine needs to run the same.
nlohmann::ordered_json to_json(const GpuShape& shape);

struct GpuPreset {
  const char* name;
  const char* what;
  std::vector<GpuShape> (*rows)(int32_t more);  // with every length of KV (and of the queries that are all of it) so many tokens more
};

const std::vector<GpuPreset>& gpu_presets();
std::vector<std::string> gpu_preset_names();
/// The rows of these presets, each once; `odd_lengths`: each also a token shorter and 37 tokens longer, so that no length is a multiple of
/// anything.
std::vector<GpuShape> gpu_bench_shapes(const std::vector<std::string>& presets, bool odd_lengths);

}  // namespace kvloom::cli
