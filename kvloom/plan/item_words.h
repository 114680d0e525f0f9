// Items of a tile as words in registers: an item that is put together in memory and then copied in wider words waits for its own stores,
// once an item.
#pragma once

#include "kvloom/plan/tiles.h"

#include <bit>
#include <cstddef>
#include <cstring>

namespace kvloom::plan {

inline void store_word(uint64_t word, void* to) { std::memcpy(to, &word, sizeof word); }
inline uint64_t two_words(int32_t low, int32_t high) { return uint32_t(low) | uint64_t(uint32_t(high)) << 32; }

struct ItemWords {
  static_assert(sizeof(WorkItem) == 32 && std::endian::native == std::endian::little);
  static_assert(offsetof(WorkItem, kv_begin) == 8 && offsetof(WorkItem, kv_end) == 12);
  static constexpr int kHeadShift = (offsetof(WorkItem, kv_head) - 24) * 8;
  uint64_t rows, keys, place, heads;
  uint64_t step;  // what `heads` grows by from run to run

  explicit ItemWords(const Tile& t) {
    const auto word = [&](int i) {
      uint64_t w;
      std::memcpy(&w, reinterpret_cast<const char*>(static_cast<const WorkItem*>(&t)) + 8 * i, 8);
      return w;
    };
    rows = word(0), keys = word(1), place = word(2), heads = word(3);
    step = uint64_t(t.kv_head_count) << kHeadShift;
  }
  /// The whole items of runs [first, last), from `to` on. Returns where they end.
  WorkItem* write_runs(const Tile& t, int32_t first, int32_t last, WorkItem* to) const {
    WorkItem* const end = to + (last - first);
    for (uint64_t head = heads + uint64_t(first) * step; to != end; ++to, head += step) write(keys, head, to);
    if ((last == t.runs) & (last > first)) end[-1].kv_head_count = t.last_heads;
    return end;
  }
  /// Keys [kv_begin, kv_end) of one run.
  void write_part(const Tile& t, int32_t run, int32_t kv_begin, int32_t kv_end, WorkItem* to) const {
    write(two_words(kv_begin, kv_end), heads + uint64_t(run) * step, to);
    if (run + 1 == t.runs) to->kv_head_count = t.last_heads;
  }

 private:
  void write(uint64_t keys_word, uint64_t heads_word, WorkItem* to) const {
    char* const at = reinterpret_cast<char*>(to);
    store_word(rows, at);
    store_word(keys_word, at + 8);
    store_word(place, at + 16);
    store_word(heads_word, at + 24);
  }
};

}  // namespace kvloom::plan
