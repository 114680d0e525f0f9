// Which of its pieces a CTA does first does not change when it is done, but what the chip reads: pieces of one list and KV head, done by all CTAs
// at about the same time, find each other's keys in the L2 cache. Longest first alone goes through all keys once for every size of tile; and if it gives
// a CTA the same KV head of every tile, as it does where heads divide CTAs, all heads are read all the time (RunOrder).
#include "kvloom/plan/policy.h"

#include <algorithm>

namespace kvloom::plan {

void keys_together(const Work& work, PolicyMemory& memory, std::vector<Piece>& pieces) {
  if (pieces.empty()) return;
  int32_t first = work.tiles[pieces[0].tile].group, last = first, runs = 0;
  for (const Piece& p : pieces) {
    const int32_t group = work.tiles[p.tile].group;
    first = std::min(first, group), last = std::max(last, group), runs = std::max(runs, p.run + 1);
  }
  // Counted, not compared: there may be thousands. By the lesser key first; each pass keeps the order of the one before.
  const auto order_by = [&](int32_t keys, auto key) {
    memory.bucket.assign(size_t(keys) + 1, 0);
    for (const Piece& p : pieces) ++memory.bucket[key(p) + 1];
    for (int32_t i = 0; i < keys; ++i) memory.bucket[i + 1] += memory.bucket[i];
    memory.candidate.resize(pieces.size());
    for (const Piece& p : pieces) memory.candidate[memory.bucket[key(p)]++] = p;
    pieces.swap(memory.candidate);
  };
  order_by(runs, [](const Piece& p) { return size_t(p.run); });
  order_by(last - first + 1, [&](const Piece& p) { return size_t(work.tiles[p.tile].group - first); });
}

}  // namespace kvloom::plan
