#include "kvloom/runtime/explain.h"

#include "kvloom/support/check.h"

namespace kvloom::runtime {
namespace {

/// FLOP and bytes in the same time: the ratio at which the two roofs meet, and where the numbers come from.
struct Ridge {
  double flop_per_byte = 0.0;  // 0: not known
  std::string from;
};

Ridge ridge_of(const AttendKernel& kernel, const AttentionSpec& spec, const GpuTarget& gpu, bool fixed_split) {
  if (kernel.backend == Backend::cpu) {
    return {double(kernel.flop_per_cycle) / kernel.bytes_per_cycle,
            kvloom::format("{} FLOP and {} bytes a cycle of one core, nominal", kernel.flop_per_cycle, kernel.bytes_per_cycle)};
  }
  const GpuRoofs r = typical_roofs(gpu.capability);
  if (r.chip == nullptr) return {0.0, kvloom::format("the roofs of {} are not known here", gpu.arch)};
  const bool warpgroups = kernel.gpu.by_warpgroups != nullptr && kernel.gpu.by_warpgroups(spec, fixed_split);
  const double tflops = warpgroups ? r.wgmma_tflops : r.tflops;
  return {tflops * 1e3 / r.gbps, kvloom::format("{:.0f} TFLOP/s of {} and {:.0f} GB/s, {} {}", tflops, warpgroups ? "wgmma" : "mma.sync", r.gbps,
                                                r.measured ? "measured on" : "the data sheet's for", r.chip)};
}

/// Of K and V: Q, O and partials are read and written once and left out.
double flop_per_byte(const AttentionSpec& spec, int64_t packed_rows, bool v_in_k) {
  const double dims = double(spec.head_dim_qk) + spec.head_dim_vo;
  return 2.0 * double(packed_rows) * dims / ((v_in_k ? spec.head_dim_qk : dims) * size_of(spec.kv_dtype));
}

std::string binds(double intensity, const Ridge& ridge) {
  if (ridge.flop_per_byte <= 0.0) return "";
  return intensity < ridge.flop_per_byte ? ": memory binds" : ": compute binds";
}

std::string roof_lines(const AttentionSpec& spec, const Ridge& ridge, const char* tile_name, int64_t tile_rows) {
  std::string text = "roof     ";
  if (ridge.flop_per_byte > 0.0) text += kvloom::format("ridge about {:.0f} FLOP a byte of K and V: ", ridge.flop_per_byte);
  text += ridge.from + "\n";
  const int64_t group = spec.group_size();
  const double token = flop_per_byte(spec, group, false), tile = flop_per_byte(spec, tile_rows, false);
  text += kvloom::format("  one new token  {} packed row{} a KV head, {:.1f} FLOP a byte{}", group, group == 1 ? "" : "s", token,
                         binds(token, ridge));
  if (spec.head_dim_qk > spec.head_dim_vo) {
    const double shared = flop_per_byte(spec, group, true);
    text += kvloom::format("; where V lies within K (MLA) {:.1f}{}", shared, binds(shared, ridge));
  }
  return text + kvloom::format("\n  {:<14} {} packed rows, {:.1f} FLOP a byte where no other tile reads the same keys{}\n", kvloom::format("{} tile", tile_name),
                               tile_rows, tile, binds(tile, ridge));
}

std::string class_line(const char* name, const KernelClass& c) {
  return kvloom::format("  {:<8} tile {} packed rows x {} keys, {} KV head{} an item, {} ns a key + {} ns a row + {} ns an item\n", name,
                        c.tile_rows, c.tile_kv, c.heads_per_item, c.heads_per_item == 1 ? "" : "s", c.cost_per_token, c.cost_per_tile_row,
                        c.cost_per_item);
}

/// Why no plan of this engine looks for shared prefixes; "": plans do.
std::string no_levels(const AttentionSpec& spec, const Capacity& capacity, const SchedulerConfig& config) {
  if (config.levels != LevelMode::automatic) return "options.levels is off";
  if (config.policy == Policy::fixed_split) return "under fixed_split a request's bits must not depend on what it shares with others";
  if (spec.storage != Storage::paged) return "ragged K and V have no page tables that could name the same pages";
  if (capacity.max_level_rows >= 2) return "";
  return kvloom::format("Capacity.max_level_rows is {}; to have them, set it to the query tokens of a step's requests that share", capacity.max_level_rows);
}

std::string levels_line(const AttentionSpec& spec, const Capacity& capacity, const SchedulerConfig& config, const OwnSchedules& own) {
  const std::string why_not = no_levels(spec, capacity, config);
  if (!why_not.empty()) return "levels   shared prefixes are not looked for: " + why_not + "\n";
  std::string text = kvloom::format("levels   prefixes that page tables share are read once where that saves at least {} tokens of reading", config.level_first_gain);
  if (config.level_first_percent > 0) text += kvloom::format(", {} % of the step's cost (in tokens read by few rows; a tile of many rows counts as what it computes)", config.level_first_percent);
  if (config.level_reader_gain > 0) text += kvloom::format(", and {} tokens for each request that shares", config.level_reader_gain);
  if (!config.levels_beside_many) text += "; not beside requests of many rows";
  if (config.cost_level_item > 0) {
    text += kvloom::format("; where all requests have few rows, an item costs {} ns more then{}", config.cost_level_item, own.small_computes ? ", and attend_mixed runs the step" : "");
  }
  return text + "\n";
}

/// Of a family that has wgmma, where it does without; "": it has none, or uses it.
std::string without_wgmma(const AttentionSpec& spec, const AttendKernel& kernel, bool fixed_split) {
  if (kernel.gpu.by_warpgroups == nullptr || kernel.gpu.by_warpgroups(spec, fixed_split)) return "";
  const char* why = fixed_split ? "fixed_split, where steps of all kinds must add up alike" : is_fp8(spec.kv_dtype) ? "fp8 K and V" : "fused RoPE";
  return kvloom::format("products on mma.sync, in steps of many rows, too: family {} has no wgmma for {}\n", kernel.family, why);
}

}  // namespace

std::string explain_choice(const AttentionSpec& spec, const Capacity& capacity, const SchedulerConfig& config, const OwnSchedules& own, const Choice& choice) {
  const Candidate& winner = choice.winner();
  std::string text = kvloom::format("kernel   {}\n", winner.key);
  if (choice.on_gpu()) {
    const GpuTarget& g = choice.gpu;
    text += g.device >= 0 ? kvloom::format("device   {}: {}, {}, {} SMs\n", g.device, g.name, g.arch, g.num_sms)
                          : kvloom::format("device   none: chosen for {} alone, planned for {} SMs ({})\n", g.arch, g.num_sms, g.name);
  }
  if (const UserVariant* user = spec.variant.user) text += kvloom::format("variant  {} ({})\n", user->name, user->file);
  for (const Candidate& c : choice.candidates) {
    if (!c.declined.empty()) text += kvloom::format("declined {}: {}\n", c.key, c.declined);
  }
  text += kvloom::format("CTAs     {}{}\n", config.num_ctas, choice.on_gpu() ? "" : ", virtual: whichever thread is free takes the next");
  const bool one_class = config.policy == Policy::fixed_split && !config.classes_agree;
  if (one_class) {
    text += "classes  one, memory class, for row groups of any size: under fixed_split a row's bits must not depend on how many rows stand beside it\n";
  } else {
    text += kvloom::format("classes  row groups with more than {} packed rows (query tokens x query heads of one KV head) are compute class{}\n",
                           config.compute_rows_above, own.memory_32 ? kvloom::format(", but not in steps of up to {} rows alone (below)", own.memory_32->compute_rows_above) : "");
  }
  text += "  costs that the planner balances, nanoseconds of one CTA, nominal:\n" + class_line("memory", config.classes[0]);
  if (!one_class) text += class_line("compute", config.classes[1]);
  if (own.memory) {
    text += kvloom::format("steps of the memory class alone: {} CTAs\n", own.memory->num_ctas) + class_line("memory", own.memory->classes[0]);
  }
  if (own.memory_32) {
    const bool flat = config.levels == LevelMode::automatic && own.memory_32->levels == LevelMode::off;
    text += kvloom::format("steps of up to {} packed rows alone: {} CTAs{}\n", own.memory_32->compute_rows_above, own.memory_32->num_ctas, flat ? ", shared prefixes are not looked for" : "") +
            class_line("memory", own.memory_32->classes[0]);
  }
  if (own.compute) {
    text += kvloom::format("steps of the compute class alone: {} {}\n", own.compute->num_ctas, own.fetches_rows ? "CTAs, which fetch rows one by one; pages of 8, 16, 32, ... tokens are fetched by boxes, which is faster" : "clusters of CTAs") + class_line("compute", own.compute->classes[1]);
  }
  text += levels_line(spec, capacity, config, own) + without_wgmma(spec, *winner.kernel, config.policy == Policy::fixed_split);
  text += roof_lines(spec, ridge_of(*winner.kernel, spec, choice.gpu, config.policy == Policy::fixed_split), one_class ? "memory" : "compute",
                     (own.compute ? *own.compute : config).classes[one_class ? 0 : 1].tile_rows);
  if (spec.variant.rope.mode != RopeMode::none) {
    text +=
        "advice   RoPE is fused: every tile of rows rotates the keys that it reads, so prefill rotates them many times. Prefer RoPE at "
        "append:\n"
        "         append_kv with this rope, apply_rope on Q, and no rope in the spec; fused is for keys whose position changes in the "
        "cache\n";
  }
  return text;
}

}  // namespace kvloom::runtime
