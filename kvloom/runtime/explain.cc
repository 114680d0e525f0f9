#include "kvloom/runtime/explain.h"

#include "kvloom/support/check.h"

namespace kvloom::runtime {
namespace {

struct Intensity {
  double flop_per_byte;  // of KV: Q, O and partials are read and written once and left out
  const char* roof;
};

Intensity intensity(const AttentionSpec& spec, const AttendKernel& kernel, int64_t packed_rows) {
  const double dims = double(spec.head_dim_qk) + spec.head_dim_vo;
  const double flop = 2.0 * double(packed_rows) * dims, bytes = dims * size_of(spec.kv_dtype);
  const double ridge = double(kernel.flop_per_cycle) / kernel.bytes_per_cycle;
  return {flop / bytes, flop / bytes < ridge ? "memory" : "compute"};
}

std::string class_line(const char* name, const KernelClass& c) {
  return kvloom::format("  {:<8} tile {} packed rows x {} keys, {} KV head{} an item, cost {} a key + {} a row + {} an item\n", name,
                        c.tile_rows, c.tile_kv, c.heads_per_item, c.heads_per_item == 1 ? "" : "s", c.cost_per_token, c.cost_per_tile_row,
                        c.cost_per_item);
}

}  // namespace

std::string explain_choice(const AttentionSpec& spec, const SchedulerConfig& config, const SchedulerConfig* memory, const Choice& choice) {
  const Candidate& winner = choice.winner();
  std::string text = kvloom::format("kernel   {}\n", winner.key);
  if (choice.on_gpu()) {
    const GpuTarget& g = choice.gpu;
    text += g.device >= 0 ? kvloom::format("device   {}: {}, {}, {} SMs\n", g.device, g.name, g.arch, g.num_sms)
                          : kvloom::format("device   none: chosen for {} alone (as {}: {} SMs)\n", g.arch, g.name, g.num_sms);
  }
  if (const UserVariant* user = spec.variant.user) text += kvloom::format("variant  {} ({})\n", user->name, user->file);
  for (const Candidate& c : choice.candidates) {
    if (!c.declined.empty()) text += kvloom::format("declined {}: {}\n", c.key, c.declined);
  }
  text += kvloom::format("CTAs     {}{}\nclasses  groups with more than {} packed rows a KV head are compute class\n", config.num_ctas,
                         choice.on_gpu() ? "" : ", virtual: whichever thread is free takes the next", config.compute_rows_above);
  text += class_line("memory", config.classes[0]) + class_line("compute", config.classes[1]);
  if (memory != nullptr) {
    text += kvloom::format("steps of the memory class alone: {} CTAs\n", memory->num_ctas) + class_line("memory", memory->classes[0]);
  }
  const int64_t group = spec.group_size();
  const Intensity decode = intensity(spec, *winner.kernel, group);
  const Intensity tile = intensity(spec, *winner.kernel, config.classes[1].tile_rows);
  text += kvloom::format("roof     ridge about {:.0f} FLOP a byte (nominal: {} FLOP and {} bytes a cycle)\n",
                         double(winner.kernel->flop_per_cycle) / winner.kernel->bytes_per_cycle, winner.kernel->flop_per_cycle,
                         winner.kernel->bytes_per_cycle);
  text +=
      kvloom::format("  one new token  {} packed rows a KV head, {:.1f} FLOP a byte: {} binds\n", group, decode.flop_per_byte, decode.roof);
  text += kvloom::format("  compute tile   {} packed rows, {:.1f} FLOP a byte: {} binds\n", config.classes[1].tile_rows, tile.flop_per_byte,
                         tile.roof);
  return text;
}

}  // namespace kvloom::runtime
