// Random cases of `kvloom check`, bent to the units at hand, against REF. checks [--units a,b] [--cases N] [--seed S] [--case I] [--work W] [--json F]
#include "cli/check/generate.h"
#include "cli/check/materialise.h"
#include "kvloom/plan/planner.h"
#include "kvloom/plan/validate.h"
#include "kvloom/support/check.h"
#include "lab.h"
#include "tests/support/timeline.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <random>

using namespace kvloom;
using namespace kvloom::check;
using lab::UnitInfo;

const std::vector<UnitInfo>& lab::all_units() {
  static const std::vector<UnitInfo> units = {
#include "table.inc"
  };
  return units;
}

namespace {
#if defined(KVLOOM_TIMELINE)
constexpr bool kTimeline = true;  // units have marks of time
#else
constexpr bool kTimeline = false;
#endif

/// Takes on what the unit is compiled for. False: the case can't.
bool conform(Case& c, const UnitInfo& u, int64_t i) {
  AttentionSpec& s = c.spec;
  VariantSpec& v = s.variant;
  if (v.custom_mask != u.mask || (v.reduction == Reduction::sum) != u.sigmoid) return false;
  if ((int(v.rope.mode) != 0) != (u.rope != 0)) return false;
  if (u.rope) {
    v.rope.mode = RopeMode(u.rope);
    const int32_t some[4] = {0, u.qk / 2, u.qk / 4 / 2 * 2, u.qk - 2};
    v.rope.rotary_dim = some[i % 4];
  }
  if ((s.storage == Storage::paged) != u.paged) {
    if (!c.shared.empty() || c.lists_per_kv_head || c.kv_position != KvPosition::linear || !c.groups.empty()) return false;
    s.storage = u.paged ? Storage::paged : Storage::ragged;
    if (!u.paged) c.dense_table = false;
  }
  // Masks that leave out whole tiles need rows long enough to have some.
  if (u.mask && i % 3 == 0 && c.shared.empty() && c.groups.empty() && !c.lists_per_kv_head && c.kv_position == KvPosition::linear) {
    c.mask = MaskKind::stripes;
    for (int32_t& n : c.kv_len) n += 600;
  }
  s.head_dim_qk = u.qk, s.head_dim_vo = u.vo;
  s.q_dtype = u.q, s.kv_dtype = u.kv, s.o_dtype = u.o;
  if (c.placement == Placement::mla && u.vo > u.qk) c.placement = Placement::separate;
  if (!is_fp8(u.kv)) c.k_scale = c.v_scale = 1.0f, c.scale_per_head = false;
  if (is_fp8(u.kv) && i % 2) c.k_scale = 0.5f, c.v_scale = 3.0f, c.scale_per_head = i % 4 == 1;
  c.q_scale = 1.0f;
  s.sm_scale = i % 3 ? 0.0f : 0.07f;
  if (u.alibi && !v.alibi) v.alibi = true, c.alibi_gain = 1.0f / 32.0f;
  if (!u.alibi) v.alibi = false;
  v.soft_cap = u.softcap ? (v.soft_cap > 0.0f ? v.soft_cap : 30.0f) : 0.0f;
  if (u.softcap && u.fixed) v.soft_cap = float(1 + i % 6);  // tiles of small scores beside tiles of large ones
  if (u.sigmoid) c.want_lse = false;
  if (u.user) bend_for_user(c, variant_from_file(u.user));
  return true;
}

bool aligned(const AttendParams& p, const AttentionSpec& s) {
  const int64_t q = size_of(s.q_dtype), kv = size_of(s.kv_dtype);
  for (const int64_t x : {p.q_token * q, p.q_head * q, p.kv.k_page * kv, p.kv.k_token * kv, p.kv.k_head * kv, p.kv.v_page * kv, p.kv.v_token * kv, p.kv.v_head * kv}) {
    if (x % 16) return false;
  }
  return (static_cast<const char*>(p.kv.v) - static_cast<const char*>(p.kv.k)) % 16 == 0 || true;
}

int64_t extent(const Tensor& t) {
  if (!t.given()) return 0;
  int64_t last = 0;
  for (int i = 0; i < t.ndim; ++i) {
    if (t.shape[i] == 0) return 0;
    last += (t.shape[i] - 1) * t.stride[i];
  }
  return (last + 1) * size_of(t.dtype);
}

struct Verdict {
  std::string fault;
  double whole = 0, worst = 0, lse = 0;
};

Verdict judge(const Case& c, const UnitInfo& u, const std::vector<float>& o, const std::vector<float>& lse, const std::vector<double>& ro,
              const std::vector<double>& rl, const std::vector<double>& growth) {
  Verdict out;
  const int dim = u.vo;
  const double eps = (u.q == DType::bf16 && !is_fp8(u.kv)) || u.o == DType::bf16 || (u.rope && u.q == DType::bf16) ? 1.0 : 0.16;  // bf16, f16
  const double v_size = std::fabs(double(c.v_scale)) * (c.scale_per_head ? 2.0 : 1.0);
  double num = 0, den = 0;
  char text[256];
  for (size_t r = 0; r < rl.size(); ++r) {
    double e2 = 0, n2 = 0;
    for (int d = 0; d < dim; ++d) {
      const double got = o[r * dim + d], want = ro[r * dim + d];
      if (!(std::fabs(got) < 1e30) && out.fault.empty()) std::snprintf(text, sizeof text, "row %zu dim %d: got %g, wanted %g", r, d, got, want), out.fault = text;
      e2 += (got - want) * (got - want), n2 += want * want;
    }
    num += e2, den += n2;
    const double g = growth[r] * (u.rope ? 3.0 : 1.0);
    const double bound = eps * g * (4e-3 * std::sqrt(n2) + 6e-4 * std::sqrt(double(dim)) * v_size);
    if (n2 > 0) out.worst = std::max(out.worst, std::sqrt(e2 / n2));
    if (std::sqrt(e2) > bound && out.fault.empty()) std::snprintf(text, sizeof text, "row %zu: error %g of %g, bound %g", r, std::sqrt(e2), std::sqrt(n2), bound), out.fault = text;
    if (lse.empty()) continue;
    if (std::isinf(rl[r]) ? double(lse[r]) != rl[r] : !(std::fabs(lse[r] - rl[r]) <= (u.rope ? 2e-2 : 4e-6) * g * (1 + std::fabs(rl[r])))) {
      if (out.fault.empty()) std::snprintf(text, sizeof text, "row %zu: lse got %g, wanted %g", r, lse[r], rl[r]), out.fault = text;
    }
    if (!std::isinf(rl[r])) out.lse = std::max(out.lse, std::fabs(lse[r] - rl[r]));
  }
  out.whole = den > 0 ? std::sqrt(num / den) : 0;
  // Rotated q and k are rounded to 16 bits once more: logits are off by that share of ||q|| ||k||, weights by as much.
  const double rotated = u.rope ? 2.6e-3 * std::max(1.0f, c.q_gain) : 0.0;
  if (out.whole > eps * std::sqrt(2.8e-3 * 2.8e-3 + rotated * rotated) && rl.size() * size_t(dim) > 4096 && out.fault.empty()) out.fault = "whole tensor off";
  return out;
}

struct Schedule {
  Policy policy;
  int ctas, heads;
};

AttendParams final_params(const CaseData& data) {
  AttendParams p = data.params();
  const AttentionSpec& s = data.what().spec;
  const Tensor &o = data.tensors().o, &lse = data.tensors().lse;
  p.o = o.data, p.o_token = o.stride[0], p.o_head = o.stride[1];
  if (data.what().want_lse) p.lse = static_cast<float*>(lse.data), p.lse_token = lse.stride[0], p.lse_head = lse.stride[1];
  p.variant.sm_scale = s.sm_scale != 0.0f ? s.sm_scale : 1.0f / std::sqrt(float(s.head_dim_qk));
  p.variant.soft_cap = s.variant.soft_cap;
  p.variant.sigmoid_bias = s.variant.sigmoid_bias;
  p.variant.range = s.variant.range;
  p.variant.rope = s.variant.rope;
  return p;
}

/// Everything that the device reads, on the device.
void upload_params(AttendParams& p, const CaseData& data) {
  lab::Machine& m = lab::machine();
  const Case& c = data.what();
  const RunTensors& t = data.tensors();
  p.q = m.upload(p.q, extent(t.q));
  const char* k = static_cast<const char*>(p.kv.k);
  const char* v = static_cast<const char*>(p.kv.v);
  p.kv.k = m.upload(k, extent(t.k));
  p.kv.v = m.upload(v, extent(t.v));
  p.o = m.upload(p.o, extent(t.o));
  if (p.lse) p.lse = static_cast<float*>(m.upload(p.lse, extent(t.lse)));
  if (p.pages.given()) p.pages.data = m.upload(p.pages.data, p.pages.size * (p.pages.is_64 ? 8 : 4));
  if (p.page_pos) p.page_pos = static_cast<const int32_t*>(m.upload(p.page_pos, p.pages.size * 4));
  VariantParams& x = p.variant;
  const int64_t n = c.num_requests();
  if (x.alibi_slopes) x.alibi_slopes = static_cast<const float*>(m.upload(x.alibi_slopes, 4 * c.spec.num_qo_heads));
  if (x.sink) x.sink = static_cast<const float*>(m.upload(x.sink, 4 * c.spec.num_qo_heads));
  if (x.mask) {
    x.mask = static_cast<const uint8_t*>(m.upload(x.mask, x.mask_indptr[n]));
    x.mask_indptr = static_cast<const int64_t*>(m.upload(x.mask_indptr, 8 * (n + 1)));
    x.mask_kv_len = static_cast<const int32_t*>(m.upload(x.mask_kv_len, 4 * n));
  }
  if (x.scale.k_per_head) x.scale.k_per_head = static_cast<const float*>(m.upload(x.scale.k_per_head, 4 * c.spec.num_kv_heads));
  if (x.scale.v_per_head) x.scale.v_per_head = static_cast<const float*>(m.upload(x.scale.v_per_head, 4 * c.spec.num_kv_heads));
}

SchedulerConfig scheduler(const lab::Unit& unit, const UnitInfo& u, const Schedule& how) {
  SchedulerConfig cfg;
  cfg.num_ctas = how.ctas;
  cfg.policy = u.fixed ? Policy::fixed_split : how.policy;
  cfg.split_tokens = 2 * unit.tiles[0].keys;
  cfg.compute_rows_above = unit.tiles[0].rows;
  for (int i = 0; i < 2; ++i) {
    cfg.classes[i].tile_rows = unit.tiles[i].rows;
    cfg.classes[i].tile_kv = unit.tiles[i].keys;
    cfg.classes[i].heads_per_item = how.heads;
    cfg.classes[i].cost_per_token = 10;
    cfg.classes[i].cost_per_item = 300;
  }
  return cfg;
}

/// Plans, runs, and reads back. Empty outputs and a fault if something is wrong already.
Verdict run(CaseData& data, const UnitInfo& u, const Schedule& how, std::vector<float>& o, std::vector<float>& lse) {
  lab::Machine& m = lab::machine();
  lab::Unit& unit = m.unit(u.name);
  const Case& c = data.what();
  plan::Planner planner(c.spec, data.capacity(), scheduler(unit, u, how));
  struct alignas(64) Line {
    char b[64];
  };
  std::vector<Line> lines(size_t(planner.layout().plan_bytes + 63) / 64);
  planner.plan(data.batch(), lines.data(), int64_t(lines.size()) * 64);
  const PlanView view = view_plan(lines.data());
  bool has[2] = {false, false};
  for (int i = 0; i < view.header->num_items; ++i) has[view.items[i].kernel_class] = true;
  const lab::Kind kind = has[0] && has[1] ? lab::mixed : has[1] ? lab::compute : lab::memory;
  data.poison_outputs();
  AttendArgs a;
  a.params = final_params(data);
  const AttendParams host = a.params;
  upload_params(a.params, data);
  a.plan = m.upload(lines.data(), int64_t(lines.size()) * 64);
  a.page_size = FastDivide(uint32_t(c.page_size())), a.group_size = FastDivide(uint32_t(c.spec.group_size()));
  const auto& lay = planner.layout();
  std::vector<float> po(size_t(lay.partial_o_bytes / 4 + 4), NAN), pl(size_t(lay.partial_lse_bytes / 4 + 4), NAN);
  std::vector<uint32_t> counters(size_t(lay.counter_bytes / 4 + 4), 0);
  a.scratch.partial_o = static_cast<float*>(m.upload(po.data(), int64_t(po.size()) * 4));
  a.scratch.partial_lse = static_cast<float*>(m.upload(pl.data(), int64_t(pl.size()) * 4));
  a.scratch.counters = static_cast<uint32_t*>(m.upload(counters.data(), int64_t(counters.size()) * 4));
  const TimelineLayout layout{how.ctas, 1, view.header->num_items};
  std::vector<uint64_t> times(size_t(layout.bytes() / 8), 0);
  if (kTimeline) a.timeline = static_cast<CtaTimes*>(m.upload(times.data(), layout.bytes()));
  unit.launch(kind, a, how.ctas);
  m.finish();
  m.download(host.o, a.params.o, extent(data.tensors().o));
  if (host.lse) m.download(host.lse, a.params.lse, extent(data.tensors().lse));
  m.download(counters.data(), a.scratch.counters, int64_t(counters.size()) * 4);
  if (kTimeline) m.download(times.data(), a.timeline, layout.bytes());
  m.release();
  Verdict v;
  v.fault = data.stray_write();
  for (const uint32_t x : counters) {
    if (x && v.fault.empty()) v.fault = "a counter was not reset";
  }
  if (kTimeline && v.fault.empty()) v.fault = test::timeline_fault(view, layout, times.data());
  o = data.read_o();
  if (c.want_lse) lse = data.read_lse();
  return v;
}

/// `c`, and what is left of it if the first token of the first request comes alone. False: that token would not keep the same keys.
bool without_company(Case& c, Case& alone) {
  if (c.q_len.empty() || c.q_len[0] < 2 || !c.spec.variant.range.causal || c.mask != MaskKind::none || c.spec.variant.user) return false;
  if (c.lists_per_kv_head || c.kv_position != KvPosition::linear || !c.shared.empty() || !c.groups.empty() || !c.q_pos0.empty() || !c.q_pos.empty()) return false;
  const int32_t kv_len = c.kv_len[0] - (c.q_len[0] - 1);
  if (kv_len < 1 || (!c.prefix.empty() && c.prefix[0] > kv_len)) return false;
  c.shuffle_pages = false;
  alone = c;
  alone.q_len = {1}, alone.kv_len = {kv_len};
  if (!c.prefix.empty()) alone.prefix = {c.prefix[0]};
  return true;
}

/// The first token's bits in company and alone: under fixed_split they are the same.
std::string compare_alone(Case c, const UnitInfo& u, const Schedule& how) {
  Case one;
  if (!without_company(c, one)) return {};
  CaseData among(c), alone(one);
  std::vector<float> o, lse, o1, lse1;
  std::string fault = run(among, u, how, o, lse).fault;
  if (fault.empty()) fault = run(alone, u, how, o1, lse1).fault;
  if (!fault.empty()) return fault;
  if (std::memcmp(o.data(), o1.data(), o1.size() * 4) || std::memcmp(lse.data(), lse1.data(), lse1.size() * 4)) return "other bits alone";
  return {};
}

}  // namespace

int main(int argc, char** argv) {
  std::string only, json_path;
  int64_t cases = 40, seed = 1, single = -1, work = 3000000;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string k = argv[i], v = argv[i + 1];
    if (k == "--units") only = "," + v + ",";
    if (k == "--cases") cases = std::stoll(v);
    if (k == "--seed") seed = std::stoll(v);
    if (k == "--case") single = std::stoll(v);
    if (k == "--work") work = std::stoll(v);
    if (k == "--json") json_path = v;
  }
  std::FILE* json = json_path.empty() ? nullptr : std::fopen(json_path.c_str(), "w");
  const Schedule schedules[] = {{Policy::automatic, 7, 1}, {Policy::stream, 20, 1}, {Policy::heap, 13, 1}, {Policy::fill, 9, 2}, {Policy::none, 3, 1}, {Policy::stream, 1, 2}};
  int bad = 0, total = 0;
  for (const UnitInfo& u : lab::all_units()) {
    if (!only.empty() && only.find("," + std::string(u.name) + ",") == std::string::npos) continue;
    double whole = 0, worst = 0, lse_off = 0;
    int done = 0, faults = 0, kinds[3] = {};
    const auto t0 = std::chrono::steady_clock::now();
    for (int64_t i = single >= 0 ? single : 0; done < cases && i < 100000; ++i) {
      Case c = random_case(uint64_t(seed), i);
      if (!conform(c, u, i) || work_of(c) > work) continue;
      std::string fault;
      const Schedule& how = schedules[i % 6];
      try {
        CaseData data(c);
        if (!aligned(data.params(), c.spec)) continue;
        std::vector<double> ro, rl;
        std::vector<double> spread;
        data.reference(ro, rl, &spread);
        std::vector<float> o, lse, o2, lse2;
        Verdict v = run(data, u, how, o, lse);
        fault = v.fault;
        if (fault.empty()) {
          v = judge(c, u, o, lse, ro, rl, data.fp32_growth(spread));
          fault = v.fault;
          if (c.total_tokens() * u.vo > 256) whole = std::max(whole, v.whole);
          worst = std::max(worst, v.worst), lse_off = std::max(lse_off, v.lse);
        }
        if (fault.empty() && (u.fixed || i % 4 == 0)) {  // the same bits again; under fixed_split on other CTAs too
          const Schedule other{how.policy, u.fixed ? how.ctas * 2 + 1 : how.ctas, how.heads};
          fault = run(data, u, other, o2, lse2).fault;
          if (fault.empty() && (std::memcmp(o.data(), o2.data(), o.size() * 4) || (!lse.empty() && std::memcmp(lse.data(), lse2.data(), lse.size() * 4)))) fault = "other bits";
        }
        if (fault.empty() && u.fixed) fault = compare_alone(c, u, how);
      } catch (const Error& e) {
        const std::string what = e.what();
        if (what.find("page_size") != std::string::npos) continue;
        fault = "refused: " + what;
      }
      ++done;
      if (!fault.empty()) {
        ++faults;
        if (faults <= 6) std::printf("  %s case %lld policy %d ctas %d: %s\n    %s\n", u.name, (long long)i, int(how.policy), how.ctas, fault.c_str(), describe(c).c_str());
        std::fflush(stdout);
      }
      if (single >= 0) break;
    }
    (void)kinds;
    const double s = std::chrono::duration<double>(std::chrono::steady_clock::now() - t0).count();
    std::printf("%-28s %4d cases, %3d bad; whole %.2e worst row %.2e lse %.1e  (%.1f s)\n", u.name, done, faults, whole, worst, lse_off, s);
    std::fflush(stdout);
    if (json) std::fprintf(json, "{\"unit\":\"%s\",\"cases\":%d,\"bad\":%d,\"whole\":%g,\"worst\":%g,\"lse\":%g}\n", u.name, done, faults, whole, worst, lse_off), std::fflush(json);
    bad += faults, total += done;
  }
  std::printf("%d cases, %d bad\n", total, bad);
  return bad != 0;
}
