#include "kvloom/runtime/stream.h"

#include "kvloom/device/stream/choose.h"
#include "kvloom/support/format.h"

namespace kvloom::runtime {
namespace {

constexpr double kBytesPerNs = 34.0, kBytesPerNsBeside = 59.0;  // that an SM reads where all of them do; beside tensor cores (docs: lab notes, H200)
constexpr double kFlopPerNs = 1400.0;                           // that an SM does of items with many rows under fixed_split

stream::UnitSpec unit_spec(const AttentionSpec& s, bool fixed_split) {
  return {s.head_dim_qk, s.head_dim_vo, s.q_dtype, s.kv_dtype, s.o_dtype, s.storage == Storage::paged, fixed_split};
}

/// `bytes_per_ns`: of a CTA.
KernelClass class_of(const AttentionSpec& s, bool fixed_split, double bytes_per_ns) {
  const stream::AttendConfig c = stream::config_of(unit_spec(s, fixed_split));
  KernelClass k;
  k.tile_rows = c.kRows;
  k.tile_kv = fixed_split ? c.turn_keys() : 4 * c.kPieceKeys;
  k.heads_per_item = c.heads;
  k.cost_per_token = int32_t((double(s.head_dim_qk) + s.head_dim_vo) * size_of(s.kv_dtype) / bytes_per_ns) + 1;  // nanoseconds of a CTA
  k.cost_per_item = 600;  // what lies between items is hidden by what is on its way, but for their ends
  return k;
}

}  // namespace

KernelClass stream_class(const AttentionSpec& s, bool fixed_split) { return class_of(s, fixed_split, kBytesPerNs); }
KernelClass stream_class_beside(const AttentionSpec& s) { return class_of(s, false, kBytesPerNsBeside); }

std::optional<KernelClass> stream_many_class(const AttentionSpec& s) {
  if (!stream::has_many(unit_spec(s, true))) return {};
  const stream::AttendConfig c = stream::many_config_of(unit_spec(s, true));
  KernelClass k;
  k.tile_rows = c.kManyRows;
  k.tile_kv = c.turn_keys();
  k.cost_per_token = int32_t(2.0 * (s.head_dim_qk + s.head_dim_vo) * c.kManyRows / kFlopPerNs) + 1;
  k.cost_per_item = 1500;
  return k;
}

int32_t stream_saturating_ctas(int32_t num_sms) { return num_sms * 3 / 5; }  // 70 to 77 of an H200's 132 (docs: lab notes)

stream::AttendConfig stream_config(const AttentionSpec& s, StreamKind kind) {
  const stream::UnitSpec u = unit_spec(s, kind != StreamKind::plain);
  return kind == StreamKind::fixed_split_many ? stream::many_config_of(u) : stream::config_of(u);
}

std::string stream_text(const stream::AttendConfig& c) {
  const std::string own = c.beside ? kvloom::format(", .merge_partials = {}, .merge_rows = {}, .entries_ahead = {}, .two_boxes = {}, .beside = true", c.merge_partials,
                                                    c.merge_rows, c.entries_ahead, c.two_boxes)
                                   : "";
  return kvloom::format(
      ".head_dim_qk = {}, .head_dim_vo = {}, .q_dtype = kvloom::DType::{}, .kv_dtype = kvloom::DType::{}, .o_dtype = kvloom::DType::{}, .heads = {}, "
      ".pieces = {}, .paged = {}, .gathers = {}, .q_in_registers = {}{}{}{}",
      c.head_dim_qk, c.head_dim_vo, name_of(c.q_dtype), name_of(c.kv_dtype), name_of(c.o_dtype), c.heads, c.pieces, c.paged, c.gathers, c.q_in_registers,
      c.fixed_split ? ", .fixed_split = true" : "", c.many ? ", .many = true" : "", own);
}

}  // namespace kvloom::runtime
