// Sampled rows against REF, all along: every step some query rows are computed again in double precision from the same pages.
#pragma once

#include "cli/replay/random.h"
#include "cli/replay/step_machine.h"

namespace kvloom::replay {

/// What a correct engine stays within (the same bounds as `kvloom check`, whose compare.h gives the reasons). `excess` is the error beyond
/// half a unit in the last place of the output's own type; `lse` is relative to 1 + |lse|.
struct Tolerance {
  double whole = 0.0, row = 0.0, excess = 0.0, lse = 0.0;
  double whole_from = 0.0;  // effective elements from which `whole` binds: fewer do not average the output's rounding out
};
/// Rows of fewer than 64 elements in 16 bits have no `row` bound, for the same reason.
Tolerance tolerance_of(const AttentionSpec& spec, bool on_gpu);

class RowCheck {
 public:
  explicit RowCheck(uint64_t seed) : random_(seed) {}

  /// `rows` >= 1 random rows of a step: the first from anywhere, every second one a first or last row of an item whose keys were split,
  /// where the plan has one.
  std::vector<ref::Row> choose(const PlanView& plan, const AttentionSpec& spec, int32_t rows);
  void add(const AttentionSpec& spec, const std::vector<CheckedRow>& rows);

  int64_t rows() const { return rows_; }
  double whole_error() const;  // sqrt(sum |o - ref|^2 / sum |ref|^2) over all rows checked
  /// (sum ref^2)^2 / sum ref^4: how many elements share the norm. A few large rows (short contexts) count for more than all others.
  double effective_elements() const { return ref_fourth_ > 0.0 ? ref_square_ * ref_square_ / ref_fourth_ : 0.0; }
  double worst_row() const { return worst_row_; }  // the same of one row
  double worst_excess() const { return worst_excess_; }
  double worst_lse() const { return worst_lse_; }

 private:
  void add(const AttentionSpec& spec, const CheckedRow& row);

  Random random_;
  std::vector<int32_t> split_items_;
  int64_t rows_ = 0;
  double error_square_ = 0.0, ref_square_ = 0.0, ref_fourth_ = 0.0;
  double worst_row_ = 0.0, worst_excess_ = 0.0, worst_lse_ = 0.0;
};

}  // namespace kvloom::replay
