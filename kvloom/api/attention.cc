#include "kvloom/api/engine.h"
#include "kvloom/base/math.h"
#include "kvloom/support/check.h"

namespace kvloom {
namespace {

/// The capacity of exactly one batch. Arrays that are too short or fall are left to plan(), which names the fault.
Capacity capacity_of(const AttentionSpec& spec, const Batch& batch, LevelMode levels) {
  Capacity c;
  c.max_requests = max_of(batch.num_requests, 0);
  require(batch.qo_indptr.given() && batch.qo_indptr.size > c.max_requests, "attention: batch.qo_indptr: got {} entries, wanted {}",
          batch.qo_indptr.given() ? batch.qo_indptr.size : 0, int64_t(c.max_requests) + 1);
  c.max_query_tokens = max_of<int64_t>(batch.qo_indptr[c.max_requests], 0);
  int64_t kv_tokens = 0;
  for (int64_t i = 0; i < batch.kv_len.size; ++i) kv_tokens += max_of<int64_t>(batch.kv_len[i], 0);
  c.max_kv_tokens = batch.lists_per_kv_head && spec.num_kv_heads > 0 ? ceil_div<int64_t>(kv_tokens, spec.num_kv_heads) : kv_tokens;
  c.max_kv_tokens = max_of<int64_t>(c.max_kv_tokens, 1);  // 0 would mean "not bounded", which a step without KV is not
  int64_t group_tokens = 0;
  for (const LevelGroup& group : batch.groups) {
    c.max_level_rows += max_of<int64_t>(group.tokens.size, 0);
    group_tokens += max_of<int64_t>(int64_t(group.kv_end) - group.kv_begin, 0);
  }
  c.max_kv_tokens = max_of(c.max_kv_tokens, group_tokens);
  c.max_groups = int32_t(min_of<int64_t>(batch.groups.size, INT32_MAX));
  const bool may_share = batch.groups.empty() && levels == LevelMode::automatic && spec.storage == Storage::paged;
  if (may_share) c.max_level_rows = c.max_query_tokens;  // every token in one shared level
  return c;
}

}  // namespace

void attention(const AttentionSpec& spec, const Batch& batch, const RunTensors& tensors, const EngineOptions& options, void* stream) {
  Engine engine(spec, capacity_of(spec, batch, options.levels), options);
  const Plan plan = engine.plan(batch);
  engine.run(plan, tensors, stream);
}

}  // namespace kvloom
