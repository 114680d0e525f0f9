// Policies: who does which tiles, and where key ranges are cut. A policy turns tiles into pieces; emit.h turns pieces into the plan.
// The idea of each is at the head of its file. All are pure integer arithmetic and deterministic: ties are broken by a total order.
#pragma once

#include "kvloom/plan/tiles.h"

#include <utility>
#include <vector>

namespace kvloom::plan {

/// Part of a unit (tile, head run) given to a CTA, or several neighbouring whole runs, all with the same number of heads. Pieces of one
/// CTA come in the order in which it should do them.
struct Piece {
  int32_t tile;
  int32_t run;
  int32_t run_count;
  int32_t kv_begin;
  int32_t kv_end;
  int32_t cta;
};

/// Appends a piece, field by field into its place: a temporary that is copied in wider words than it was written in stalls.
inline void add_piece(std::vector<Piece>& pieces, int32_t tile, int32_t run, int32_t run_count, int64_t kv_begin, int64_t kv_end,
                      int32_t cta) {
  Piece& p = pieces.emplace_back();
  p.tile = tile;
  p.run = run;
  p.run_count = run_count;
  p.kv_begin = int32_t(kv_begin);
  p.kv_end = int32_t(kv_end);
  p.cta = cta;
}

inline bool is_whole(const Tile& t, const Piece& p) { return p.kv_begin == t.kv_begin && p.kv_end == t.kv_end; }

/// Order of the two classes within a CTA.
enum class CtaOrder : uint8_t {
  as_placed = 0,
  alternating = 1,  // odd CTAs do their memory class first, even ones last: at any moment about half of them load and half compute
};

/// Units laid end to end, in tile order with head runs inside, make a line of cost. A place on it: before token kv of a unit.
struct Place {
  int32_t tile;
  int32_t run;
  int32_t kv;
  bool inside;  // of a unit: who continues there pays its fixed cost again; else kv is the tile's kv_begin, the gap before the unit
  int64_t position;

  bool is(const Place& other) const { return tile == other.tile && run == other.run && kv == other.kv; }
};

/// What a policy hands over: pieces, or the cuts of a stream over all tiles.
struct Schedule {
  std::vector<Piece> pieces;
  Span<const Place> cuts;        // [CTAs + 1] or none: CTA c has the line from cuts[c] to cuts[c + 1], in that order
  Policy policy = Policy::none;  // the one that was chosen
  CtaOrder order = CtaOrder::as_placed;
  int32_t chunk_cap = 0;
};

/// A run of equal-cost units or chunks of one tile: what longest-first sorts instead of units.
struct Kind {
  int64_t cost;
  int32_t tile;
  int32_t run_begin, run_end;
  int32_t kv_begin;  // of the first chunk
  int32_t kv_end;    // of the last chunk
  int32_t chunk;     // tokens of every chunk of the kind
};

/// Sort key of a kind: the most expensive first, ties by where it stands.
struct KindOrder {
  int64_t cost;
  int32_t index;  // kinds are made by ascending (tile, head run, chunk)
};

/// Memory that policies keep between steps.
struct PolicyMemory {
  std::vector<Kind> kinds;
  std::vector<KindOrder> order;
  std::vector<uint64_t> queue;  // load << 16 | CTA
  std::vector<int64_t> loads;   // of CTAs
  std::vector<int64_t> shares;  // of CTAs: what a stream may pour into each
  std::vector<int64_t> sorted;
  std::vector<Place> cuts;
  std::vector<Piece> candidate;
  std::vector<int64_t> candidate_loads;
  std::vector<int32_t> bucket;  // of lists and KV heads
};

/// Tiles of which class: 0, 1, or both.
struct ClassFilter {
  bool take[2] = {true, true};
  bool operator()(const Tile& t) const { return take[t.kernel_class] && t.runs > 0; }
};

/// What a stream needs to know besides the tiles.
struct StreamRules {
  const KernelClass* classes;
  int64_t snap[2];            // of a class: a cut moves up to this far to fall between units
  int32_t split_tokens = 0;   // > 0: cuts at multiples of this instead of the class's tile_kv
  int64_t max_partials = -1;  // split_tokens: partials (of one head) that cuts may cost in all; -1: no bound
};

/// Cuts the line of the tiles that the filter takes: CTA c gets about shares[c]. Cuts fall on multiples of tile_kv, or between units where
/// one is within the snap. Where shares are equal, no CTA gets more than its share plus the cost of an item of one KV tile. `cuts` comes
/// back as Schedule has it.
void pour(const Work& work, ClassFilter filter, const StreamRules& rules, const std::vector<int64_t>& shares, std::vector<Place>& cuts);
/// Appends the pieces between cuts and adds to `loads`.
void append_pieces(const Work& work, ClassFilter filter, const std::vector<Place>& cuts, std::vector<Piece>& pieces,
                   std::vector<int64_t>& loads);
/// All tiles as one stream with equal shares.
void schedule_cuts(const Work& work, const StreamRules& rules, int32_t num_ctas, PolicyMemory& memory, Schedule& out);
/// shares[c] so that they add up to `total`, equal but for rounding.
void equal_shares(int64_t total, int32_t num_ctas, std::vector<int64_t>& shares);

/// Gives each unit or chunk of memory.kinds, by (cost descending, tile, head run, chunk), to the CTA with the least load so far, ties by
/// CTA. `loads` in and out. Runs of a tile cost the same, so which of them goes where is free: `turning` begins each tile with another one, so that
/// every CTA gets some of each; else CTAs that are numbered alike have the same ones.
enum class RunOrder { same, turning };
void longest_first(PolicyMemory& memory, std::vector<int64_t>& loads, std::vector<Piece>& pieces, RunOrder order = RunOrder::same);
/// True if longest_first() would leave no CTA with more than `bound`: in half of its time, since nothing is written.
bool longest_first_fits(PolicyMemory& memory, const std::vector<int64_t>& loads, int64_t bound);
/// Orders pieces by list (group) and head run, and as they were within those.
void keys_together(const Work& work, PolicyMemory& memory, std::vector<Piece>& pieces);
/// Kinds of whole units of the tiles that the filter takes.
void whole_kinds(const Work& work, ClassFilter filter, std::vector<Kind>& kinds);

/// Appends pieces of the whole units of the tiles that the filter takes, those of one list and KV head at about the same time, and adds to `loads`. False:
/// lists have too few tiles for that, and nothing was done.
bool place_by_list(const Work& work, ClassFilter filter, PolicyMemory& memory, std::vector<int64_t>& loads, std::vector<Piece>& pieces);

/// A CTA and its load in one word, which sorts by load: load << kCtaBits | CTA.
inline constexpr int kCtaBits = 16;
inline constexpr uint64_t kCtaMask = (uint64_t(1) << kCtaBits) - 1;

int64_t max_load(const std::vector<int64_t>& loads);
/// Cost of an item of one KV tile with every head of a run, the larger of the classes in use: the grain of balance.
int64_t grain(const Work& work, const SchedulerConfig& config);
/// The load up to which an assignment that cuts nothing is preferred to a stream: the mean plus keep_whole_margin or the grain, whichever
/// is less.
int64_t whole_bound(const Work& work, const SchedulerConfig& config);

void schedule_none(const Work& work, const SchedulerConfig& config, PolicyMemory& memory, Schedule& out);
void schedule_heap(const Work& work, const SchedulerConfig& config, PolicyMemory& memory, Schedule& out);
/// The same with cuts at multiples of grid[class], and where that is preferred to a stream: where few units are cut, and it comes out balanced; else false (and
/// no pieces).
bool place_heap(const Work& work, const SchedulerConfig& config, const int64_t (&grid)[2], PolicyMemory& memory, Schedule& out);
/// ... and where no CTA has more than `bound`.
bool heap_within(int64_t bound, const Work& work, const SchedulerConfig& config, const int64_t (&grid)[2], PolicyMemory& memory, Schedule& out);
/// The two ways of stream. Whole units so that no CTA has more than whole_bound(), or false (and no pieces), as it mostly does; and equal shares.
bool place_whole(const Work& work, const SchedulerConfig& config, PolicyMemory& memory, Schedule& out);
void cut_stream(const Work& work, const SchedulerConfig& config, PolicyMemory& memory, Schedule& out);
void schedule_stream(const Work& work, const SchedulerConfig& config, PolicyMemory& memory, Schedule& out);
void schedule_fill(const Work& work, const SchedulerConfig& config, PolicyMemory& memory, Schedule& out);
/// The compute class first, whole or cut, and the memory class poured on top.
void fill_around(const Work& work, const SchedulerConfig& config, const StreamRules& memory_rules, bool may_cut_compute, PolicyMemory& memory, Schedule& out);
/// `max_partials`: of one chunk and one head, what the layout has room for.
void schedule_fixed_split(const Work& work, const SchedulerConfig& config, int64_t max_partials, PolicyMemory& memory, Schedule& out);
void schedule_automatic(const Work& work, const SchedulerConfig& config, PolicyMemory& memory, Schedule& out);

}  // namespace kvloom::plan
