// kvloom explain: one step of a model, before anything runs: kernel, tiles, work, roof, plan.
#include "cli/replay/explain.h"

#include "cli/command.h"
#include "cli/policy_name.h"
#include "cli/replay/step_stats.h"
#include "cli/report/json_output.h"
#include "cli/report/machine.h"
#include "cli/report/text_output.h"
#include "kvloom/api/gpu.h"
#include "kvloom/api/kernels.h"
#include "kvloom/support/check.h"
#include "kvloom/support/thread_pool.h"

#include <memory>

namespace kvloom::cli {
namespace {

struct Arguments {
  replay::ExplainOptions options;
  std::string backend = "cpu", rope = "none", arch, q_dtype = "bf16", kv_dtype = "bf16", policy = "auto", levels = "auto", cpu_target,
              kernel, variant, svg, json;
  bool no_ceilings = false;
};

/// Without a GPU there is nothing to choose for, unless its architecture is named.
replay::Explanation explanation_of(const Arguments& a) {
  try {
    return replay::explain_step(a.options);
  } catch (const Error& e) {
    if (e.code() != ErrorCode::unsupported || a.backend != "cuda" || !a.arch.empty() || !gpus().empty()) throw;
    fail(e.code(), "{}\n--arch sm_90a, or another, explains without a GPU", e.what());
  }
}

int run(Arguments& a) {
  if (a.json == "-" && a.svg == "-") throw CLI::ValidationError("--svg", "got - with --json -, wanted one of them in a file");
  replay::ExplainOptions& o = a.options;
  o.types.q = replay::parse_dtype(a.q_dtype, "--q-dtype");
  o.types.kv = replay::parse_dtype(a.kv_dtype, "--kv-dtype");
  o.engine.policy = parse_policy(a.policy);
  o.engine.levels = a.levels == "auto" ? LevelMode::automatic : LevelMode::off;
  o.engine.cpu_target = a.cpu_target.empty() ? nullptr : a.cpu_target.c_str();
  if (a.rope != "none") o.rope = a.rope == "interleaved" ? RopeMode::interleaved : RopeMode::half_split;
  if (a.backend == "cuda") o.engine.backend = Backend::cuda;
  if (!a.variant.empty()) o.user = variant_from_file(a.variant);
  require(a.arch.empty() || a.backend == "cuda", "--arch {}: got it with --backend {}, wanted --backend cuda", a.arch, a.backend);
  if (!a.arch.empty()) o.engine.cuda_arch = a.arch.c_str();
  if (!a.kernel.empty() && a.backend != "cuda") throw CLI::ValidationError("--kernel", "got it with --backend " + a.backend + ", wanted --backend cuda");
  if (!a.kernel.empty()) o.engine.kernel = a.kernel.c_str();
  if (!a.no_ceilings && a.backend == "cpu") {
    ThreadPool pool(o.engine.threads > 0 ? o.engine.threads : std::max(1, this_machine().cores));
    ReadCeiling memory;
    o.ceilings = measure_ceilings(pool, memory, 3);
  }
  const replay::Explanation e = explanation_of(a);
  std::fputs(e.text.c_str(), a.json == "-" || a.svg == "-" ? stderr : stdout);
  if (!a.svg.empty()) write_text("--svg", a.svg, e.svg);
  if (!a.json.empty()) write_json(a.json, e.json);
  return 0;
}

void add(CLI::App& c, int& exit_code) {
  const auto a = std::make_shared<Arguments>();
  replay::ExplainOptions& o = a->options;
  o.q_len = {1};
  c.add_option("--model", o.model, "Preset: llama-3.1-8b, ... (a wrong name lists all)")
      ->check(one_of(replay::model_names()))
      ->capture_default_str();
  c.add_option("--backend", a->backend, "cpu, cuda")->check(one_of({"cpu", "cuda"}))->capture_default_str();
  c.add_option("--arch", a->arch, "cuda: plan for this architecture, GPU or not: sm_80, sm_90a, ...");
  c.add_option("--layer", o.layer, "Which layer: windows may alternate")->check(kNonNegative)->capture_default_str();
  add_numbers(c, "--kv-len", o.kv_len, "KV length of every request, new tokens included: 1000,2000")->required();
  add_numbers(c, "--q-len", o.q_len, "New tokens of every request, or one number for all; default 1 (decode)");
  c.add_option("--shared-prefix", o.shared_prefix, "First tokens that all requests share, in the same pages")->check(kNonNegative);
  c.add_option("--heads", o.overrides.heads, "Query heads instead of the preset's")->check(kPositive);
  c.add_option("--kv-heads", o.overrides.kv_heads, "KV heads instead of the preset's")->check(kPositive);
  c.add_option("--head-dim", o.overrides.head_dim, "Head dim instead of the preset's")->check(kPositive);
  c.add_option("--q-dtype", a->q_dtype, "Of Q and O: f32, f16, bf16; e4m3, e5m2: O is bf16")
      ->check(one_of(replay::dtype_names()))
      ->capture_default_str();
  c.add_option("--kv-dtype", a->kv_dtype, "Of the KV cache: f32, f16, bf16, e4m3, e5m2")
      ->check(one_of(replay::dtype_names()))
      ->capture_default_str();
  c.add_option("--page-size", o.page_size, "Tokens a page")->check(CLI::Range(1, 65536))->capture_default_str();
  c.add_option("--rope", a->rope, "RoPE fused into attention: none, interleaved, half_split (none: K is rotated at append)")
      ->check(one_of({"none", "interleaved", "half_split"}))
      ->capture_default_str();
  c.add_flag("--mask", o.custom_mask, "A custom mask besides");
  c.add_option("--max-kv-tokens", o.max_kv_tokens, "Capacity of the engine, as a server sets it; default: this step's own")
      ->check(kPositive);
  c.add_option("--policy", a->policy, policy_names())->capture_default_str();
  c.add_option("--levels", a->levels, "auto, off")->check(one_of({"auto", "off"}))->capture_default_str();
  c.add_option("--ctas", o.engine.num_ctas, "CTAs to balance over; default: the backend's own (clusters of two where CTAs work so: family sm90, many rows)")->check(kPositive);
  c.add_option("--threads", o.engine.threads, "Default: one a core")->check(kPositive);
  c.add_option("--cpu-target", a->cpu_target, "avx2, avx512, portable; default: the best here")->check(one_of(cpu_target_names()));
  c.add_option("--kernel", a->kernel, "cuda: this family of kernels; default: the fastest")->check(one_of(gpu_family_names()));
  c.add_option("--variant", a->variant, "A variant of your own (docs/variants.md)")->type_name("FILE");
  c.add_flag("--no-ceilings", a->no_ceilings, "Do not measure the machine's roofs (a GPU's are never measured here)");
  c.add_option("--svg", a->svg, "Write the plan as a picture: a lane a CTA, a colour a request; - for stdout (the text goes to stderr then)")->type_name("FILE");
  c.add_option("--json", a->json, "Write everything as JSON, - for stdout (the text goes to stderr then)")->type_name("FILE");
  c.callback([a, &exit_code] { exit_code = run(*a); });
}

const RegisterCommand registered({"explain", "What one step's plan looks like, which kernel was chosen, and which roof binds", add});

}  // namespace
}  // namespace kvloom::cli
