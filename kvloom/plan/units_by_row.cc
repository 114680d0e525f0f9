// Merge units where a row's partials do not follow from its tile alone: rows of several levels, or tiles of gathered tokens. Rows are
// walked in output order, KV head by KV head; a unit grows while the next row lies in the same items, one row further on in each of them.
#include "kvloom/base/math.h"
#include "kvloom/plan/emit.h"

namespace kvloom::plan {
namespace {

class RowUnits {
 public:
  RowUnits(const TileRules& rules, const GroupList& list, const Work& work, const PlanLayout& layout, EmitMemory& memory, PlanSections& out)
      : rules_(rules),
        list_(list),
        work_(work),
        layout_(layout),
        memory_(memory),
        now_(memory.row_sources),
        open_(memory.open_sources),
        out_(out) {}

  void run(int32_t total_tokens);

 private:
  void slice_heads();
  void index_rows(int32_t total_tokens, int32_t head);
  int32_t index_row(int32_t token, int32_t row, int32_t head);
  void gather(const RowTile* tiles, const RowTile* end, int32_t head);
  bool extends(int32_t rows_before) const;
  void open_unit(int32_t row, int32_t row_count, int32_t head, int32_t heads);
  void finish_touches();

  const TileRules& rules_;
  const GroupList& list_;
  const Work& work_;
  const PlanLayout& layout_;
  EmitMemory& memory_;
  std::vector<RowSource>& now_;
  std::vector<RowSource>& open_;
  PlanSections& out_;
  bool single_ = false;  // some groups are of one KV head: heads have tiles of their own
  int32_t num_units_ = 0;
  int32_t num_entries_ = 0;
};

/// Heads that lie in one run of every tile: the classes in use may take different numbers of heads together.
void RowUnits::slice_heads() {
  memory_.slice.clear();
  single_ = false;
  int32_t step[2] = {0, 0};
  for (const Tile& t : work_.tiles) {
    if (t.runs == 0) continue;
    single_ |= list_.groups[t.group].kv_head >= 0;
    step[t.kernel_class] = t.kv_head_count;
  }
  for (int32_t h = 0; h < rules_.num_kv_heads; ++h) {
    const bool starts = single_ || (step[0] > 0 && h % step[0] == 0) || (step[1] > 0 && h % step[1] == 0);
    if (starts || h == 0) memory_.slice.push_back(h);
  }
  memory_.slice.push_back(rules_.num_kv_heads);
}

/// Tiles of packed row `row` (within the token), of all heads or of `head`. Returns how many rows from there on share them.
int32_t RowUnits::index_row(int32_t token, int32_t row, int32_t head) {
  int32_t rows = rules_.group_size - row;
  for (int32_t i = memory_.cover_begin[token]; i < memory_.cover_begin[token + 1]; ++i) {
    const Cover& c = memory_.covers[i];
    const RowGroup& g = list_.groups[c.group];
    if (single_ && g.kv_head >= 0 && g.kv_head != head) continue;
    const int32_t packed = c.index * rules_.group_size + row;
    const Tile& t = work_.tiles[tile_of(rules_, work_, g, c.group, packed)];
    rows = min_of(rows, t.row_begin + t.row_count - packed);
    if (t.runs > 0) memory_.row_tiles.push_back({&t, packed - t.row_begin});
  }
  return rows;
}

/// Rows that share their tiles, in output order; the same for all heads, where no groups are of one alone.
void RowUnits::index_rows(int32_t total_tokens, int32_t head) {
  memory_.row_runs.clear();
  memory_.row_tiles.clear();
  for (int32_t token = 0; token < total_tokens; ++token) {
    for (int32_t row = 0; row < rules_.group_size;) {
      const int32_t rows = index_row(token, row, head);
      memory_.row_runs.push_back({token * rules_.group_size + row, rows, int32_t(memory_.row_tiles.size())});
      row += rows;
    }
  }
}

/// Where rows of these tiles lie in partial units of `head`.
void RowUnits::gather(const RowTile* tile, const RowTile* end, int32_t head) {
  now_.clear();
  for (; tile != end; ++tile) {
    const Tile& t = *tile->tile;
    const int32_t unit = t.first_unit + (t.kv_head_count == 1 ? head - t.kv_head : (head - t.kv_head) / t.kv_head_count);
    if (memory_.unit_partial[unit + 1] == memory_.unit_partial[unit]) continue;  // final: written by its only item
    now_.push_back({unit, tile->offset});
  }
}

bool RowUnits::extends(int32_t rows_before) const {
  if (rows_before == 0 || now_.size() != open_.size()) return false;
  for (size_t i = 0; i < now_.size(); ++i) {
    if (now_[i].unit != open_[i].unit || now_[i].offset != open_[i].offset + rows_before) return false;
  }
  return true;
}

void RowUnits::open_unit(int32_t row, int32_t row_count, int32_t head, int32_t heads) {
  check_room("merge units", int64_t(num_units_) + 1, layout_.max_units);
  MergeUnit& u = out_.units[num_units_];
  u = {row, row_count, head, heads, num_entries_, 0, 0};
  for (const RowSource& s : now_) {
    for (int32_t k = memory_.unit_partial[s.unit]; k < memory_.unit_partial[s.unit + 1]; ++k) {
      WorkItem& item = out_.items[memory_.partials[k].item];
      const int32_t parts = item_partials(*out_.header, item);
      check_room("merge entries", int64_t(num_entries_) + parts, layout_.max_entries);
      const int32_t first = item.partial_row + (head - item.kv_head) * item.row_count + s.offset;
      for (int32_t i = 0; i < parts; ++i) {
        out_.entries[num_entries_] = {first + i * item.row_count * item.kv_head_count, item.row_count};
        memory_.entry_item.push_back(memory_.partials[k].item);
        ++num_entries_;
      }
      ++item.touch_count;
      ++u.arrivals;
    }
  }
  u.entry_count = num_entries_ - u.entry_begin;
  ++num_units_;
  open_ = now_;
}

void RowUnits::finish_touches() {
  PlanHeader& h = *out_.header;
  int64_t touches = 0;
  for (int32_t i = 0; i < h.num_items; ++i) {
    out_.items[i].touch_begin = out_.items[i].touch_count > 0 ? int32_t(touches) : 0;
    touches += out_.items[i].touch_count;
  }
  check_room("touches", touches, layout_.max_touches);
  for (int32_t u = 0; u < num_units_; ++u) {
    const MergeUnit& unit = out_.units[u];
    for (int32_t e = unit.entry_begin; e < unit.entry_begin + unit.entry_count; ++e) {
      const int32_t item = memory_.entry_item[e];
      if (e == unit.entry_begin || item != memory_.entry_item[e - 1]) out_.touches[out_.items[item].touch_begin++] = u;
    }
  }
  for (int32_t i = 0; i < h.num_items; ++i) {
    if (out_.items[i].touch_count > 0) out_.items[i].touch_begin -= out_.items[i].touch_count;
  }
  h.num_units = num_units_;
  h.num_entries = num_entries_;
  h.num_touches = int32_t(touches);
}

void RowUnits::run(int32_t total_tokens) {
  slice_heads();
  memory_.entry_item.clear();
  for (size_t s = 0; s + 1 < memory_.slice.size(); ++s) {
    const int32_t head = memory_.slice[s];
    const int32_t heads = memory_.slice[s + 1] - head;
    if (s == 0 || single_) index_rows(total_tokens, head);
    int32_t open_rows = 0;  // of the unit that may grow; 0: none
    const RowTile* tile = memory_.row_tiles.data();
    for (const RowRun& run : memory_.row_runs) {
      const RowTile* const end = memory_.row_tiles.data() + run.tiles_end;
      gather(tile, end, head);
      tile = end;
      if (now_.empty()) {
        open_rows = 0;
      } else if (extends(open_rows)) {
        out_.units[num_units_ - 1].row_count += run.rows;
        open_rows += run.rows;
      } else {
        open_unit(run.row, run.rows, head, heads);
        open_rows = run.rows;
      }
    }
  }
  finish_touches();
}

}  // namespace

void emit_units_by_row(const TileRules& rules, const GroupList& list, const Work& work, int32_t total_tokens, const PlanLayout& layout,
                       EmitMemory& memory, PlanSections out) {
  RowUnits(rules, list, work, layout, memory, out).run(total_tokens);
}

}  // namespace kvloom::plan
