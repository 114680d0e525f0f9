// A batch with its tensors, a plan written by hand (tiles x KV splits, dealt to CTAs in turn), and the comparison with REF. Memory that
// attention has no business with is NaN: pool slots without a token, gaps between strided rows, outputs before the run.
#pragma once

#include "kvloom/contract/batch.h"
#include "kvloom/contract/params.h"
#include "kvloom/contract/plan_format.h"
#include "kvloom/contract/spec.h"
#include "kvloom/cpu/attend.h"

#include <cstdint>
#include <random>
#include <string>
#include <vector>

namespace kvloom::cpu::test {

struct Lengths {
  int32_t q;
  int32_t kv;
};

/// A random batch of `spec` and its tensors. Change any member before make().
struct AttendCase {
  AttentionSpec spec;
  std::vector<Lengths> requests;
  bool heads_outside_tokens = false;  // HND pages: a head's tokens lie together
  bool page_ids_64 = false;
  float q_scale_of_data = 1.0f;  // standard deviation of q
  float slope = 0.1f;
  uint32_t seed = 1;

  std::vector<int32_t> qo_indptr, kv_len, q_pos, prefix, page_pos, mask_kv_len, pages32;
  std::vector<int64_t> list_indptr, pages64, mask_indptr;
  std::vector<uint8_t> q, k, v, mask;
  std::vector<float> slopes, sinks, k_scales, v_scales;
  Batch batch;
  AttendParams params;

  void make();
  int64_t tokens() const { return qo_indptr.back(); }
};

/// How a case is cut into work.
struct Cut {
  int32_t tile_rows = 48;
  int32_t splits = 1;  // KV ranges a tile is cut into
  int32_t heads = 1;   // KV heads an item
  int32_t kernel_class = 1;
  int32_t ctas = 5;
  int32_t split_tokens = 0;  // > 0: fixed_split, items fold (or, with `chunked`, write) chunks of this many tokens
  bool chunked = false;
};

/// o and lse as the run left them, o in the spec's type with gaps between rows.
struct Output {
  std::vector<uint8_t> o;
  std::vector<float> lse;
  bool operator==(const Output&) const = default;
};

/// A plan buffer of `c` under `cut`.
std::vector<uint64_t> write_plan(const AttendCase& c, const Cut& cut);
Output run(const AttendCase& c, const Cut& cut, Target target, int threads);

struct Errors {
  double whole;       // ||o - ref|| / ||ref||
  double worst_row;   // of the same per row
  double lse;         // largest |lse - ref|, relative to max(1, |ref|)
  std::string fault;  // a NaN, an empty row that is not (0, -inf), a byte written between rows; "" if none
};
Errors compare_with_ref(const AttendCase& c, const Output& out);

std::vector<Target> available_targets();

}  // namespace kvloom::cpu::test
