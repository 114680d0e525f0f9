#include "cli/check/row_faults.h"

#include "kvloom/support/check.h"

#include <algorithm>
#include <cmath>

namespace kvloom::check {
namespace {

std::string where(const Case& c, int64_t row) {
  const int64_t token = row / c.spec.num_qo_heads;
  int64_t request = 0, first = 0;
  while (request < c.num_requests() && first + c.q_len[request] <= token) first += c.q_len[request++];
  return fmt::format("token {} (request {}, query {}), head {}", token, request, token - first, row % c.spec.num_qo_heads);
}

}  // namespace

void RowFaults::note(int64_t row, const std::string& what, double got, double wanted) {
  if (errors_.fault.empty()) errors_.fault = fmt::format("{}: {}: got {:.6g}, wanted {:.6g}", where(case_, row), what, got, wanted);
}

bool RowFaults::finite(int64_t row, const float* o, const double* ref_o) {
  for (int32_t d = 0; d < case_.spec.head_dim_vo; ++d) {
    if (std::isfinite(o[d])) continue;
    const char* const why =
        std::isfinite(ref_o[d]) ? "never written, or poison that leaked in" : "no number in the reference either: a hook makes it";
    note(row, fmt::format("dim {}: {}", d, why), o[d], ref_o[d]);
    return false;
  }
  return true;
}

void RowFaults::lse(int64_t row, float got, double wanted, double bound) {
  if (std::isnan(got) || std::isinf(wanted) || std::isinf(got)) {
    if (double(got) != wanted) note(row, "lse", got, wanted);
    return;
  }
  const double error = std::fabs(double(got) - wanted) / (1.0 + std::fabs(wanted));
  errors_.worst_lse = std::max(errors_.worst_lse, error);
  if (error > bound) note(row, fmt::format("lse: got {}, wanted {}; error", got, wanted), error, bound);
}

}  // namespace kvloom::check
