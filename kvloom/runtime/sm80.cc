#include "kvloom/runtime/sm80.h"

#include "kvloom/base/math.h"
#include "kvloom/contract/kernel_key.h"
#include "kvloom/device/sm80/choose.h"
#include "kvloom/support/format.h"

#include <bit>

namespace kvloom::runtime {
namespace {

constexpr int32_t kMaxDim = 256;                     // of one warp's rows
constexpr int32_t kWideQk[] = {512, 576}, kWideVo = 512;  // beyond it; 576: MLA
constexpr int32_t kMemoryRows = 16;              // packed rows of the memory class
constexpr double kBytesPerNs = 65.0;             // that an SM reads where all of them do (docs: lab notes, H200)
constexpr double kFlopPerNs = 3000.0;            // that an SM does in mma.sync on such steps
// ns a row of what cutting a tile costs, three times: of 256 rows, cut once, 30 us: an item more, twice 3 to store, 18 to merge (docs: lab notes, H200).
constexpr int32_t kPartialRow = 35;
// Levels: so much of a step's cost must be saved, and so many tokens by the first above a request; what an item costs more then, ns. None beside prefill
// chunks, which they made 4 to 10 % slower (docs: lab notes, H200).
constexpr int32_t kLevelPercent = 30, kLevelItem = 2500;
constexpr int64_t kReaderGain = 600;

sm80::UnitSpec unit_spec(const AttentionSpec& s, const GpuTarget& g, bool fixed_split) {
  sm80::UnitSpec u;
  u.head_dim_qk = s.head_dim_qk;
  u.head_dim_vo = s.head_dim_vo;
  u.q_dtype = s.q_dtype;
  u.kv_dtype = s.kv_dtype;
  u.o_dtype = s.o_dtype;
  u.paged = s.storage == Storage::paged;
  u.fixed_split = fixed_split;
  u.rotates_keys = s.variant.rope.mode != RopeMode::none;
  u.makes_masks = s.variant.custom_mask || s.variant.user != nullptr;
  u.shared_per_sm = g.shared_bytes_sm;
  return u;
}

/// Designated initialisers, in the order of the struct.
std::string config_text(const sm80::AttendConfig& c) {
  return kvloom::format(
      ".head_dim_qk = {}, .head_dim_vo = {}, .q_dtype = kvloom::DType::{}, .kv_dtype = kvloom::DType::{}, .o_dtype = kvloom::DType::{}, "
      ".tile_rows = {}, .tile_kv = {}, .warps_rows = {}, .warps_kv = {}, .stages = {}, .ahead = {}, .ctas_per_sm = {}, .paged = {}, "
      ".fixed_split = {}, "
      ".q_in_registers = {}",
      c.head_dim_qk, c.head_dim_vo, name_of(c.q_dtype), name_of(c.kv_dtype), name_of(c.o_dtype), c.tile_rows, c.tile_kv, c.warps_rows,
      c.warps_kv, c.stages, c.ahead, c.ctas_per_sm, c.paged, c.fixed_split, c.q_in_registers);
}

std::string dim_refusal(const AttentionSpec& s) {
  if (s.head_dim_vo == kWideVo && (s.head_dim_qk == kWideQk[0] || s.head_dim_qk == kWideQk[1])) return "";
  for (const int32_t dim : {s.head_dim_qk, s.head_dim_vo}) {
    if (dim > kMaxDim) return kvloom::format("head dim {}: wanted at most {}, or {} or {} with {}", dim, kMaxDim, kWideQk[0], kWideQk[1], kWideVo);
    if (dim % 16 != 0) {
      return kvloom::format("head dim {}: the nearest with a kernel is {}; pad with zeros and give sm_scale = 1 / sqrt({})", dim,
                            round_up(dim, 16), dim);
    }
  }
  return "";
}

/// Bytes of shared memory that a CTA wants and the chip has not; 0: all kernels fit.
int32_t bytes_beyond(const AttentionSpec& s, const GpuTarget& g, bool fixed_split) {
  const sm80::UnitSpec u = unit_spec(s, g, fixed_split);
  for (const sm80::AttendConfig& c : {sm80::memory_config(u), sm80::mixed_memory_config(u), sm80::compute_config(u)}) {
    const int32_t bytes = sm80::shared_estimate(c, u);
    if (bytes > g.shared_bytes_block) return bytes;
  }
  return 0;
}

/// The fewest changes with which the spec fits the chip: "; with fp8 K and V it fits"; "": none do.
std::string what_fits(const AttentionSpec& s, const GpuTarget& g, bool fixed_split) {
  const struct {
    bool possible;
    const char* text;
  } changes[] = {{!is_fp8(s.kv_dtype), "fp8 K and V"},
                 {fixed_split, "another policy than fixed_split"},
                 {s.variant.rope.mode != RopeMode::none, "keys rotated as they are written (append_kv) instead of fused RoPE"}};
  for (int count = 1; count <= 3; ++count) {
    for (unsigned set = 1; set < 8; ++set) {
      std::string text;
      bool possible = std::popcount(set) == count;
      for (int i = 0; i < 3; ++i) {
        if (!(set >> i & 1)) continue;
        possible = possible && changes[i].possible;
        text += (text.empty() ? "" : " and ") + std::string(changes[i].text);
      }
      AttentionSpec changed = s;
      if (set & 1) changed.kv_dtype = DType::e4m3;
      if (set & 4) changed.variant.rope.mode = RopeMode::none;
      if (possible && bytes_beyond(changed, g, fixed_split && !(set & 2)) == 0) return kvloom::format("; with {} it fits", text);
    }
  }
  return "";
}

/// Nanoseconds of one CTA. An item costs what lies between its words and its first key, and its end; with two CTAs half of that is hidden.
KernelClass memory_class(const AttentionSpec& s, const sm80::AttendConfig& c) {
  const double dims = double(s.head_dim_qk) + s.head_dim_vo;
  KernelClass k;
  k.tile_rows = c.tile_rows;
  k.tile_kv = c.tile_kv;
  k.cost_per_token = int32_t(dims * size_of(s.kv_dtype) * c.ctas_per_sm / kBytesPerNs) + 1;
  k.cost_per_item = 2500 / c.ctas_per_sm;
  return k;
}
KernelClass compute_class(const AttentionSpec& s, const sm80::AttendConfig& c) {
  const double dims = double(s.head_dim_qk) + s.head_dim_vo;
  KernelClass k;
  k.tile_rows = c.tile_rows;
  k.tile_kv = c.tile_kv;
  k.cost_per_token = int32_t(2.0 * dims * c.tile_rows * c.ctas_per_sm / kFlopPerNs) + 1;
  k.cost_per_item = 7000;
  return k;
}

}  // namespace

std::string sm80_refusal(const AttentionSpec& s, const GpuTarget& g, bool fixed_split) {
  if (g.capability < 80) return kvloom::format("compute capability {}.{}, wanted 8.0 or newer", g.capability / 10, g.capability % 10);
  if (s.q_dtype != DType::f16 && s.q_dtype != DType::bf16) return kvloom::format("q is {}, wanted f16 or bf16", name_of(s.q_dtype));
  if (s.kv_dtype != s.q_dtype && !is_fp8(s.kv_dtype)) {
    return kvloom::format("k and v are {} with q {}, wanted {} or fp8", name_of(s.kv_dtype), name_of(s.q_dtype), name_of(s.q_dtype));
  }
  const std::string dims = dim_refusal(s);
  if (!dims.empty()) return dims;
  const int32_t bytes = bytes_beyond(s, g, fixed_split);
  if (bytes == 0) return "";
  return kvloom::format("head dims {} and {} want about {} bytes of shared memory for a CTA; {} has {}{}", s.head_dim_qk, s.head_dim_vo, bytes, g.arch,
                        g.shared_bytes_block, what_fits(s, g, fixed_split));
}

OwnSchedules sm80_schedule(const AttentionSpec& s, const GpuTarget& g, SchedulerConfig& config) {
  const sm80::UnitSpec u = unit_spec(s, g, config.policy == Policy::fixed_split);
  const sm80::AttendConfig alone = sm80::memory_config(u), mixed = sm80::mixed_memory_config(u), compute = sm80::compute_config(u);
  config.compute_rows_above = kMemoryRows;
  config.cost_partial = 1000;
  config.cost_merge = 2500;
  config.cost_partial_row = kPartialRow;
  config.level_first_percent = kLevelPercent;
  config.level_reader_gain = kReaderGain;
  config.levels_beside_many = false;
  config.cost_level_item = kLevelItem;
  config.classes[0] = memory_class(s, mixed);
  config.keep_whole_margin =
      int64_t(mixed.tile_kv) * config.classes[0].cost_per_token;  // a tile: no CTA is to have more than that above the mean
  config.classes[1] = compute_class(s, compute);
  config.num_ctas = g.num_sms * min_of(mixed.ctas_per_sm, compute.ctas_per_sm);
  OwnSchedules own;
  if (alone.threads() != mixed.threads() || alone.tile_kv != mixed.tile_kv) own.memory = sm80_memory_schedule(s, g, config);
  own.memory_32 = sm80_memory_32_schedule(s, g, config);
  return own;
}

SchedulerConfig sm80_memory_schedule(const AttentionSpec& s, const GpuTarget& g, const SchedulerConfig& config) {
  const sm80::AttendConfig alone = sm80::memory_config(unit_spec(s, g, config.policy == Policy::fixed_split));
  SchedulerConfig memory = config;
  memory.classes[0] = memory_class(s, alone);
  memory.num_ctas = g.num_sms * alone.ctas_per_sm;
  return memory;
}

std::optional<SchedulerConfig> sm80_memory_32_schedule(const AttentionSpec& s, const GpuTarget& g, const SchedulerConfig& config) {
  const sm80::UnitSpec u = unit_spec(s, g, config.policy == Policy::fixed_split);
  const sm80::AttendConfig c = sm80::memory_of_32_rows(u);
  if (!sm80::takes_32_rows(u) || s.group_size() > c.tile_rows) return {};
  SchedulerConfig own = config;
  own.compute_rows_above = c.tile_rows;
  own.classes[0] = memory_class(s, c);
  own.keep_whole_margin = int64_t(c.tile_kv) * own.classes[0].cost_per_token;
  own.num_ctas = g.num_sms * c.ctas_per_sm;
  if (!config.levels_beside_many) own.levels = LevelMode::off;  // readers of a prefix have more than 32 rows together: such steps would run as steps of many rows
  return own;
}

Sm80Texts sm80_texts(const AttentionSpec& s, const GpuTarget& g, bool fixed_split) {
  const sm80::UnitSpec u = unit_spec(s, g, fixed_split);
  Sm80Texts t{config_text(sm80::memory_config(u)), config_text(sm80::mixed_memory_config(u)), config_text(sm80::compute_config(u)), ""};
  if (t.mixed_memory == t.memory) t.mixed_memory.clear();
  if (sm80::takes_32_rows(u)) t.memory_32 = config_text(sm80::memory_of_32_rows(u));
  return t;
}

void add_memory_32(const Sm80Texts& t, std::vector<jit::UnitConfig>& configs, std::vector<jit::UnitEntry>& entries) {
  if (t.memory_32.empty()) return;
  configs.push_back({"sm80", "kMemory32", t.memory_32});
  entries.push_back({"attend_memory_32", "KVLOOM_SM80_ATTEND", "kMemory32"});
}

jit::Unit sm80_unit(const AttentionSpec& s, const GpuTarget& g, bool fixed_split) {
  const Sm80Texts t = sm80_texts(s, g, fixed_split);
  const bool apart = !t.mixed_memory.empty();
  std::vector<jit::UnitConfig> configs{{"sm80", "kMemory", t.memory}, {"sm80", "kCompute", t.compute}};
  if (apart) configs.push_back({"sm80", "kMixedMemory", t.mixed_memory});
  std::vector<jit::UnitEntry> entries{{"attend_memory", "KVLOOM_SM80_ATTEND", "kMemory"},
                                      {"attend_compute", "KVLOOM_SM80_ATTEND", "kCompute"},
                                      {"attend_mixed", "KVLOOM_SM80_ATTEND_MIXED", apart ? "kMixedMemory, kCompute" : "kMemory, kCompute"}};
  if (apart) entries.push_back({"attend_small", "KVLOOM_SM80_ATTEND", "kMixedMemory"});
  add_memory_32(t, configs, entries);
  return jit::attend_unit(unit_key("sm80", s, fixed_split), s, configs, entries);
}

}  // namespace kvloom::runtime
