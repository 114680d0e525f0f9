#include "kvloom/runtime/sm90.h"

#include "kvloom/base/math.h"
#include "kvloom/contract/kernel_key.h"
#include "kvloom/device/mixed/choose.h"
#include "kvloom/runtime/sm80.h"
#include "kvloom/runtime/stream.h"
#include "kvloom/support/format.h"

namespace kvloom::runtime {
namespace {

constexpr int32_t kSharedBytes = 227 * 1024;  // that every configuration fits in
constexpr int32_t kLevelPercent = 16;         // measured: of decodes, 11 % of the tokens saved cost 4 % of the time, 3 % cost 17; of steps with prefill chunks, 1 and 2 % cost 4 to 19
constexpr int64_t kReaderGain = 300;          // tokens: what a request's own item takes more where it is partial, some 4 us (docs: lab notes)
constexpr int32_t kLevelItem = 2400;          // ns: items of 20 keys take 4 us; without this some CTAs had 120 of them
constexpr double kFlopPerNs = 5600.0;         // that an SM does in wgmma (docs: lab notes, H200)

sm90::UnitSpec unit_spec(const AttentionSpec& s) {
  const bool hooked = s.variant.soft_cap > 0.0f || s.variant.user != nullptr || s.variant.reduction == Reduction::sum;
  return {s.head_dim_qk, s.head_dim_vo, s.q_dtype, s.o_dtype, s.storage == Storage::paged, hooked};
}

/// Designated initialisers, in the order of the struct.
std::string config_text(const sm90::AttendConfig& c) {
  return kvloom::format(
      ".head_dim_qk = {}, .head_dim_vo = {}, .dtype = kvloom::DType::{}, .o_dtype = kvloom::DType::{}, .tile_rows = {}, .tile_kv = {}, .stages = {}, "
      ".value_stages = {}, .ctas = {}, .paged = {}, .gathers = {}, .q_in_registers = {}, .stages_o = {}, .merge_partials = {}, .merge_rows = {}, .merge_together = {}, .merge_apart = {}, .own_loops = {}",
      c.head_dim_qk, c.head_dim_vo, name_of(c.dtype), name_of(c.o_dtype), c.tile_rows, c.tile_kv, c.stages, c.value_stages, c.ctas, c.paged, c.gathers,
      c.q_in_registers, c.stages_o, c.merge_partials, c.merge_rows, c.merge_together, c.merge_apart, c.own_loops);
}

/// Nanoseconds of a CTA, or of a cluster.
KernelClass compute_class(const AttentionSpec& s, const sm90::AttendConfig& c) {
  KernelClass k;
  k.tile_rows = c.item_rows();
  k.tile_kv = c.tile_kv;
  k.cost_per_token = int32_t(2.0 * (s.head_dim_qk + s.head_dim_vo) * c.tile_rows / kFlopPerNs) + 1;
  k.cost_per_item = 2700;  // what lies between passes
  return k;
}

constexpr int64_t kSharedItem = 9'400;  // ns
constexpr int64_t kPartialRow = 8;      // ns a row, three times what cutting a tile of many costs
constexpr int64_t kFillFrom = 250'000;  // ns: steps of 45 to 100 us take 0.79 with heap of what they take with fill, those of 500 and more 1.12 (docs: lab notes)

/// Behind sm80_schedule(), which has its own.
void use_levels(SchedulerConfig& config) {
  config.level_first_percent = kLevelPercent;
  config.level_reader_gain = kReaderGain;
  config.levels_beside_many = true;
  config.cost_level_item = kLevelItem;
}

void use_stream(const AttentionSpec& s, SchedulerConfig& config) {
  config.classes[0] = stream_class(s);
  config.keep_whole_margin = int64_t(config.classes[0].tile_kv) * config.classes[0].cost_per_token;
}

constexpr int32_t kFixedSplit = 512;  // tokens of a chunk: what ends one is hidden by what is on its way, and few steps want finer cuts (docs: lab notes)

// fixed_split: rows of all steps are streamed, so that nobody else's decide which kernel a request's run on.
OwnSchedules fixed_schedule(const AttentionSpec& s, const GpuTarget& g, SchedulerConfig& config) {
  sm80_schedule(s, g, config);
  config.classes[0] = config.classes[1] = stream_class(s, true);
  const std::optional<KernelClass> many = stream_many_class(s);
  if (many) config.classes[1] = *many;
  config.classes_agree = many.has_value();
  config.split_tokens = kFixedSplit;
  config.keep_whole_margin = int64_t(config.classes[0].tile_kv) * config.classes[0].cost_per_token;
  config.num_ctas = g.num_sms;
  config.saturating_ctas = stream_saturating_ctas(g.num_sms);
  OwnSchedules own;
  own.all_compute_mixed = true;
  return own;
}

/// Steps of few rows are streamed; all others run on mma.sync, which has fp8 keys as they are and turns keys before it multiplies them.
bool streams_alone(const AttentionSpec& s) { return is_fp8(s.kv_dtype) || s.variant.rope.mode != RopeMode::none; }
OwnSchedules schedule_beside_sm80(const AttentionSpec& s, const GpuTarget& g, SchedulerConfig& config) {
  sm80_schedule(s, g, config);
  use_levels(config);
  OwnSchedules own;
  own.memory = config;
  use_stream(s, *own.memory);
  own.memory->num_ctas = g.num_sms;
  own.memory->saturating_ctas = stream_saturating_ctas(g.num_sms);
  own.memory_32 = sm80_memory_32_schedule(s, g, config);
  return own;
}

}  // namespace

bool sm90_by_warpgroups(const AttentionSpec& s, bool fixed_split) { return !streams_alone(s) && !fixed_split; }

std::string sm90_refusal(const AttentionSpec& s, const GpuTarget& g, bool fixed_split) {
  if (g.capability != 90) return kvloom::format("compute capability {}.{}, wanted 9.0", g.capability / 10, g.capability % 10);
  if (g.arch != "sm_90a") return kvloom::format("{} leaves out the instructions that this family is made of, wanted sm_90a", g.arch);
  if (s.q_dtype != DType::f16 && s.q_dtype != DType::bf16) return kvloom::format("q is {}, wanted f16 or bf16", name_of(s.q_dtype));
  if (!sm90::has_dims(s.head_dim_qk, s.head_dim_vo)) {
    return kvloom::format("head dims {} and {}: wanted 64, 96, 128, 192 or 256 for both, or 192 and 128", s.head_dim_qk, s.head_dim_vo);
  }
  for (const int32_t dim : {s.head_dim_qk, s.head_dim_vo}) {
    if (s.storage == Storage::ragged && dim * size_of(s.kv_dtype) % 128 != 0) {
      return kvloom::format("head dim {} of {}, ragged: single keys don't begin where a box may; pages do", dim, name_of(s.kv_dtype));
    }
  }
  if (s.variant.rope.mode != RopeMode::none && is_fp8(s.kv_dtype)) {
    return "rope: this family reads fp8 keys as they are stored; rotate them as they are written (append_kv), and leave rope out of the spec";
  }
  if (s.variant.rope.mode != RopeMode::none && fixed_split) {
    return "rope: this family turns keys for few rows and for many by kernels that round apart, which fixed_split does not allow; leave one of them out";
  }
  if (g.shared_bytes_block < kSharedBytes) return kvloom::format("{} bytes of shared memory for a CTA, wanted {}", g.shared_bytes_block, kSharedBytes);
  return sm80_refusal(s, g, fixed_split);
}

OwnSchedules sm90_schedule(const AttentionSpec& s, const GpuTarget& g, SchedulerConfig& config) {
  if (config.policy == Policy::fixed_split) return fixed_schedule(s, g, config);
  if (streams_alone(s)) return schedule_beside_sm80(s, g, config);
  const sm90::AttendConfig mixed = mixed::config_of(unit_spec(s)).many, compute = sm90::compute_config(unit_spec(s)), rows = sm90::rows_config(unit_spec(s));
  sm80_schedule(s, g, config);
  use_levels(config);
  OwnSchedules own;
  own.memory_32 = sm80_memory_32_schedule(s, g, config);
  config.cost_partial_row = kPartialRow;
  use_stream(s, config);
  config.classes[1] = compute_class(s, mixed);
  config.num_ctas = g.num_sms;
  config.fill_from = kFillFrom;
  own.memory = config;
  own.memory->saturating_ctas = stream_saturating_ctas(g.num_sms);
  config.classes[0] = stream_class_beside(s);
  config.cost_shared = kSharedItem;
  const bool boxed = s.storage == Storage::ragged || s.page_size % 8 == 0;  // rows fetched one by one land in one CTA
  own.small_computes = true, own.fetches_rows = !boxed;
  own.compute = config;
  own.compute->classes[1] = compute_class(s, boxed ? compute : rows);
  own.compute->num_ctas = boxed ? max_of(1, g.num_sms / compute.ctas) : g.num_sms;
  return own;
}

jit::Unit sm90_unit(const AttentionSpec& s, const GpuTarget& g, bool fixed_split) {
  const std::string key = unit_key("sm90", s, fixed_split);
  if (fixed_split) {
    std::vector<jit::UnitConfig> configs{{"stream", "kMemory", stream_text(stream_config(s, StreamKind::fixed_split))}};
    std::vector<jit::UnitEntry> entries{{"attend_memory", "KVLOOM_STREAM_ATTEND", "kMemory"}};
    if (stream_many_class(s)) {
      configs.push_back({"stream", "kMixed", stream_text(stream_config(s, StreamKind::fixed_split_many))});
      entries.push_back({"attend_mixed", "KVLOOM_STREAM_ATTEND", "kMixed"});
    }
    return jit::attend_unit(key, s, configs, entries);
  }
  const Sm80Texts many = sm80_texts(s, g, fixed_split);
  if (streams_alone(s)) {
    const std::string& beside = many.mixed_memory.empty() ? many.memory : many.mixed_memory;
    std::vector<jit::UnitConfig> configs{{"stream", "kMemory", stream_text(stream_config(s))}, {"sm80", "kCompute", many.compute}, {"sm80", "kMixedMemory", beside}};
    std::vector<jit::UnitEntry> entries{{"attend_memory", "KVLOOM_STREAM_ATTEND", "kMemory"},
                                        {"attend_compute", "KVLOOM_SM80_ATTEND", "kCompute"},
                                        {"attend_mixed", "KVLOOM_SM80_ATTEND_MIXED", "kMixedMemory, kCompute"},
                                        {"attend_small", "KVLOOM_SM80_ATTEND", "kMixedMemory"}};
    add_memory_32(many, configs, entries);
    return jit::attend_unit(key, s, configs, entries);
  }
  const mixed::AttendConfig mixed = mixed::config_of(unit_spec(s));
  const std::string both = kvloom::format(".few = {{{}}}, .many = {{{}}}", stream_text(mixed.few), config_text(mixed.many));
  std::vector<jit::UnitConfig> configs{{"stream", "kMemory", stream_text(stream_config(s))}, {"sm90", "kCompute", config_text(sm90::compute_config(unit_spec(s)))}, {"mixed", "kMixed", both}};
  std::vector<jit::UnitEntry> entries{{"attend_memory", "KVLOOM_STREAM_ATTEND", "kMemory"}, {"attend_compute", "KVLOOM_SM90_ATTEND", "kCompute"}, {"attend_mixed", "KVLOOM_MIXED_ATTEND", "kMixed"}};
  if (s.storage == Storage::paged) {  // pages without boxes: many rows alone
    configs.push_back({"sm90", "kRows", config_text(sm90::rows_config(unit_spec(s)))});
    entries.push_back({"attend_small", "KVLOOM_SM90_ATTEND", "kRows"});
  }
  add_memory_32(many, configs, entries);
  return jit::attend_unit(key, s, configs, entries);
}

}  // namespace kvloom::runtime
