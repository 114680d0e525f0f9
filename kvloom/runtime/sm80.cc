#include "kvloom/runtime/sm80.h"

#include "kvloom/base/math.h"
#include "kvloom/contract/kernel_key.h"
#include "kvloom/runtime/sm80_tiles.h"
#include "kvloom/support/format.h"

namespace kvloom::runtime {
namespace {

constexpr int32_t kMaxDim = 256;                 // of one warp's rows
constexpr int32_t kWideQk = 576, kWideVo = 512;  // MLA: the one pair beyond it
constexpr int32_t kMemoryRows = 16;              // packed rows of the memory class
constexpr double kBytesPerNs = 65.0;             // that an SM reads where all of them do (docs: lab notes, H200)
constexpr double kFlopPerNs = 3000.0;            // that an SM does in mma.sync on such steps

/// Designated initialisers, in the order of the struct.
std::string config_text(const AttentionSpec& s, const Sm80Tile& t, bool fixed_split) {
  return kvloom::format(
      ".head_dim_qk = {}, .head_dim_vo = {}, .q_dtype = kvloom::DType::{}, .kv_dtype = kvloom::DType::{}, .o_dtype = kvloom::DType::{}, "
      ".tile_rows = {}, .tile_kv = {}, .warps_rows = {}, .warps_kv = {}, .ctas_per_sm = {}, .paged = {}, .fixed_split = {}, "
      ".q_in_registers = {}, .slice_keys = {}",
      s.head_dim_qk, s.head_dim_vo, name_of(s.q_dtype), name_of(s.kv_dtype), name_of(s.o_dtype), t.rows, t.keys, t.warps_rows, t.warps_kv,
      t.ctas, s.storage == Storage::paged, fixed_split, t.q_in_registers, t.slice_keys);
}

std::string dim_refusal(const AttentionSpec& s) {
  if (s.head_dim_qk == kWideQk && s.head_dim_vo == kWideVo) return "";
  for (const int32_t dim : {s.head_dim_qk, s.head_dim_vo}) {
    if (dim > kMaxDim) return kvloom::format("head dim {}: wanted at most {}, or {} with {} (MLA)", dim, kMaxDim, kWideQk, kWideVo);
    if (dim % 16 != 0) {
      return kvloom::format("head dim {}: the nearest with a kernel is {}; pad with zeros and give sm_scale = 1 / sqrt({})", dim,
                            round_up(dim, 16), dim);
    }
  }
  return "";
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
  if (sm80_tiles(s, g, fixed_split).memory.rows == 0) {
    return kvloom::format("head dims {} and {} want more shared memory than the {} bytes that a CTA may have on {}", s.head_dim_qk,
                          s.head_dim_vo, g.shared_bytes_block, g.arch);
  }
  return "";
}

void sm80_schedule(const AttentionSpec& s, const GpuTarget& g, SchedulerConfig& config) {
  const auto [memory, compute] = sm80_tiles(s, g, config.policy == Policy::fixed_split);
  const double dims = double(s.head_dim_qk) + s.head_dim_vo;
  KernelClass& m = config.classes[0];
  m = KernelClass{};
  m.tile_rows = memory.rows;
  m.tile_kv = memory.keys;
  m.cost_per_token = int32_t(dims * size_of(s.kv_dtype) * memory.ctas / kBytesPerNs) + 1;
  m.cost_per_item = 300;
  KernelClass& c = config.classes[1];
  c = KernelClass{};
  c.tile_rows = compute.rows;
  c.tile_kv = compute.keys;
  c.cost_per_token = int32_t(2.0 * dims * compute.rows * compute.ctas / kFlopPerNs) + 1;
  c.cost_per_item = 1000;
  config.compute_rows_above = kMemoryRows;
  config.num_ctas = g.num_sms * min_of(memory.ctas, compute.ctas);
}

jit::Unit sm80_unit(const AttentionSpec& s, const GpuTarget& g, bool fixed_split) {
  // Order, windows and sinks are data of every kernel: all of their spellings are one unit.
  AttentionSpec code = s;
  code.variant.range = {};
  code.variant.sink = false;
  std::string key = kernel_key("attend", "sm80", code);
  if (fixed_split) key += ".fixed-split";
  const Sm80Tiles tiles = sm80_tiles(s, g, fixed_split);
  return jit::attend_unit(key, "sm80", s, config_text(s, tiles.memory, fixed_split), config_text(s, tiles.compute, fixed_split));
}

}  // namespace kvloom::runtime
