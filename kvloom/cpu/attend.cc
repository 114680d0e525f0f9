#include "kvloom/cpu/attend.h"

#include "kvloom/attn/state.h"
#include "kvloom/cpu/arena.h"
#include "kvloom/cpu/chunk.h"
#include "kvloom/cpu/marks.h"
#include "kvloom/cpu/rows.h"
#include "kvloom/variants/sink.h"

#include <atomic>

namespace kvloom::cpu {
namespace {

/// States of some rows: o [rows][head_dim_vo] fp32, normalised; lse [rows] natural log.
struct States {
  float* o;
  float* lse;
};

/// One thread's memory: two sets of states for the rows of an item, then whatever the kernel wants.
struct ThreadMemory {
  States item;
  States chunk;  // fixed_split: the chunk that is about to be folded into `item`
  void* kernel;
};

ThreadMemory take_thread_memory(Arena& arena, const AttentionSpec& spec, const KernelClass classes[2]) {
  int64_t rows = 0;
  for (int i = 0; i < 2; ++i) rows = max_of(rows, int64_t(classes[i].tile_rows) * classes[i].heads_per_item);
  ThreadMemory m;
  m.item = {arena.take<float>(rows * spec.head_dim_vo), arena.take<float>(rows)};
  m.chunk = {arena.take<float>(rows * spec.head_dim_vo), arena.take<float>(rows)};
  m.kernel = arena.take<char>(0);
  return m;
}

/// One run: what every item needs.
struct Run {
  Job job;
  const Kernels* kernels;
  const Scratch* scratch;
  bool sum;  // reduction

  const AttentionSpec& spec() const { return *job.spec; }
};

/// `into` becomes the merge of (into, other), `into` first. The one place where states are put together.
void merge_row(const Run& run, float* o, float& lse, const float* other_o, float other_lse) {
  const int64_t n = run.spec().head_dim_vo;
  if (run.sum) {
    run.kernels->axpby_row(1.0f, other_o, 1.0f, o, n);
    return;
  }
  const MergeWeights w = merge_weights(lse, other_lse);
  run.kernels->axpby_row(w.b, other_o, w.a, o, n);
  lse = w.lse;
}

/// Writes the final row of one query token and head: sink or the user's finish, output type, LSE.
void store_final_row(const Run& run, int64_t token, int32_t q_head, const float* o, float lse) {
  const AttendParams& p = *run.job.params;
  float factor = 1.0f;
  if (run.spec().variant.sink && !p.bare_state) {
    const RowFinish w = variants::Sink::finish(lse, q_head, p.variant);
    factor = w.factor;
    lse = w.lse;
  }
  if (const UserVariant* user = run.spec().variant.user; user && user->finish && !p.bare_state) {
    const RowFinish w = user->finish(lse, q_head, p.variant);
    factor = w.factor;
    lse = w.lse;
  }
  char* out = static_cast<char*>(p.o) + (token * p.o_token + q_head * p.o_head) * size_of(run.spec().o_dtype);
  run.kernels->store_row(factor, o, out, run.spec().o_dtype, run.spec().head_dim_vo);
  if (p.lse) p.lse[token * p.lse_token + q_head * p.lse_head] = lse;
}

void compute(const Run& run, const WorkItem& item, int32_t kv_begin, int32_t kv_end, void* memory, const States& out) {
  const Chunk chunk{&run.job.plan.groups[item.group], item.row_begin, item.row_count, item.kv_head, item.kv_head_count, kv_begin, kv_end};
  const AttendChunk kernel = item.kernel_class == 0 ? run.kernels->short_rows : run.kernels->tile;
  kernel(run.job, chunk, memory, out.o, out.lse);
}

/// The end of the fixed-length chunk that `token` lies in, or the item's end.
int32_t chunk_end(const Run& run, const WorkItem& item, int32_t token) {
  const int32_t split = run.job.plan.header->split_tokens;
  if (split <= 0) return item.kv_end;
  return static_cast<int32_t>(min_of<int64_t>(item.kv_end, (int64_t(token) / split + 1) * split));
}

/// The item's keys as one state a row. Under fixed_split chunk after chunk is merged in, as separate partials would be.
void compute_folded(const Run& run, const WorkItem& item, const ThreadMemory& m, const States& out) {
  int32_t begin = item.kv_begin, end = chunk_end(run, item, begin);
  compute(run, item, begin, end, m.kernel, out);
  const int64_t rows = int64_t(item.row_count) * item.kv_head_count, dim = run.spec().head_dim_vo;
  while (end < item.kv_end) {
    begin = end;
    end = chunk_end(run, item, begin);
    compute(run, item, begin, end, m.kernel, m.chunk);
    for (int64_t r = 0; r < rows; ++r) merge_row(run, out.o + r * dim, out.lse[r], m.chunk.o + r * dim, m.chunk.lse[r]);
  }
}

/// Every chunk of the item as a partial of its own.
void compute_chunked(const Run& run, const WorkItem& item, const ThreadMemory& m) {
  const int64_t rows = int64_t(item.row_count) * item.kv_head_count, dim = run.spec().head_dim_vo;
  int64_t at = item.partial_row;
  int32_t begin = item.kv_begin;
  do {
    const int32_t end = chunk_end(run, item, begin);
    compute(run, item, begin, end, m.kernel, {run.scratch->partial_o + at * dim, run.scratch->partial_lse + at});
    at += rows;
    begin = end;
  } while (begin < item.kv_end);
}

/// Final rows of an item that is alone with them.
void store_item(const Run& run, const WorkItem& item, const States& states) {
  const RowGroup& group = run.job.plan.groups[item.group];
  const int32_t group_size = run.spec().group_size();
  const int64_t dim = run.spec().head_dim_vo;
  for (int32_t h = 0; h < item.kv_head_count; ++h) {
    for (int32_t i = 0; i < item.row_count; ++i) {
      const int32_t packed = item.row_begin + i;
      const int64_t r = int64_t(h) * item.row_count + i;
      store_final_row(run, row_of(run.job.plan, group, packed / group_size).token, (item.kv_head + h) * group_size + packed % group_size,
                      states.o + r * dim, states.lse[r]);
    }
  }
}

/// Merges the partials of a complete unit, left to right in list order, into the output.
void merge_unit(const Run& run, const MergeUnit& unit, const ThreadMemory& m) {
  const int32_t group_size = run.spec().group_size();
  const int64_t dim = run.spec().head_dim_vo;
  float* o = m.item.o;  // one row at a time
  for (int32_t h = 0; h < unit.kv_head_count; ++h) {
    for (int32_t i = 0; i < unit.row_count; ++i) {
      float lse = neg_inf();
      for (int32_t e = 0; e < unit.entry_count; ++e) {
        const MergeEntry& entry = run.job.plan.entries[unit.entry_begin + e];
        const int64_t row = int64_t(entry.partial_row) + int64_t(h) * entry.head_stride + i;
        const float* part = run.scratch->partial_o + row * dim;
        if (e == 0) {
          __builtin_memcpy(o, part, dim * sizeof(float));
          lse = run.scratch->partial_lse[row];
        } else {
          merge_row(run, o, lse, part, run.scratch->partial_lse[row]);
        }
      }
      const int32_t packed = unit.row_begin + i;
      store_final_row(run, packed / group_size, (unit.kv_head + h) * group_size + packed % group_size, o, lse);
    }
  }
}

/// Tells every unit that the item contributes to that its partials are there; merges those that this was the last of.
void arrive(const Run& run, const WorkItem& item, const ThreadMemory& m, Marks& marks) {
  for (int32_t t = 0; t < item.touch_count; ++t) {
    const int32_t u = run.job.plan.touches[item.touch_begin + t];
    const MergeUnit& unit = run.job.plan.units[u];
    std::atomic_ref<uint32_t> counter(run.scratch->counters[u]);
    const uint32_t before = counter.fetch_add(1, std::memory_order_acq_rel);
    if (before + 1 != static_cast<uint32_t>(unit.arrivals)) continue;
    merge_unit(run, unit, m);
    marks.merged();
    counter.store(0, std::memory_order_relaxed);
  }
}

void run_item(const Run& run, const WorkItem& item, const ThreadMemory& m, Marks& marks) {
  if (item.partial_row < 0) {
    compute_folded(run, item, m, m.item);
    marks.attended();
    store_item(run, item, m.item);
    return marks.stored();
  }
  if (item.chunked) {
    compute_chunked(run, item, m);
  } else {
    const int64_t dim = run.spec().head_dim_vo;
    compute_folded(run, item, m, {run.scratch->partial_o + item.partial_row * dim, run.scratch->partial_lse + item.partial_row});
  }
  marks.attended();  // the kernels write partial rows where they belong
  marks.stored();
  arrive(run, item, m, marks);
}

}  // namespace

int64_t thread_arena_bytes(const AttentionSpec& spec, const KernelClass classes[2]) {
  Arena arena(nullptr);
  take_thread_memory(arena, spec, classes);
  int64_t kernel = 0;
  for (int t = 0; t < kNumTargets; ++t) {  // whichever target will run
    if (!is_available(static_cast<Target>(t))) continue;
    const Kernels& k = kernels(static_cast<Target>(t));
    for (int i = 0; i < 2; ++i) kernel = max_of(kernel, k.arena_bytes(spec, classes[i], i == 1));
  }
  return arena.bytes() + round_up<int64_t>(kernel, 64);
}

void attend(const AttentionSpec& spec, const PlanView& plan, const AttendParams& params, const Scratch& scratch, ThreadPool& pool,
            Target target, const UserStage& user, CtaTimes* timeline) {
  const Kernels& k = kernels(target);
  const ScoreStage score = user.score ? user.score : k.score_stage(spec.variant);
  const Run run{Job{&spec, plan, &params, score, user.mark}, &k, &scratch, spec.variant.reduction == Reduction::sum};
  pool.for_each(plan.header->num_ctas, [&](int64_t cta, int thread) {
    Arena arena(static_cast<char*>(scratch.thread_arena) + thread * scratch.thread_arena_bytes);
    const ThreadMemory memory = take_thread_memory(arena, spec, plan.header->classes);
    Marks marks(timeline, plan, cta, thread);
    for (int32_t i = plan.cta_indptr[cta]; i < plan.cta_indptr[cta + 1]; ++i) {
      run_item(run, plan.items[i], memory, marks);
      marks.done();
    }
  });
}

}  // namespace kvloom::cpu
