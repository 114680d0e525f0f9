// Cases of a user's variant: random ones bent to it, and values for its parameters.
#pragma once

#include "cli/check/case.h"
#include "cli/check/guarded_buffer.h"

#include <deque>
#include <vector>

namespace kvloom::check {

/// Gives `c` the variant `user`, on top of what it has; what can't stand beside it goes.
void bend_for_user(Case& c, const UserVariant* user);

/// Values for the parameters of a case's variant, drawn from the ranges that its text declares. Arrays end at a guard page.
class CaseParams {
 public:
  /// `positions`: one more than the largest position of the case: how long dimensions of `any` length are.
  void make(const Case& c, int64_t positions);
  Span<const VariantParam> params() const { return {list_.data(), int64_t(list_.size())}; }
  UserParams bound(const Case& c) const;

 private:
  std::deque<GuardedBuffer> arrays_;
  std::vector<VariantParam> list_;
};

/// Elements of an array.
int64_t elements_of(const VariantParam& p);

}  // namespace kvloom::check
