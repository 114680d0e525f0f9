// Whole units to the CTA that has least, longest first (plan/longest_first.cc): batch after batch. As many of the next units as go, one each, to the
// least loaded CTAs in turn are given at once: unit i goes to the i-th of them unless one that has just grown has less.
#pragma once

#include "kvloom/device/plan/emit.h"

namespace kvloom::device_plan {

inline constexpr int kKindBits = 12, kCtaBits = 16;
static_assert(kMaxWhole <= 1 << kKindBits && plan::kMaxPlannedCtas <= 1 << kCtaBits);

/// Units of a tile with the same number of heads: all, or all but a last run that has fewer, which is a kind by itself.
struct Kind {
  int32_t tile;
  int32_t first_run;
  int32_t units;
};
template <class Step>
KVLOOM_HD Kind kind_at(const Step& s, bool two, int32_t index) {
  const int32_t tile = two ? index >> 1 : index;
  const plan::HeadRuns& r = s.runs(s.class_of(s.tiles[tile]));
  const bool narrow = r.last_heads != r.heads;
  const int32_t full = narrow ? r.runs - 1 : r.runs;
  return two && (index & 1) ? Kind{tile, full, r.runs - full} : Kind{tile, 0, full};
}

/// The kinds of a step, dearest first, ties as they stand on the line.
struct Kinds {
  int32_t count;
  bool two;  // a tile

  KVLOOM_HD static int32_t index_of(uint64_t key) { return int32_t(key & ((1u << kKindBits) - 1)); }
  KVLOOM_HD static int64_t cost_of(uint64_t key) { return plan::kMaxStepCost - int64_t(key >> kKindBits); }
  KVLOOM_HD int32_t of_rank(const WholeMemory& m, int32_t rank) const {
    return last_of(count, [&](int32_t k) { return m.first_rank[k] <= rank; });
  }
};

template <class Block, class Step>
KVLOOM_HD Kinds sort_kinds(Block& block, Step& s, const Totals& totals) {
  WholeMemory& m = s.memory.whole;
  bool two = false;
  for (int c = 0; c < 2; ++c) two |= totals.class_units[c] > 0 && s.runs(c).last_heads != s.runs(c).heads;
  const Kinds kinds{totals.tiles << int32_t(two), two};
  block.each(kinds.count, [&](int32_t i) {
    const Kind k = kind_at(s, two, i);
    const int64_t cost = k.units > 0 ? s.run_cost(s.tiles[k.tile], k.first_run).unit : 0;
    m.kind[i] = uint64_t(plan::kMaxStepCost - cost) << kKindBits | uint64_t(i);
  });
  block.sort(m.kind, kinds.count);
  block.template scan<int32_t>(
      kinds.count, [&](int32_t k, int32_t&) { return Sum::of(kind_at(s, two, Kinds::index_of(m.kind[k])).units, 0, 0); },
      [&](int32_t k, int32_t, const Sum& before) { m.first_rank[k] = before.first(); });
  return kinds;
}

/// Gives ranks [given, ...) one each to the least loaded, as many as can be told at once. Returns how many; 0: some CTA has more than `bound`.
template <class Block, class Step>
KVLOOM_HD int32_t give_batch(Block& block, Step& s, const Totals& totals, const Kinds& kinds, int32_t given, int64_t bound) {
  WholeMemory& m = s.memory.whole;
  const int32_t ctas = s.num_ctas(), n = min_of(ctas, totals.units - given);
  uint64_t most[1] = {0};  // kNone - the first that one which has grown comes before
  const auto grown = [&](int32_t i) { return m.load[i] + (uint64_t(Kinds::cost_of(m.kind[kinds.of_rank(m, given + i)])) << kCtaBits); };
  block.each(n, [&](int32_t i) {
    const uint64_t load = grown(i);
    most[0] = max_of(most[0], uint64_t(kNone - (i + 1 + last_of(n - i, [&](int32_t j) { return j == 0 || m.load[i + j] < load; }))));
  });
  block.most(most);
  const int32_t batch = int32_t(kNone - most[0]);
  bool too_much = false;
  block.template two_steps<uint64_t>(
      batch,
      [&](int32_t i, uint64_t& load) {
        load = grown(i);
        too_much |= int64_t(load >> kCtaBits) > bound;
      },
      [&](int32_t i, const uint64_t& load) {
        const int32_t cta = int32_t(load & ((1u << kCtaBits) - 1));
        m.cta[given + i] = uint16_t(cta);
        m.place[given + i] = uint16_t(m.units[cta]++);
        m.load[i] = load;
      });
  return block.any(too_much) ? 0 : batch;
}

/// Units that cost nothing go to one CTA all.
template <class Block, class Step>
KVLOOM_HD void give_free(Block& block, Step& s, const Totals& totals, int32_t given) {
  WholeMemory& m = s.memory.whole;
  const int32_t cta = int32_t(m.load[0] & ((1u << kCtaBits) - 1)), before = m.units[cta];
  block.each(totals.units - given, [&](int32_t i) {
    m.cta[given + i] = uint16_t(cta);
    m.place[given + i] = uint16_t(before + i);
  });
  block.each(1, [&](int32_t) { m.units[cta] = before + totals.units - given; });
}

/// False: some CTA would have more than `bound`.
template <class Block, class Step>
KVLOOM_HD bool give_units(Block& block, Step& s, const Totals& totals, const Kinds& kinds, int64_t bound) {
  WholeMemory& m = s.memory.whole;
  const int32_t ctas = s.num_ctas();
  block.each(ctas, [&](int32_t c) {
    m.load[c] = uint64_t(c);
    m.units[c] = 0;
  });
  for (int32_t given = 0; given < totals.units;) {
    if (Kinds::cost_of(m.kind[kinds.of_rank(m, given)]) == 0) {
      give_free(block, s, totals, given);
      break;
    }
    const int32_t batch = give_batch(block, s, totals, kinds, given, bound);
    if (batch == 0) return false;
    given += batch;
    if (given < totals.units) block.sort(m.load, ctas);
  }
  return true;
}

/// The plan of an assignment that cuts nothing, if there is one within `bound`.
template <class Block, class Step>
KVLOOM_HD bool emit_longest_first(Block& block, Step& s, const Totals& totals, int64_t bound, Counts& counts) {
  WholeMemory& m = s.memory.whole;
  const Kinds kinds = sort_kinds(block, s, totals);
  if (!give_units(block, s, totals, kinds, bound)) return false;
  uint64_t most[1] = {0};
  const int32_t ctas = s.num_ctas();
  block.template scan<int32_t>(
      ctas,
      [&](int32_t c, int32_t& own) {
        most[0] = max_of(most[0], m.load[c] >> kCtaBits);
        return Sum::of(own = m.units[c], 0, 0);
      },
      [&](int32_t c, int32_t own, const Sum& before) {
        m.first_item[c] = before.first();
        if (!block.writes(c)) return;
        s.cta_indptr()[c] = before.first();
        if (c == ctas - 1) s.cta_indptr()[ctas] = before.first() + own;
      });
  block.most(most);
  counts = {totals.units, 0, 0, 0, totals.cost, int64_t(most[0])};
  block.each_out(totals.units, [&](int32_t rank) {
    const int32_t k = kinds.of_rank(m, rank);
    const Kind kind = kind_at(s, kinds.two, Kinds::index_of(m.kind[k]));
    block.put(&s.items()[m.first_item[m.cta[rank]] + m.place[rank]], s.whole_item(s.tiles[kind.tile], kind.first_run + rank - m.first_rank[k]));
  });
  return true;
}

}  // namespace kvloom::device_plan
