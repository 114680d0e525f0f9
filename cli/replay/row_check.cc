#include "cli/replay/row_check.h"

#include "kvloom/ref/ref.h"

#include <cmath>
#include <limits>

namespace kvloom::replay {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// Half a unit in the last place of `t` at magnitude |x|: what rounding the output may cost an element.
double half_ulp(DType t, double x) {
  const int significand = t == DType::bf16 ? 8 : t == DType::f16 ? 11 : 24;
  const int least = t == DType::f16 ? -14 : -126;
  const int exponent = x == 0.0 ? least : std::max(least, std::ilogb(x));
  return std::ldexp(0.5, exponent - significand + 1);
}

}  // namespace

Tolerance tolerance_of(const AttentionSpec& spec) {
  const double row = spec.head_dim_vo >= 64 ? 1.0 : kInfinity;
  switch (spec.o_dtype) {
    case DType::bf16:
      return {1.9e-3, 2.5e-3 * row, 2e-6, 2e-6, 1024};
    case DType::f16:
      return {2.4e-4, 3.2e-4 * row, 2e-6, 2e-6, 1024};
    default:
      return {2e-6, 2e-6, 2e-6, 2e-6, 0};
  }
}

void RowCheck::choose(const StepRunner& runner, int32_t kind, int32_t rows) {
  const PlanView plan = runner.plan_view(kind);
  const AttentionSpec& spec = runner.spec(kind);
  split_items_.clear();
  for (int64_t i = 0; i < plan.items.size; ++i) {
    if (plan.items[i].partial_row >= 0 && plan.items[i].row_count > 0) split_items_.push_back(int32_t(i));
  }
  tokens_.clear();
  heads_.clear();
  for (int32_t i = 0; i < rows; ++i) {
    if (i % 2 == 0 || split_items_.empty()) {
      tokens_.push_back(int32_t(random_.below(plan.header->total_tokens)));
      heads_.push_back(int32_t(random_.below(spec.num_qo_heads)));
      continue;
    }
    const WorkItem& item = plan.items[split_items_[size_t(random_.below(int64_t(split_items_.size())))]];
    const int32_t packed = item.row_begin + (random_.below(2) ? item.row_count - 1 : 0);
    const int32_t kv_head = item.kv_head + int32_t(random_.below(item.kv_head_count));
    tokens_.push_back(row_of(plan, plan.groups[item.group], packed / spec.group_size()).token);
    heads_.push_back(kv_head * spec.group_size() + packed % spec.group_size());
  }
}

void RowCheck::compare(const StepRunner& runner, const AttentionSpec& spec, int32_t token, int32_t head, const double* o, double lse) {
  runner.read_output(token, head, out_.data());
  double square = 0.0, norm = 0.0, fourth = 0.0, excess = 0.0;
  for (int32_t d = 0; d < spec.head_dim_vo; ++d) {
    const double got = out_[size_t(d)];
    const bool finite = std::isfinite(got);
    const double off = finite ? std::fabs(got - o[d]) : kInfinity;
    const double beyond = finite ? std::max(0.0, off - half_ulp(spec.o_dtype, std::max(std::fabs(got), std::fabs(o[d])))) : kInfinity;
    square += off * off;
    excess += beyond * beyond;
    norm += o[d] * o[d];
    fourth += o[d] * o[d] * o[d] * o[d];
  }
  ++rows_;
  error_square_ += square;
  ref_square_ += norm;
  ref_fourth_ += fourth;
  const double unit = norm > 0.0 ? norm : 1.0;
  worst_row_ = std::max(worst_row_, std::sqrt(square / unit));
  worst_excess_ = std::max(worst_excess_, std::sqrt(excess / unit));
  const double lse_off = std::fabs(double(runner.read_lse(token, head)) - lse) / (1.0 + std::fabs(lse));
  worst_lse_ = std::max(worst_lse_, std::isfinite(lse_off) ? lse_off : kInfinity);
}

void RowCheck::check(const StepRunner& runner, int32_t layer, int32_t rows) {
  const int32_t kind = runner.kind_of(layer);
  const AttentionSpec& spec = runner.spec(kind);
  choose(runner, kind, rows);
  std::vector<ref::Row> wanted;
  for (size_t i = 0; i < tokens_.size(); ++i) wanted.push_back({tokens_[i], heads_[i]});
  ref_o_.resize(wanted.size() * size_t(spec.head_dim_vo));
  ref_lse_.resize(wanted.size());
  out_.resize(size_t(spec.head_dim_vo));
  ref::attend_rows(spec, runner.batch(), runner.params(layer), {wanted.data(), int64_t(wanted.size())}, ref_o_.data(), ref_lse_.data());
  for (size_t i = 0; i < wanted.size(); ++i) {
    compare(runner, spec, tokens_[i], heads_[i], ref_o_.data() + i * size_t(spec.head_dim_vo), ref_lse_[i]);
  }
}

double RowCheck::whole_error() const { return ref_square_ > 0.0 ? std::sqrt(error_square_ / ref_square_) : std::sqrt(error_square_); }

}  // namespace kvloom::replay
