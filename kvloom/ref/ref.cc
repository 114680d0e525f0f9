#include "kvloom/ref/ref.h"

#include "kvloom/ref/element.h"
#include "kvloom/ref/rounding.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

namespace kvloom::ref {
namespace {

constexpr double kRounding = 3.6e-7;  // six units of fp32 in the last place: of a score, and of what a hook makes of it
constexpr double kStep = 1e-2;        // to find the derivative of a user's hook, which computes in fp32
constexpr double kInf = std::numeric_limits<double>::infinity();

// Consecutive tokens of one list: [begin, end) count. The token j lies in list entry list_begin + j / page_size.
struct KeyList {
  int64_t list_begin;
  int64_t begin, end;
  int64_t pos0;    // position of token 0 (KvPosition::linear)
  int64_t index0;  // custom mask column of token 0
};

struct QueryToken {
  int32_t request;
  int64_t index;  // within the request
  int64_t pos;
  int64_t prefix;
};

double dot(const double* a, const double* b, int32_t n) {
  double sum[8] = {};
  int32_t i = 0;
  for (; i + 8 <= n; i += 8)
    for (int j = 0; j < 8; ++j) sum[j] += a[i + j] * b[i + j];
  for (; i < n; ++i) sum[0] += a[i] * b[i];
  return ((sum[0] + sum[1]) + (sum[2] + sum[3])) + ((sum[4] + sum[5]) + (sum[6] + sum[7]));
}

class Reference {
 public:
  Reference(const AttentionSpec& spec, const Batch& batch, const AttendParams& params)
      : spec_(spec),
        batch_(batch),
        params_(params),
        variant_(spec.variant),
        user_(spec.variant.user),
        pages_(batch.pages.given() ? batch.pages : params.pages),
        page_size_(spec.storage == Storage::ragged ? 1 : spec.page_size),
        rope_(spec.variant.rope, spec.head_dim_qk),
        turned_(spec),
        q_(spec.head_dim_qk),
        k_(spec.head_dim_qk),
        v_(spec.head_dim_vo),
        o_by_s_(spec.head_dim_vo) {
    if (batch.groups.empty()) return;
    groups_of_token_.resize(batch.qo_indptr[batch.num_requests]);
    for (int64_t g = 0; g < batch.groups.size; ++g)
      for (const int32_t token : batch.groups[g].tokens) groups_of_token_[token].push_back(g);
  }

  void attend(Row row, double* o, double& lse, Rounding* rounding) {
    wants_rounding_ = rounding != nullptr && variant_.rope.mode != RopeMode::none;
    kv_head_ = row.q_head / spec_.group_size();
    find_query(row);
    find_lists(row);
    load_row(params_.q, spec_.q_dtype, row.token * params_.q_token + row.q_head * params_.q_head, spec_.head_dim_qk, q_.data());
    rope_.rotate(int32_t(query_.pos), q_.data());
    score(row.q_head);
    combine(row.q_head, o, lse);
    if (wants_rounding_) *rounding = turned_rounding(row.q_head, o, lse);
    if (user_ && user_->finish && !params_.bare_state) finish(row.q_head, o, lse);
  }
  // Of a weight relative to the row's largest: an absolute error of a logit is a relative one of its weight.
  double spread() const { return user_ && user_->weight && largest_ > 0.0 ? spread_ / largest_ : spread_; }

 private:
  struct Kept {
    int64_t k_offset, v_offset;  // elements from params.kv.k and .v
    int32_t pos;
    double logit;  // a user's weight, where it has that hook
    double by_score;  // its derivative by q.k
  };

  // kv_len of the row's own list; with a list for every KV head there are several.
  int64_t kv_len() const {
    const int64_t list = batch_.lists_per_kv_head ? int64_t(query_.request) * spec_.num_kv_heads + kv_head_ : query_.request;
    return batch_.kv_len.given() ? batch_.kv_len[list] : 0;
  }

  void find_query(Row row) {
    int32_t low = 0, high = batch_.num_requests;  // the last request whose first row is <= token
    while (high - low > 1) {
      const int32_t middle = low + (high - low) / 2;
      (batch_.qo_indptr[middle] <= row.token ? low : high) = middle;
    }
    query_.request = low;
    const int64_t first = batch_.qo_indptr[low], q_len = batch_.qo_indptr[low + 1] - first;
    query_.index = row.token - first;
    const int64_t pos0 = batch_.q_pos0 ? int64_t(batch_.q_pos0[low]) : kv_len() - q_len;
    query_.pos = batch_.q_pos ? int64_t(batch_.q_pos[row.token]) : pos0 + query_.index;
    query_.prefix = batch_.prefix ? batch_.prefix[low] : 0;
  }

  void find_lists(Row row) {
    lists_.clear();
    if (!batch_.groups.empty()) {
      for (const int64_t i : groups_of_token_[row.token]) {
        const LevelGroup& g = batch_.groups[i];
        if (g.kv_head >= 0 && g.kv_head != kv_head_) continue;
        lists_.push_back({g.list_begin, g.kv_begin, g.kv_end, g.kv_pos0, g.kv_index0});
      }
      return;
    }
    const int64_t list = batch_.lists_per_kv_head ? int64_t(query_.request) * spec_.num_kv_heads + kv_head_ : query_.request;
    lists_.push_back({batch_.table_stride > 0 ? list * batch_.table_stride : batch_.list_indptr[list], 0, kv_len(), 0, 0});
  }

  Coord coord(int32_t q_head, int64_t kv_pos, int64_t kv_index) const {
    return {query_.request, int32_t(query_.index), int32_t(query_.pos), int32_t(kv_index), int32_t(kv_pos), q_head, kv_head_};
  }

  bool keeps(int32_t q_head, int64_t kv_pos, int64_t kv_index) const {
    if (!in_range(variant_.range, kv_pos) || (user_ && !in_range(user_->range, kv_pos))) return false;
    if (user_ && user_->keep && !user_->keep(coord(q_head, kv_pos, kv_index), params_.variant)) return false;
    if (!variant_.custom_mask) return true;
    const VariantParams& p = params_.variant;
    const int64_t columns = p.mask_kv_len ? int64_t(p.mask_kv_len[query_.request]) : kv_len();
    const int64_t bit = query_.index * columns + kv_index;
    return p.mask[p.mask_indptr[query_.request] + bit / 8] >> (bit % 8) & 1;
  }

  bool in_range(const KeyRange& r, int64_t kv_pos) const {
    if (kv_pos < query_.prefix) return true;
    const int64_t distance = query_.pos - kv_pos;  // > 0: the key is in the past
    return (!r.causal || distance >= 0) && (r.left < 0 || distance <= r.left) && (r.right < 0 || -distance <= r.right);
  }

  // A user's logit or weight of a score, and how far it moves with the rounding of the score and its own; `by_score` is multiplied by its derivative.
  double hooked(double s, const Coord& c, double& by_score) {
    const VariantParams& p = params_.variant;
    if (!user_ || !(user_->logit || user_->weight)) return s;
    const auto value = [&](double x) {
      float y = float(x);
      if (user_->logit) y = user_->logit(y, c, p);
      return user_->weight ? double(user_->weight(y, p)) : double(y);
    };
    const double at = value(s), step = kRounding * std::max(1.0, std::fabs(s));
    spread_ = std::max({spread_, std::fabs(value(s + step) - at), std::fabs(value(s - step) - at)});
    spread_ = std::max(spread_, kRounding * std::fabs(at));
    largest_ = std::max(largest_, std::fabs(at));
    if (wants_rounding_) by_score *= (value(s + kStep) - value(s - kStep)) / (2.0 * kStep);
    return at;
  }

  void finish(int32_t q_head, double* o, double& lse) {
    const RowFinish f = user_->finish(float(lse), q_head, params_.variant);
    for (int32_t d = 0; d < spec_.head_dim_vo; ++d) o[d] *= double(f.factor);
    if (variant_.reduction != Reduction::sum && user_->reduction != Reduction::sum) lse = f.lse;
  }

  // Fills kept_ with the keys of the row, in list order.
  void score(int32_t q_head) {
    kept_.clear();
    spread_ = largest_ = 0.0;
    const ScaleParams& scale = params_.variant.scale;
    const float sm_scale = spec_.sm_scale != 0.0f ? spec_.sm_scale : float(1.0 / std::sqrt(double(spec_.head_dim_qk)));
    const double k_scale = scale.k_per_head ? scale.k_per_head[kv_head_] : scale.k;
    const double factor = double(sm_scale) * double(scale.q) * k_scale;
    const double slope = variant_.alibi ? params_.variant.alibi_slopes[q_head] : 0.0;
    const double cap = variant_.soft_cap;
    const KvView& kv = params_.kv;
    for (const KeyList& list : lists_) {
      for (int64_t j = list.begin; j < list.end; ++j) {
        const int64_t entry = list.list_begin + j / page_size_, slot = j % page_size_;
        int64_t page = entry;  // ragged: the list is the tokens themselves
        int64_t pos = list.pos0 + j;
        if (batch_.kv_position == KvPosition::page_table) pos = int64_t(params_.page_pos[entry]) + slot;
        if (batch_.kv_position == KvPosition::page_id) pos = (pages_.given() ? pages_[entry] : entry) * page_size_ + slot;
        if (!keeps(q_head, pos, list.index0 + j)) continue;
        if (spec_.storage == Storage::paged) page = pages_[entry];
        const int64_t k_offset = page * kv.k_page + slot * kv.k_token + kv_head_ * kv.k_head;
        load_key(k_offset, int32_t(pos));
        double s = factor * dot(q_.data(), k_.data(), spec_.head_dim_qk);
        s += slope * double(pos - query_.pos);
        if (cap > 0.0) s = cap * std::tanh(s / cap);
        double by_score = cap > 0.0 ? factor * (1.0 - s * s / (cap * cap)) : factor;
        s = hooked(s, coord(q_head, pos, list.index0 + j), by_score);
        kept_.push_back({k_offset, page * kv.v_page + slot * kv.v_token + kv_head_ * kv.v_head, int32_t(pos), s, by_score});
      }
    }
  }

  void load_key(int64_t offset, int32_t pos) {
    load_row(params_.kv.k, spec_.kv_dtype, offset, spec_.head_dim_qk, k_.data());
    rope_.rotate(pos, k_.data());
  }

  double v_scale() const {
    const ScaleParams& scale = params_.variant.scale;
    return scale.v_per_head ? scale.v_per_head[kv_head_] : scale.v;
  }

  // Of a row that is combined but not finished.
  Rounding turned_rounding(int32_t q_head, const double* o, double lse) {
    if (!std::isfinite(lse)) return {};
    const bool weighed = user_ && user_->weight, sum = weighed || variant_.reduction == Reduction::sum;
    double factor = 1.0, factor_by_lse = 0.0, lse_by_lse = 1.0;  // of the finished row
    if (user_ && user_->finish && !params_.bare_state) {
      const auto at = [&](double x) { return user_->finish(float(x), q_head, params_.variant); };
      factor = at(lse).factor;
      const RowFinish low = at(lse - kStep), high = at(lse + kStep);
      if (!sum) factor_by_lse = (double(high.factor) - low.factor) / (2.0 * kStep), lse_by_lse = (double(high.lse) - low.lse) / (2.0 * kStep);
    }
    turned_.start(q_.data());
    for (const Kept& key : kept_) {
      double weight = 0.0, by_s = key.by_score;  // of the key; its derivative by the score, softmax: without what the others lose
      if (!weighed) {
        weight = sum ? 1.0 / (1.0 + std::exp(-(key.logit + double(variant_.sigmoid_bias)))) : std::exp(key.logit - lse);
        by_s *= sum ? weight * (1.0 - weight) : weight;
      }
      load_key(key.k_offset, key.pos);
      load_row(params_.kv.v, spec_.kv_dtype, key.v_offset, spec_.head_dim_vo, v_.data());
      const double scale = v_scale(), lost = sum ? 0.0 : 1.0;
      for (int32_t d = 0; d < spec_.head_dim_vo; ++d) o_by_s_[d] = by_s * (factor * (scale * v_[d] - lost * o[d]) + factor_by_lse * o[d]);
      turned_.add(k_.data(), o_by_s_.data(), sum ? 0.0 : by_s * lse_by_lse);
    }
    return turned_.result();
  }

  void add_values(double weight, const Kept& key, double* o) {
    load_row(params_.kv.v, spec_.kv_dtype, key.v_offset, spec_.head_dim_vo, v_.data());
    for (int32_t d = 0; d < spec_.head_dim_vo; ++d) o[d] += weight * v_[d];
  }

  void combine(int32_t q_head, double* o, double& lse) {
    const double v_scale = this->v_scale();
    std::fill(o, o + spec_.head_dim_vo, 0.0);
    if (user_ && user_->weight) {
      lse = 0.0;
      for (const Kept& key : kept_) add_values(v_scale * key.logit, key, o);
      return;
    }
    if (variant_.reduction == Reduction::sum) {
      lse = 0.0;
      for (const Kept& key : kept_) add_values(v_scale / (1.0 + std::exp(-(key.logit + double(variant_.sigmoid_bias)))), key, o);
      return;
    }
    const bool has_sink = variant_.sink && !params_.bare_state;
    double max = has_sink ? double(params_.variant.sink[q_head]) : -kInf;
    for (const Kept& key : kept_) max = key.logit > max || std::isnan(key.logit) ? key.logit : max;
    lse = -kInf;
    if (max == -kInf) return;
    double sum = has_sink ? std::exp(double(params_.variant.sink[q_head]) - max) : 0.0;
    for (const Kept& key : kept_) sum += std::exp(key.logit - max);
    lse = max + std::log(sum);
    for (const Kept& key : kept_) add_values(v_scale * std::exp(key.logit - max) / sum, key, o);
  }

  const AttentionSpec& spec_;
  const Batch& batch_;
  const AttendParams& params_;
  const VariantSpec& variant_;
  const UserVariant* user_;
  const IndexView pages_;
  const int64_t page_size_;
  Rope rope_;
  TurnedRounding turned_;
  std::vector<std::vector<int64_t>> groups_of_token_;  // explicit groups only

  // The row at hand.
  int32_t kv_head_ = 0;
  QueryToken query_{};
  std::vector<KeyList> lists_;
  std::vector<Kept> kept_;
  double spread_ = 0.0, largest_ = 0.0;
  bool wants_rounding_ = false;
  std::vector<double> q_, k_, v_, o_by_s_;
};

}  // namespace

void attend_rows(const AttentionSpec& spec, const Batch& batch, const AttendParams& params, Span<const Row> rows, double* o, double* lse,
                 double* spread, Rounding* rounding) {
  Reference reference(spec, batch, params);
  for (int64_t i = 0; i < rows.size; ++i) {
    reference.attend(rows[i], o + i * spec.head_dim_vo, lse[i], rounding ? rounding + i : nullptr);
    if (spread) spread[i] = reference.spread();
  }
}

}  // namespace kvloom::ref
