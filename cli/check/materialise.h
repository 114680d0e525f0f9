// From a case to memory: tensors, tables and masks as a caller would hold them, and the same step in REF's words. Everything that no row
// keeps is 0xFF (NaN): tails, unused pages, other requests' keys, keys before every window, gaps between rows, outputs.
#pragma once

#include "cli/check/case.h"
#include "cli/check/guarded_buffer.h"
#include "cli/check/page_lists.h"
#include "cli/check/user_case.h"
#include "kvloom/ref/ref.h"

#include <memory>

namespace kvloom::check {

/// Strides and size of K or V, elements.
struct KvStrides {
  int64_t page = 0, token = 0, head = 0;
};

class CaseData {
 public:
  explicit CaseData(const Case& c);
  CaseData(const CaseData&) = delete;
  CaseData& operator=(const CaseData&) = delete;

  const Case& what() const { return case_; }
  const Batch& batch() const { return batch_; }
  const RunTensors& tensors() const { return tensors_; }
  const AttendParams& params() const { return params_; }  // the same tensors, for REF
  Capacity capacity() const;

  /// What a user's slope hook says that its logit hook does not do; "": nothing.
  const std::string& slope_fault() const { return slope_fault_; }

  /// Outputs as nobody should see them: every byte 0xFF.
  void poison_outputs();
  /// "" if nothing but the elements of O and LSE was written since poison_outputs(), else what was.
  std::string stray_write() const;
  /// Elements of O and LSE as they stand, dense: [tokens, heads, dim] and [tokens, heads].
  std::vector<float> read_o() const;
  std::vector<float> read_lse() const;

  /// Values of one's own, from then on: one row of Q; token `j` of list `list` in K or V.
  void set_q(int64_t token, int32_t q_head, const std::vector<float>& row);
  void set_k(int32_t list, int64_t j, int32_t kv_head, const std::vector<float>& row);
  void set_v(int32_t list, int64_t j, int32_t kv_head, const std::vector<float>& row);
  /// What nobody keeps becomes 0 instead of 0xFF: no output may change by a bit.
  void clear_unkept();

  /// How much larger than ordinary the rounding of fp32 is in each (token, head); see compare.h. At least 1. `spread`: of reference().
  std::vector<double> fp32_growth(const std::vector<double>& spread = {}) const;

  /// REF for every (token, head): o [tokens, heads, head_dim_vo], lse [tokens, heads]. `spread`, `rounding` (optional): ref/ref.h.
  void reference(std::vector<double>& o, std::vector<double>& lse, std::vector<double>* spread = nullptr,
                 std::vector<ref::Rounding>* rounding = nullptr) const;

 private:
  void make_tables();
  void make_groups();
  void make_q();
  void make_kv();
  void fill_kv();
  void make_outputs();
  void make_mask();
  void make_per_head();
  void find_kept();
  void free_unseen_pages();
  int64_t slot_of(int32_t list, int64_t j) const;  // page * page_size + offset
  void fill_batch();

  bool in_range(int64_t q_pos, int64_t kv_pos, int64_t prefix) const;
  bool mask_keeps(int32_t request, int64_t q_index, int64_t column) const;
  bool user_keeps(Coord at) const;
  void check_slope(Coord at);
  int64_t positions() const;
  int64_t position(int32_t request, int64_t q_index, int64_t kv_len) const;

  Case case_;
  PageLists lists_;
  PageTable table_;
  Batch batch_;
  RunTensors tensors_;
  AttendParams params_;

  std::vector<int64_t> qo_indptr_;
  std::vector<int64_t> kv_len64_, list_indptr64_, pages64_;
  std::vector<int32_t> qo_indptr32_, list_indptr32_, pages32_;
  std::vector<LevelGroup> groups_;
  std::string slope_fault_;
  std::vector<uint8_t> kept_;  // [pages, page_size, kv heads]: some row keeps the key
  CaseParams user_params_;
  GuardedBuffer q_, k_, v_, o_, lse_, mask_, alibi_, sink_, k_scales_, v_scales_;
  std::vector<int64_t> mask_indptr_;
  std::vector<int32_t> mask_columns_;
};

}  // namespace kvloom::check
