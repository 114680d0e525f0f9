// What rounding turned Q and K to 16 bits once more moves a row of attention by: tensor cores take nothing wider, and REF rounds nothing.
#pragma once

#include "kvloom/contract/spec.h"

#include <vector>

namespace kvloom::ref {

/// Root mean squares: of the norm of a row's error, and of its LSE's error.
struct Rounding {
  double o = 0.0, lse = 0.0;
};

/// Of one row, key by key. Rounding to the nearest moves element x by d(x), which is anywhere within half a unit in the last place: variance
/// u(x)^2 / 12. A score s_j = q.k_j so moves by sum_d d(q_d) k_jd + q_d d(k_jd), and O, to first order, by sum_j a_j ds_j, a_j = dO/ds_j. All
/// d's are independent of each other, of mean 0, so
///   E ||dO||^2 = sum_d var(q_d) ||sum_j a_j k_jd||^2 + sum_j ||a_j||^2 sum_d q_d^2 var(k_jd)
/// and LSE's is the same of its own derivatives. A kernel may also round another q for some keys (turned further back, to meet keys that are turned
/// less): the first sum is at least what a q for every key makes it, sum_j ||a_j||^2 sum_d var(q_d) k_jd^2.
class TurnedRounding {
 public:
  explicit TurnedRounding(const AttentionSpec& spec);

  /// A row, of turned q [head_dim_qk].
  void start(const double* q);
  /// One of its keys, turned; dO/ds [head_dim_vo] and dLSE/ds, s = q.k.
  void add(const double* k, const double* o_by_s, double lse_by_s);
  Rounding result() const;

 private:
  double variance(double x) const;

  const DType type_;
  const int32_t rotary_, dim_vo_;
  std::vector<double> q_, q_variance_;
  std::vector<double> o_by_q_;             // [rotary dims, head_dim_vo]
  std::vector<double> lse_by_q_;           // [rotary dims]
  double o_of_k_ = 0.0, lse_of_k_ = 0.0;   // variances: of keys' roundings
  double o_apart_ = 0.0, lse_apart_ = 0.0;  // of q's, were it rounded for every key anew
};

}  // namespace kvloom::ref
