// What one step would be on this machine: which kernel and tiles, how much work, which roof binds, and the plan.
#pragma once

#include "cli/bench/ceilings.h"
#include "cli/replay/models.h"
#include "kvloom/api/engine.h"

#include <nlohmann/json.hpp>

namespace kvloom::replay {

struct ExplainOptions {
  std::string model = "llama-3.1-8b";
  ModelOverrides overrides;
  ModelTypes types;
  int32_t layer = 0;            // of the model: models whose windows alternate have two kinds of layers
  std::vector<int32_t> kv_len;  // tokens a request, new ones included
  std::vector<int32_t> q_len;   // as many, or one for all
  int32_t shared_prefix = 0;    // first tokens that all requests have in the same pages
  int32_t page_size = 16;
  int64_t max_kv_tokens = 0;       // capacity of the engine that plans; 0: the step's own
  RopeMode rope = RopeMode::none;  // fused into attention
  bool custom_mask = false;        // which bits are set changes neither kernel nor plan
  EngineOptions engine;
  const UserVariant* user = nullptr;  // on top of the layer's own variant
  cli::Ceilings ceilings;             // of this machine; 0: the roof is not named
};

struct Explanation {
  std::string text;
  nlohmann::ordered_json json;
  std::string svg;
};

/// Throws Error for options that can't be.
Explanation explain_step(const ExplainOptions& options);

}  // namespace kvloom::replay
