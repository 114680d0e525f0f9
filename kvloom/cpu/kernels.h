// What each target defines (kernels_<target>.cc, short_rows_<target>.cc). Callers go through kernels(Target) of cpu/chunk.h.
#pragma once

#include "kvloom/cpu/chunk.h"

#define KVLOOM_DECLARE_TARGET(target)                                                          \
  namespace target {                                                                           \
  void tile(const Job& job, const Chunk& chunk, void* arena, float* o, float* lse);            \
  int64_t tile_arena_bytes(const AttentionSpec& spec, int32_t tile_rows);                      \
  void axpby_row(float a, const float* x, float b, float* y, int64_t n);                       \
  void store_row(float a, const float* x, void* y, DType dtype, int64_t n);                    \
  ScoreStage score_stage(const VariantSpec& variant);                                          \
  void short_rows(const Job& job, const Chunk& chunk, void* arena, float* o, float* lse);      \
  int64_t short_rows_arena_bytes(const AttentionSpec& spec, int32_t tile_rows, int32_t heads); \
  }

namespace kvloom::cpu {

KVLOOM_DECLARE_TARGET(portable)
KVLOOM_DECLARE_TARGET(avx2)
KVLOOM_DECLARE_TARGET(avx512)

}  // namespace kvloom::cpu
#undef KVLOOM_DECLARE_TARGET
