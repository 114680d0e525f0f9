// Times units on the shapes of the aims; sampled rows against REF first. times [--only TEXT] [--json F]
#include "kvloom/plan/planner.h"
#include "kvloom/ref/ref.h"
#include "lab.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <random>
#include <unistd.h>

#define CK(x)                                                                                       \
  do {                                                                                              \
    const int e = int(x);                                                                           \
    if (e) std::printf("CUDA error %d: %s (%s:%d)\n", e, #x, __FILE__, __LINE__), std::fflush(stdout), _exit(3); \
  } while (0)

using namespace kvloom;
using lab::UnitInfo;

const std::vector<UnitInfo>& lab::all_units() {
  static const std::vector<UnitInfo> units = {
#include "table.inc"
  };
  return units;
}

namespace {
struct Shape {
  std::string label;
  std::vector<int> q, kv;
  int hq = 32, hk = 8, page = 16;
  bool causal = false;
  int window = -1;
};


/// `n` elements on the device: a block of random numbers over and over (its length is prime).
void* random_tensor(int64_t n, DType type, unsigned seed) {
  const int64_t block = 1000003, size = size_of(type);
  static std::vector<char> host[5][8];
  std::vector<char>& h = host[int(type)][seed % 8];
  if (h.empty()) {
    h.resize(size_t(block * size));
    std::mt19937 g(seed);
    std::normal_distribution<float> d;
    for (int64_t i = 0; i < block; ++i) store_from_float(h.data(), type, i, d(g));
  }
  char* p;
  CK(cudaMalloc(&p, size_t(std::max<int64_t>(n, 1) * size)));
  int64_t have = std::min(n, block);
  CK(cudaMemcpy(p, h.data(), size_t(have * size), cudaMemcpyHostToDevice));
  while (have < n) {
    const int64_t more = std::min(n - have, have);
    CK(cudaMemcpy(p + have * size, p, size_t(more * size), cudaMemcpyDeviceToDevice));
    have += more;
  }
  return p;
}

template <class T>
T* to_device(const std::vector<T>& v) {
  T* p;
  CK(cudaMalloc(&p, std::max<size_t>(v.size() * sizeof(T), 16)));
  CK(cudaMemcpy(p, v.data(), v.size() * sizeof(T), cudaMemcpyHostToDevice));
  return p;
}

struct Run {
  const UnitInfo& u;
  const Shape& s;
  AttentionSpec spec;
  std::vector<int32_t> qi{0}, li{0}, kl, pages, maskcols;
  std::vector<int64_t> maskptr{0};
  AttendArgs a;
  int64_t slots = 0, kv_bytes = 0;
  int copies = 1;
  std::vector<void*> owned;

  Run(const UnitInfo& unit, const Shape& shape) : u(unit), s(shape) {
    const int ps = u.paged ? s.page : 1;
    spec.num_qo_heads = s.hq, spec.num_kv_heads = s.hk, spec.head_dim_qk = u.qk, spec.head_dim_vo = u.vo;
    spec.q_dtype = u.q, spec.kv_dtype = u.kv, spec.o_dtype = u.o;
    spec.storage = u.paged ? Storage::paged : Storage::ragged, spec.page_size = ps;
    spec.variant.range = KeyRange{s.causal, s.window, -1};
    spec.variant.alibi = u.alibi, spec.variant.soft_cap = u.softcap ? 30.0f : 0.0f, spec.variant.custom_mask = u.mask;
    spec.variant.reduction = u.sigmoid ? Reduction::sum : Reduction::softmax;
    spec.variant.rope.mode = RopeMode(u.rope);
    for (size_t r = 0; r < s.q.size(); ++r) {
      qi.push_back(qi.back() + s.q[r]);
      const int np = (s.kv[r] + ps - 1) / ps;
      li.push_back(li.back() + np), kl.push_back(s.kv[r]), slots += int64_t(np) * ps;
      maskptr.push_back(maskptr.back() + (int64_t(s.q[r]) * s.kv[r] + 7) / 8), maskcols.push_back(s.kv[r]);
    }
    if (u.paged) {
      pages.resize(size_t(li.back()));
      std::iota(pages.begin(), pages.end(), 0);
      std::shuffle(pages.begin(), pages.end(), std::mt19937(3));
    }
    tensors();
  }
  ~Run() {
    for (void* p : owned) cudaFree(p);
  }
  template <class T>
  T* own(T* p) {
    owned.push_back(const_cast<void*>(static_cast<const void*>(p)));
    return p;
  }
  Batch batch() const {
    Batch b;
    b.num_requests = int32_t(s.q.size());
    b.qo_indptr = IndexView(qi.data(), int64_t(qi.size())), b.kv_len = IndexView(kl.data(), int64_t(kl.size())), b.list_indptr = IndexView(li.data(), int64_t(li.size()));
    if (u.paged) b.pages = IndexView(pages.data(), int64_t(pages.size()));
    return b;
  }
  void tensors() {
    const int64_t k_row = int64_t(s.hk) * u.qk, v_row = int64_t(s.hk) * u.vo, ps = spec.page_size, tokens = qi.back();
    kv_bytes = slots * (k_row + v_row) * size_of(u.kv);
    copies = int(std::clamp<int64_t>(600000000 / std::max<int64_t>(kv_bytes, 1), 1, 16));
    AttendParams& p = a.params;
    p.q = own(random_tensor(tokens * s.hq * u.qk, u.q, 1)), p.q_token = int64_t(s.hq) * u.qk, p.q_head = u.qk;
    p.o = own(random_tensor(tokens * s.hq * u.vo, u.o, 1)), p.o_token = int64_t(s.hq) * u.vo, p.o_head = u.vo;
    p.lse = static_cast<float*>(own(random_tensor(tokens * s.hq, DType::f32, 1))), p.lse_token = s.hq, p.lse_head = 1;
    p.kv.k = own(random_tensor(slots * k_row * copies, u.kv, 2)), p.kv.v = own(random_tensor(slots * v_row * copies, u.kv, 3));
    p.kv.k_page = ps * k_row, p.kv.k_token = k_row, p.kv.k_head = u.qk;
    p.kv.v_page = ps * v_row, p.kv.v_token = v_row, p.kv.v_head = u.vo;
    if (u.paged) p.pages = IndexView(own(to_device(pages)), int64_t(pages.size()));
    p.variant.sm_scale = 1.0f / std::sqrt(float(u.qk));
    p.variant.range = spec.variant.range, p.variant.soft_cap = spec.variant.soft_cap, p.variant.rope = spec.variant.rope;
    std::vector<float> slopes;
    for (int h = 0; h < s.hq; ++h) slopes.push_back(std::exp2(-8.0f * float(h + 1) / float(s.hq)));
    p.variant.alibi_slopes = own(to_device(slopes));
    if (u.mask) {  // lower triangle, as bits
      std::vector<uint8_t> bits(size_t(maskptr.back()), 0);
      for (size_t r = 0; r < s.q.size(); ++r) {
        for (int64_t i = 0; i < s.q[r]; ++i) {
          const int64_t begin = i * s.kv[r], end = begin + s.kv[r] - s.q[r] + i + 1;
          uint8_t* to = bits.data() + maskptr[r];
          for (int64_t b = begin; b < end;) {
            if (b % 8 == 0 && b + 8 <= end) to[b / 8] = 0xff, b += 8;
            else to[b / 8] |= uint8_t(1u << (b % 8)), ++b;
          }
        }
      }
      p.variant.mask = own(to_device(bits)), p.variant.mask_indptr = own(to_device(maskptr)), p.variant.mask_kv_len = own(to_device(maskcols));
    }
  }
};

/// Worst relative error of some rows of request r.
double check_rows(Run& run, int r) {
  const UnitInfo& u = run.u;
  const int ps = run.spec.page_size, n = run.s.kv[size_t(r)], q = run.s.q[size_t(r)], tokens = (n + ps - 1) / ps * ps;
  const int64_t k_row = int64_t(run.s.hk) * u.qk, v_row = int64_t(run.s.hk) * u.vo, size = size_of(u.kv);
  std::vector<char> k(size_t(tokens * k_row * size)), v(size_t(tokens * v_row * size)), qs(size_t(int64_t(q) * run.s.hq * u.qk * size_of(u.q))),
      o(size_t(int64_t(q) * run.s.hq * u.vo * size_of(u.o)));
  std::vector<int32_t> pages;
  for (int i = 0; i < tokens / ps; ++i) {
    const int64_t page = run.u.paged ? run.pages[size_t(run.li[size_t(r)] + i)] : run.li[size_t(r)] + i;
    CK(cudaMemcpyAsync(k.data() + i * ps * k_row * size, static_cast<const char*>(run.a.params.kv.k) + page * ps * k_row * size, size_t(ps * k_row * size), cudaMemcpyDeviceToHost, cudaStreamPerThread));
    CK(cudaMemcpyAsync(v.data() + i * ps * v_row * size, static_cast<const char*>(run.a.params.kv.v) + page * ps * v_row * size, size_t(ps * v_row * size), cudaMemcpyDeviceToHost, cudaStreamPerThread));
    pages.push_back(i);
  }
  const int64_t t0 = run.qi[size_t(r)];
  CK(cudaMemcpyAsync(qs.data(), static_cast<const char*>(run.a.params.q) + t0 * run.a.params.q_token * size_of(u.q), qs.size(), cudaMemcpyDeviceToHost, cudaStreamPerThread));
  CK(cudaMemcpyAsync(o.data(), static_cast<const char*>(run.a.params.o) + t0 * run.a.params.o_token * size_of(u.o), o.size(), cudaMemcpyDeviceToHost, cudaStreamPerThread));
  CK(cudaStreamSynchronize(cudaStreamPerThread));
  AttentionSpec spec = run.spec;
  if (u.mask) spec.variant.custom_mask = false, spec.variant.range.causal = true;
  AttendParams p = run.a.params;
  std::vector<float> slopes;
  for (int h = 0; h < run.s.hq; ++h) slopes.push_back(std::exp2(-8.0f * float(h + 1) / float(run.s.hq)));
  p.variant.alibi_slopes = slopes.data();
  p.q = qs.data(), p.kv.k = k.data(), p.kv.v = v.data();
  const int32_t qi[2] = {0, q}, li[2] = {0, int32_t(u.paged ? pages.size() : size_t(n))}, kl[1] = {n};
  Batch b;
  b.num_requests = 1, b.qo_indptr = IndexView(qi, 2), b.kv_len = IndexView(kl, 1), b.list_indptr = IndexView(li, 2);
  if (u.paged) b.pages = p.pages = IndexView(pages.data(), int64_t(pages.size()));
  std::mt19937 g(9);
  std::vector<ref::Row> want;
  for (int i = 0; i < 12; ++i) want.push_back({int32_t(g() % unsigned(q)), int32_t(g() % unsigned(run.s.hq))});
  std::vector<double> ro(want.size() * size_t(u.vo)), rl(want.size());
  ref::attend_rows(spec, b, p, Span<const ref::Row>{want.data(), int64_t(want.size())}, ro.data(), rl.data());
  double worst = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    double e2 = 0, n2 = 0;
    for (int d = 0; d < u.vo; ++d) {
      const double got = load_as_float(o.data(), u.o, (int64_t(want[i].token) * run.s.hq + want[i].q_head) * u.vo + d), w = ro[i * size_t(u.vo) + size_t(d)];
      e2 += (got - w) * (got - w), n2 += w * w;
    }
    const double e = std::sqrt(e2 / n2);
    worst = e == e ? std::max(worst, e) : 1e9;
  }
  return worst;
}

/// Each CTA's items by KV head, longest first within one: CTAs that run at the same time then read the same head's keys.
void order_by_head(PlanView view, int ctas) {
  auto* items = const_cast<WorkItem*>(view.items.data);
  for (int c = 0; c < ctas; ++c) {
    std::stable_sort(items + view.cta_indptr[c], items + view.cta_indptr[c + 1], [](const WorkItem& a, const WorkItem& b) {
      return a.kv_head != b.kv_head ? a.kv_head < b.kv_head : a.kv_end - a.kv_begin > b.kv_end - b.kv_begin;
    });
  }
}

void time_case(const UnitInfo& u, const Shape& s, std::FILE* json, const std::string& how) {
  Run run(u, s);
  lab::Unit& unit = lab::machine().unit(u.name);
  const bool big = *std::max_element(s.q.begin(), s.q.end()) * (s.hq / s.hk) > 16;
  const lab::Kind kind = how == "mixed" ? lab::mixed : big ? lab::compute : lab::memory;
  SchedulerConfig cfg;
  cfg.num_ctas = lab::machine().sms() * unit.facts[kind].ctas_per_sm;
  cfg.levels = LevelMode::off;
  if (u.fixed) cfg.policy = Policy::fixed_split, cfg.split_tokens = 1024;
  cfg.compute_rows_above = big ? 0 : 16;
  for (int i = 0; i < 2; ++i) {
    cfg.classes[i].tile_rows = unit.tiles[i].rows, cfg.classes[i].tile_kv = unit.tiles[i].keys;
    cfg.classes[i].cost_per_token = i == 0 ? 15 * unit.facts[lab::memory].ctas_per_sm : 45, cfg.classes[i].cost_per_item = 2500;
  }
  cfg.cost_partial = 1000, cfg.cost_merge = 2500;
  int64_t kv_tokens = 0;
  for (int x : s.kv) kv_tokens += x;
  plan::Planner planner(run.spec, Capacity{int32_t(s.q.size()), run.qi.back(), kv_tokens, 0, 0}, cfg);
  struct alignas(64) Line {
    char b[64];
  };
  std::vector<Line> lines(size_t(planner.layout().plan_bytes + 63) / 64);
  planner.plan(run.batch(), lines.data(), int64_t(lines.size()) * 64);
  const PlanView view = view_plan(lines.data());
  unit.early = how == "pdl";
  if (how == "heads") order_by_head(view, cfg.num_ctas);
  if (how == "nomerge") {  // what a launch costs without its merges: their units are never complete, and O is wrong
    for (int i = 0; i < view.header->num_units; ++i) const_cast<MergeUnit&>(view.units[i]).arrivals = 1 << 30;
  }
  AttendArgs a = run.a;
  a.plan = run.own(to_device(lines)), a.page_size = FastDivide(uint32_t(run.spec.page_size)), a.group_size = FastDivide(uint32_t(s.hq / s.hk));
  const auto& lay = planner.layout();
  CK(cudaMalloc(&a.scratch.partial_o, size_t(lay.partial_o_bytes) + 16));
  run.own(a.scratch.partial_o);
  CK(cudaMalloc(&a.scratch.partial_lse, size_t(lay.partial_lse_bytes) + 16));
  run.own(a.scratch.partial_lse);
  CK(cudaMalloc(&a.scratch.counters, size_t(lay.counter_bytes) + 16));
  run.own(a.scratch.counters);
  CK(cudaMemset(a.scratch.counters, 0, size_t(lay.counter_bytes)));
  CK(cudaDeviceSynchronize());
  unit.launch(kind, a, cfg.num_ctas);
  lab::machine().finish();
  run.a = a;
  const int check_at = int(s.q.size()) / 3;
  const double error = std::max(check_rows(run, check_at), check_rows(run, 0));
  const auto at_copy = [&](int c) {
    AttendArgs b = a;
    b.params.kv.k = static_cast<const char*>(a.params.kv.k) + c * run.slots * s.hk * u.qk * size_of(u.kv);
    b.params.kv.v = static_cast<const char*>(a.params.kv.v) + c * run.slots * s.hk * u.vo * size_of(u.kv);
    return b;
  };
  const int nodes = run.copies == 1 ? 1 : run.copies * 2;
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  CK(cudaStreamBeginCapture(cudaStreamPerThread, cudaStreamCaptureModeThreadLocal));
  for (int i = 0; i < nodes; ++i) unit.launch(kind, at_copy(i % run.copies), cfg.num_ctas);
  CK(cudaStreamEndCapture(cudaStreamPerThread, &graph));
  CK(cudaGraphInstantiate(&exec, graph, 0));
  cudaEvent_t e0, e1;
  CK(cudaEventCreate(&e0));
  CK(cudaEventCreate(&e1));
  std::vector<float> times;
  double spent = 0;
  usleep(200000);  // the power limit forgets
  for (int i = 0; i < 4 + 15 && spent < 400; ++i) {
    CK(cudaEventRecord(e0, cudaStreamPerThread));
    CK(cudaGraphLaunch(exec, cudaStreamPerThread));
    CK(cudaEventRecord(e1, cudaStreamPerThread));
    lab::machine().finish();
    float ms;
    CK(cudaEventElapsedTime(&ms, e0, e1));
    spent += ms;
    if (i >= 4 || ms > 40) times.push_back(ms * 1e3f / float(nodes));
  }
  cudaGraphExecDestroy(exec), cudaGraphDestroy(graph);
  std::sort(times.begin(), times.end());
  const double us = times[times.size() / 2];
  double pairs = 0;
  for (size_t r = 0; r < s.q.size(); ++r) {
    for (int i = 0; i < s.q[r]; ++i) {
      const double end = s.causal || u.mask ? std::max(0, s.kv[r] - s.q[r] + i + 1) : s.kv[r];
      pairs += s.window >= 0 ? std::min<double>(end, s.window + 1) : end;
    }
  }
  const double tf = 2.0 * (u.qk + u.vo) * pairs * s.hq / us * 1e-6, tb = double(run.kv_bytes) / us * 1e-6;
  std::printf("%-24s %-26s err %.1e items %5d units %5d parts/unit %4.1f | %9.1f us  %6.1f TFLOP/s  %5.3f TB/s (min %.1f)\n", s.label.c_str(), (std::string(u.name) + (how.empty() ? "" : "@" + how)).c_str(), error, view.header->num_items,
              view.header->num_units, view.header->num_units ? double(view.header->num_entries) / view.header->num_units : 0.0, us, tf, tb, times[0]);
  if (json) std::fprintf(json, "{\"shape\":\"%s\",\"unit\":\"%s\",\"error\":%g,\"us\":%g,\"min_us\":%g,\"tflops\":%g,\"tbps\":%g,\"items\":%d}\n", s.label.c_str(), (std::string(u.name) + (how.empty() ? "" : "@" + how)).c_str(), error, us, double(times[0]), tf, tb, view.header->num_items), std::fflush(json);
  std::fflush(stdout);
}
}  // namespace

int main(int argc, char** argv) {
  // times JSON LIST: LIST has lines "shape unit[@heads|@nomerge|@pdl|@mixed]"
  std::FILE* json = std::fopen(argv[1], "w");
  auto rep = [](int n, int x) { return std::vector<int>(size_t(n), x); };
  std::vector<int> zipf;
  double h = 0;
  for (int i = 1; i <= 64; ++i) h += 1.0 / i;
  for (int i = 1; i <= 64; ++i) zipf.push_back(std::max(1, int(64 * 4096 / h / i)));
  const std::vector<Shape> shapes = {
      {"causal_16k", {16384}, {16384}, 32, 8, 16, true}, {"causal_16k_p1", {16384}, {16384}, 32, 8, 1, true}, {"causal_16k_p64", {16384}, {16384}, 32, 8, 64, true},
      {"full_8k", {8192}, {8192}, 32, 8, 16, false},     {"full_4k", {4096}, {4096}, 32, 8, 16, false},       {"window1k_8k", {8192}, {8192}, 32, 8, 16, true, 1023},
      {"causal_16x1024", rep(16, 1024), rep(16, 1024), 32, 8, 16, true},
      {"decode_128x8192", rep(128, 1), rep(128, 8192)},  {"decode_128x8192_p1", rep(128, 1), rep(128, 8192), 32, 8, 1}, {"decode_zipf", rep(64, 1), zipf},
      {"decode_16x1024", rep(16, 1), rep(16, 1024)},     {"decode_1x32768", {1}, {32768}},                    {"decode_64x4096_q4", rep(64, 4), rep(64, 4096), 32, 8, 16, true},
      {"mla_64x4096", rep(64, 1), rep(64, 4096), 16, 1, 64}, {"mla_128x8192", rep(128, 1), rep(128, 8192), 16, 1, 64},
  };
  std::FILE* list = std::fopen(argv[2], "r");
  char shape[128], unit[128];
  while (std::fscanf(list, "%127s %127s", shape, unit) == 2) {
    const std::string text = unit, name = text.substr(0, text.find('@')), how = text.size() > name.size() ? text.substr(name.size() + 1) : "";
    for (const Shape& s : shapes) {
      if (s.label != shape) continue;
      for (const UnitInfo& u : lab::all_units()) {
        if (name == u.name) time_case(u, s, json, how);
      }
    }
  }
}
