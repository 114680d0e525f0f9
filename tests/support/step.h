// One step of attention through the public interface, and REF's answer to it.
#pragma once

#include "kvloom/api/engine.h"
#include "tests/support/tensors.h"

#include <string>

namespace kvloom::test {

struct Request {
  int32_t q_len;
  int32_t kv_len;
};

/// Tensors and tables of a batch in the plainest form: CSR pages in a shuffled order (ragged: consecutive tokens), NHD, everything random,
/// page slots that hold no token NaN. Change `spec` before make(), anything after it.
struct Step {
  AttentionSpec spec;
  std::vector<Request> requests;
  uint32_t seed = 1;
  int32_t spare_pages = 3;  // that nobody uses: NaN

  std::vector<int32_t> qo_indptr, kv_len, pages;
  std::vector<int64_t> list_indptr, mask_indptr;
  std::vector<float> slopes, sinks;
  std::vector<uint8_t> mask;
  Array q, k, v, o, lse;
  Batch batch;
  RunTensors tensors;

  void make();
  /// Exactly this batch.
  Capacity capacity() const;
  /// NaN into O and LSE.
  void poison();
};

/// 4 query heads over 2 KV heads of 64 dims, causal, pages of 16.
AttentionSpec small_spec();

/// How far tensors.o and tensors.lse are from REF.
struct Distance {
  double whole = 0.0;              // ||o - ref|| / ||ref||
  double worst_row = 0.0;          // of one row
  double worst_row_floored = 0.0;  // ... over its norm and 0.15 an element: where values cancel, what was added up counts
  double lse = 0.0;                // |lse - ref| / max(1, |ref|), largest
  std::string fault;               // first NaN, or an empty row that is not (0, -inf)
};
Distance distance_to_ref(const Step& step);

/// Expects the outputs of `step` to be right: within the tolerances of its output type.
void expect_right(const Step& step, const std::string& what = "");

}  // namespace kvloom::test
