// The seam between the executor (which knows plans) and a target's kernels (which know registers).
#pragma once

#include "kvloom/contract/params.h"
#include "kvloom/contract/plan_format.h"
#include "kvloom/contract/spec.h"
#include "kvloom/contract/user_variant.h"
#include "kvloom/cpu/target.h"

namespace kvloom::cpu {

struct Job;
struct ScoreTile;
struct KeyColumns;
struct PackedRow;

/// The variant's part of a kernel: cpu/score.h.
using ScoreStage = void (*)(const Job& job, const ScoreTile& tile);
/// Which of some keys a row keeps by the variant's code: cpu/live_keys.h.
using MarkStage = void (*)(const Job& job, const RowGroup& group, const KeyColumns& columns, const PackedRow& row, int32_t begin,
                           int32_t end, uint8_t* live);

/// What a user's variant brings for one target (user_stage.inl).
struct UserStage {
  ScoreStage score = nullptr;
  MarkStage mark = nullptr;  // nullptr: no hook masks
};

/// What every chunk of a run shares, resolved once.
struct Job {
  const AttentionSpec* spec;
  PlanView plan;
  const AttendParams* params;
  ScoreStage score;
  MarkStage mark = nullptr;  // of a user's variant that masks
};

/// True if the variant masks by code: which keys a row keeps doesn't follow from positions alone.
KVLOOM_HD bool masks_by_code(const VariantSpec& v) { return v.custom_mask || (v.user && v.user->keep); }

/// Rows x keys to compute: packed rows [row_begin, row_begin + row_count) of `group` for KV heads [kv_head, kv_head + kv_head_count)
/// against list tokens [kv_begin, kv_end).
struct Chunk {
  const RowGroup* group;
  int32_t row_begin;
  int32_t row_count;
  int32_t kv_head;
  int32_t kv_head_count;
  int32_t kv_begin;
  int32_t kv_end;
};

/// Computes the state of a chunk: o [kv_head_count][row_count][head_dim_vo] fp32, normalised, v scales applied; lse
/// [kv_head_count][row_count] natural log (reduction sum: o is the plain sum, lse is 0). Rows that keep nothing: o = 0, lse = -inf.
/// `arena`: thread_arena_bytes() of memory of the calling thread, 64-byte aligned, contents undefined.
using AttendChunk = void (*)(const Job& job, const Chunk& chunk, void* arena, float* o, float* lse);

/// The kernels of one target. Vector code lives behind these pointers only: what is compiled for another instruction set must not leak
/// into code that everybody calls.
struct Kernels {
  AttendChunk short_rows;  // few packed rows: dot products, memory-bound, all heads of a KV tile before the next tile
  AttendChunk tile;        // many packed rows: packed panels and register tiles, compute-bound
  int64_t (*arena_bytes)(const AttentionSpec& spec, const KernelClass& c, bool tile);
  void (*axpby_row)(float a, const float* x, float b, float* y, int64_t n);     // y = a * x + b * y: merges
  void (*store_row)(float a, const float* x, void* y, DType dtype, int64_t n);  // y[i] = a * x[i], rounded to nearest even
  ScoreStage (*score_stage)(const VariantSpec& variant);
};

/// The kernels of `target`, which must be available.
const Kernels& kernels(Target target);

}  // namespace kvloom::cpu
