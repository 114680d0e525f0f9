#include "cli/replay/row_check.h"

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

Tolerance tolerance_of(const AttentionSpec& spec, bool on_gpu) {
  const double row = spec.head_dim_vo >= 64 ? 1.0 : kInfinity;
  if (on_gpu) {  // tensor cores multiply P as bf16, or as f16 where Q or the cache is of a narrower significand
    const bool f16 = spec.q_dtype == DType::f16 || is_fp8(spec.kv_dtype);
    const double out = spec.o_dtype == DType::bf16 ? 1.7e-3 : spec.o_dtype == DType::f16 ? 2.1e-4 : 0.0;
    const bool fine = f16 && spec.o_dtype != DType::bf16;
    return {f16 ? 3.3e-4 + out : 2.6e-3, (fine ? 5e-4 : 4e-3) * row, kInfinity, 4e-6, 1024};
  }
  switch (spec.o_dtype) {
    case DType::bf16:
      return {1.9e-3, 2.5e-3 * row, 2e-6, 2e-6, 1024};
    case DType::f16:
      return {2.4e-4, 3.2e-4 * row, 2e-6, 2e-6, 1024};
    default:
      return {2e-6, 2e-6, 2e-6, 2e-6, 0};
  }
}

std::vector<ref::Row> RowCheck::choose(const PlanView& plan, const AttentionSpec& spec, int32_t rows) {
  split_items_.clear();
  for (int64_t i = 0; i < plan.items.size; ++i) {
    if (plan.items[i].partial_row >= 0 && plan.items[i].row_count > 0) split_items_.push_back(int32_t(i));
  }
  std::vector<ref::Row> chosen;
  for (int32_t i = 0; i < rows; ++i) {
    if (i % 2 == 0 || split_items_.empty()) {
      const int32_t token = int32_t(random_.below(plan.header->total_tokens));
      chosen.push_back({token, int32_t(random_.below(spec.num_qo_heads))});
      continue;
    }
    const WorkItem& item = plan.items[split_items_[size_t(random_.below(int64_t(split_items_.size())))]];
    const int32_t packed = item.row_begin + (random_.below(2) ? item.row_count - 1 : 0);
    const int32_t kv_head = item.kv_head + int32_t(random_.below(item.kv_head_count));
    chosen.push_back({row_of(plan, plan.groups[item.group], packed / spec.group_size()).token,
                      kv_head * spec.group_size() + packed % spec.group_size()});
  }
  return chosen;
}

void RowCheck::add(const AttentionSpec& spec, const std::vector<CheckedRow>& rows) {
  for (const CheckedRow& row : rows) add(spec, row);
}

void RowCheck::add(const AttentionSpec& spec, const CheckedRow& row) {
  double square = 0.0, norm = 0.0, fourth = 0.0, excess = 0.0;
  for (int32_t d = 0; d < spec.head_dim_vo; ++d) {
    const double got = row.o[size_t(d)], wanted = row.ref_o[size_t(d)];
    const bool finite = std::isfinite(got);
    const double off = finite ? std::fabs(got - wanted) : kInfinity;
    const double beyond = finite ? std::max(0.0, off - half_ulp(spec.o_dtype, std::max(std::fabs(got), std::fabs(wanted)))) : kInfinity;
    square += off * off;
    excess += beyond * beyond;
    norm += wanted * wanted;
    fourth += wanted * wanted * wanted * wanted;
  }
  ++rows_;
  error_square_ += square;
  ref_square_ += norm;
  ref_fourth_ += fourth;
  const double unit = norm > 0.0 ? norm : 1.0;
  worst_row_ = std::max(worst_row_, std::sqrt(square / unit));
  worst_excess_ = std::max(worst_excess_, std::sqrt(excess / unit));
  const double lse_off = std::fabs(double(row.lse) - row.ref_lse) / (1.0 + std::fabs(row.ref_lse));
  worst_lse_ = std::max(worst_lse_, std::isfinite(lse_off) ? lse_off : kInfinity);
}

double RowCheck::whole_error() const { return ref_square_ > 0.0 ? std::sqrt(error_square_ / ref_square_) : std::sqrt(error_square_); }

}  // namespace kvloom::replay
