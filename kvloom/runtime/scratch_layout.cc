#include "kvloom/runtime/scratch_layout.h"

#include "kvloom/base/math.h"
#include "kvloom/support/check.h"

namespace kvloom::runtime {

ScratchLayout scratch_layout(const plan::PlanLayout& plan, int64_t arena_bytes, int32_t threads) {
  constexpr int64_t kLimit = int64_t(1) << 62;
  int64_t end = 0;
  const auto place = [&](int64_t bytes) {
    const int64_t begin = round_up(end, kScratchAlign);
    if (bytes < 0 || bytes > kLimit - begin) {
      fail(ErrorCode::over_capacity, "workspace: size: got more than 2^62 bytes, wanted fewer; lower the capacity");
    }
    end = begin + bytes;
    return begin;
  };
  ScratchLayout s;
  s.partial_o = place(plan.partial_o_bytes);
  s.partial_lse = place(plan.partial_lse_bytes);
  s.counters = place(plan.counter_bytes);
  s.arena_bytes = round_up(arena_bytes, kScratchAlign);
  s.arena = place(s.arena_bytes * threads);
  s.bytes = end;
  return s;
}

Scratch scratch_at(void* data, const ScratchLayout& layout) {
  char* const base = static_cast<char*>(data);
  Scratch s;
  s.partial_o = reinterpret_cast<float*>(base + layout.partial_o);
  s.partial_lse = reinterpret_cast<float*>(base + layout.partial_lse);
  s.counters = reinterpret_cast<uint32_t*>(base + layout.counters);
  s.thread_arena = base + layout.arena;
  s.thread_arena_bytes = layout.arena_bytes;
  return s;
}

}  // namespace kvloom::runtime
