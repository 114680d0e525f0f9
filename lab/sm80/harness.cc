// sm80 lab: plans with the product's planner, runs the cubin, checks sampled rows against REF, times.
#include "kvloom/contract/attend_args.h"
#include "kvloom/plan/planner.h"
#include "kvloom/plan/validate.h"
#include "kvloom/ref/ref.h"
#include <cuda.h>
#include <cuda_runtime.h>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <random>
#include <string>
#include <vector>
using namespace kvloom;
#define CK(x) do { auto e = (x); if (e) { std::printf("CUDA error %d at %s:%d\n", int(e), __FILE__, __LINE__); std::exit(1); } } while (0)
static CUmodule module;
static int sms;
struct Kernel { const char* name; int rows, kv, wr, wk; size_t smem; int ctas; };
static size_t smem_of(int rows, int kv) { return size_t(rows) * 256 + 4 * size_t(kv) * 256 + 2 * kv * 16 + 2 * 4 + 16 + rows * 24 + rows * 12 + 8 + 4 + 32 + 64 + 512; }
struct Case { const char* label; std::vector<int> q, kv; int hq, hk, page; bool causal; const char* decode; const char* prefill; bool check; };
template <class T> T* dev(const std::vector<T>& v) { T* p; CK(cudaMalloc(&p, std::max<size_t>(v.size() * sizeof(T), 16))); CK(cudaMemcpy(p, v.data(), v.size() * sizeof(T), cudaMemcpyHostToDevice)); return p; }
__attribute__((noinline)) static void fill(std::vector<uint16_t>& v, unsigned seed) { std::mt19937 g(seed); std::normal_distribution<float> n; std::vector<uint16_t> b(1000003); for (auto& x : b) x = float_to_bf16(n(g)); for (size_t i = 0; i < v.size(); ++i) v[i] = b[i % b.size()]; }

static void run_case(const Case& c, std::FILE* json) {
  const int D = 128, n = int(c.q.size());
  const bool paged = c.page > 0;
  const int ps = paged ? c.page : 1;
  AttentionSpec s; s.num_qo_heads = c.hq; s.num_kv_heads = c.hk; s.head_dim_qk = s.head_dim_vo = D; s.q_dtype = s.kv_dtype = s.o_dtype = DType::bf16;
  s.storage = paged ? Storage::paged : Storage::ragged; s.page_size = ps; s.variant.range.causal = c.causal;
  std::vector<int32_t> qi{0}, li{0}, kl, pages; int64_t slots = 0;
  for (int r = 0; r < n; ++r) { qi.push_back(qi.back() + c.q[r]); const int np = (c.kv[r] + ps - 1) / ps; li.push_back(li.back() + np); kl.push_back(c.kv[r]); slots += int64_t(np) * ps; }
  if (paged) { pages.resize(li.back()); std::iota(pages.begin(), pages.end(), 0); std::shuffle(pages.begin(), pages.end(), std::mt19937(3)); }
  const int64_t tokens = qi.back();
  std::vector<uint16_t> q(tokens * c.hq * D), k(std::max<int64_t>(slots, 1) * c.hk * D), v(k.size()), o(q.size());
  fill(q, 1); fill(k, 2); fill(v, 3);
  Batch b; b.num_requests = n; b.qo_indptr = IndexView(qi.data(), n + 1); b.kv_len = IndexView(kl.data(), n); b.list_indptr = IndexView(li.data(), n + 1);
  if (paged) b.pages = IndexView(pages.data(), int64_t(pages.size()));
  const std::string names[2] = {c.decode, c.prefill};
  SchedulerConfig cfg; cfg.levels = LevelMode::off;
  int64_t kvtok = 0; for (int x : c.kv) kvtok += x;
  auto tile_of = [](const std::string& nm) { return std::atoi(nm.c_str() + 1); };
  const bool mixed = *std::max_element(c.q.begin(), c.q.end()) * (c.hq / c.hk) > 16;
  const std::string name = mixed ? names[1] : names[0];
  const int rows = tile_of(name), ctas_per_sm = rows == 128 ? 2 : rows == 64 ? 2 : 3;
  cfg.num_ctas = sms * ctas_per_sm; cfg.policy = Policy::automatic;
  cfg.compute_rows_above = mixed ? 0 : 16;  // one class a launch here
  for (auto& k2 : cfg.classes) { k2 = KernelClass{}; k2.tile_rows = rows; k2.tile_kv = 64; k2.heads_per_item = 1; k2.cost_per_token = mixed ? 12 : 10; k2.cost_per_item = 300; }
  Capacity cap{n, tokens, kvtok, 0, 0};
  plan::Planner planner(s, cap, cfg);
  struct alignas(64) Line { char b[64]; };
  std::vector<Line> plan_lines((planner.layout().plan_bytes + 63) / 64); struct { char* p; size_t n; char* data() { return p; } size_t size() { return n; } } plan_buffer{reinterpret_cast<char*>(plan_lines.data()), plan_lines.size() * 64};
  planner.plan(b, plan_buffer.data(), plan_buffer.size());
  const auto t0 = std::chrono::steady_clock::now();
  for (int i = 0; i < 20; ++i) planner.plan(b, plan_buffer.data(), plan_buffer.size());
  const double plan_us = std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - t0).count() / 20;
  const std::string bad = plan::validate_plan(plan_buffer.data(), plan_buffer.size(), s);
  if (!bad.empty()) std::printf("  PLAN INVALID %s\n", bad.c_str());
  AttendArgs a;
  a.params.q = dev(q); a.params.q_token = int64_t(c.hq) * D; a.params.q_head = D; uint16_t* od = dev(o); a.params.o = od; a.params.o_token = a.params.q_token; a.params.o_head = D;
  std::vector<float> lse(tokens * c.hq, NAN); float* ld = dev(lse); a.params.lse = ld; a.params.lse_token = c.hq; a.params.lse_head = 1;
  a.params.kv.k = dev(k); a.params.kv.v = dev(v);
  a.params.kv.k_token = a.params.kv.v_token = int64_t(c.hk) * D; a.params.kv.k_head = a.params.kv.v_head = D; a.params.kv.k_page = a.params.kv.v_page = int64_t(ps) * c.hk * D;
  if (paged) a.params.pages = IndexView(dev(pages), int64_t(pages.size()));
  a.params.variant.sm_scale = 1.0f / std::sqrt(float(D)); a.params.variant.range = s.variant.range;
  a.plan = dev(plan_lines); a.page_size = FastDivide(ps); a.group_size = FastDivide(c.hq / c.hk);
  const auto& lay = planner.layout();
  CK(cudaMalloc(&a.scratch.partial_o, std::max<int64_t>(lay.partial_o_bytes, 16))); CK(cudaMalloc(&a.scratch.partial_lse, std::max<int64_t>(lay.partial_lse_bytes, 16)));
  CK(cudaMalloc(&a.scratch.counters, std::max<int64_t>(lay.counter_bytes, 16))); CK(cudaMemset(a.scratch.counters, 0, lay.counter_bytes));
  CUfunction f; CK(cuModuleGetFunction(&f, module, name.c_str()));
  const size_t smem = smem_of(rows, 64);
  CK(cuFuncSetAttribute(f, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, int(smem)));
  int occ = 0; CK(cuOccupancyMaxActiveBlocksPerMultiprocessor(&occ, f, 128, smem));
  void* args[] = {&a};
  auto launch = [&] { CK(cuLaunchKernel(f, cfg.num_ctas, 1, 1, 128, 1, 1, unsigned(smem), nullptr, args, nullptr)); };
  launch(); CK(cudaDeviceSynchronize());
  CK(cudaMemcpy(o.data(), od, o.size() * 2, cudaMemcpyDeviceToHost)); CK(cudaMemcpy(lse.data(), ld, lse.size() * 4, cudaMemcpyDeviceToHost));
  AttendParams hp = a.params; hp.q = q.data(); hp.kv.k = k.data(); hp.kv.v = v.data(); if (paged) hp.pages = b.pages;
  std::mt19937 g(9); std::vector<ref::Row> want; const int samples = c.check ? int(std::min<int64_t>(tokens * c.hq, 2000)) : 24;
  for (int i = 0; i < samples; ++i) want.push_back({int32_t(g() % tokens), int32_t(g() % c.hq)});
  std::vector<double> ro(want.size() * D), rl(want.size()); ref::attend_rows(s, b, hp, Span<const ref::Row>{want.data(), int64_t(want.size())}, ro.data(), rl.data());
  double num = 0, den = 0, worst = 0, lworst = 0; bool nan = false;
  for (size_t i = 0; i < want.size(); ++i) { double rn = 0, rd = 0; for (int d = 0; d < D; ++d) { const double got = bf16_to_float(o[(int64_t(want[i].token) * c.hq + want[i].q_head) * D + d]); if (!(got == got)) nan = true; rn += (got - ro[i * D + d]) * (got - ro[i * D + d]); rd += ro[i * D + d] * ro[i * D + d]; } num += rn; den += rd; if (rd > 0) worst = std::max(worst, std::sqrt(rn / rd)); else if (rn != 0) nan = true; const double l = lse[int64_t(want[i].token) * c.hq + want[i].q_head]; if (std::isinf(rl[i]) ? l != rl[i] : !(std::fabs(l - rl[i]) < 1e9)) nan = true; else if (!std::isinf(rl[i])) lworst = std::max(lworst, std::fabs(l - rl[i])); }
  std::vector<float> times; cudaEvent_t e0, e1; CK(cudaEventCreate(&e0)); CK(cudaEventCreate(&e1));
  if (!c.check) for (int i = 0; i < 15; ++i) { CK(cudaEventRecord(e0)); launch(); CK(cudaEventRecord(e1)); CK(cudaEventSynchronize(e1)); float ms; CK(cudaEventElapsedTime(&ms, e0, e1)); times.push_back(ms * 1e3f); }
  double pairs = 0; for (int r = 0; r < n; ++r) for (int i = 0; i < c.q[r]; ++i) pairs += c.causal ? std::max(0, c.kv[r] - c.q[r] + i + 1) : c.kv[r];
  std::sort(times.begin(), times.end()); const double us = times.empty() ? 0 : times[times.size() / 2];
  const double tf = us > 0 ? 4.0 * D * pairs * c.hq / us * 1e-6 : 0, tb = us > 0 ? (2.0 * k.size() * 2) / us * 1e-6 : 0;
  const PlanView pv = view_plan(plan_buffer.data());
  std::printf("%-34s %-5s occ %d rel %.2e worst %.2e lse %.1e%s  plan %.1f us items %d units %d | %9.1f us %7.1f TFLOP/s %6.3f TB/s\n", c.label, name.c_str(), occ, std::sqrt(num / std::max(den, 1e-30)), worst, lworst, nan ? " NAN/BAD" : "", plan_us, pv.header->num_items, pv.header->num_units, us, tf, tb);
  std::fprintf(json, "{\"case\":\"%s\",\"kernel\":\"%s\",\"rel\":%g,\"worst\":%g,\"us\":%g,\"tflops\":%g,\"tbps\":%g,\"occ\":%d,\"bad\":%d}\n", c.label, name.c_str(), std::sqrt(num / std::max(den, 1e-30)), worst, us, tf, tb, occ, int(nan));
  std::fflush(stdout); std::fflush(json);
  cudaFree((void*)a.params.q); cudaFree(od); cudaFree(ld); cudaFree((void*)a.params.kv.k); cudaFree((void*)a.params.kv.v); if (paged) cudaFree((void*)a.params.pages.data); cudaFree((void*)a.plan); cudaFree(a.scratch.partial_o); cudaFree(a.scratch.partial_lse); cudaFree(a.scratch.counters);
}

int main(int argc, char** argv) {
  CK(cudaFree(nullptr)); cudaDeviceProp prop; CK(cudaGetDeviceProperties(&prop, 0)); sms = prop.multiProcessorCount; std::printf("%s %d SMs\n", prop.name, sms);
  CK(cuModuleLoad(&module, argv[1])); std::FILE* json = std::fopen(argv[2], "w");
  auto rep = [](int n, int x) { return std::vector<int>(n, x); };
  std::vector<int> zipf; { double h = 0; for (int i = 1; i <= 64; ++i) h += 1.0 / i; for (int i = 1; i <= 64; ++i) zipf.push_back(std::max(1, int(64 * 4096 / h / i))); }
  std::vector<Case> cases = {
    {"small decode", {1,1,1,1,1}, {1,17,0,1000,64}, 32, 8, 16, false, "p16", "p64", true},
    {"small decode page 1 7/1", {1,1,1}, {300,5,129}, 7, 1, 1, false, "p16", "p64", true},
    {"spec causal q4 p16", {4,4,4}, {10,4,1000}, 32, 8, 16, true, "p16", "p16", true},
    {"prefill causal p64", {67,1,130,5}, {67,500,300,5}, 8, 2, 3, true, "p16", "p64", true},
    {"prefill causal p128 q>kv", {67,300}, {20,300}, 28, 4, 16, true, "p16", "p128", true},
    {"prefill full r128", {100,65}, {333,64}, 8, 8, 0, false, "p16", "r128", true},
    {"prefill causal r128 split", {128}, {9000}, 4, 1, 0, true, "p16", "r128", true},
    {"causal 1x16384 ragged", {16384}, {16384}, 32, 8, 0, true, "p16", "r128", false},
    {"causal 1x16384 page16", {16384}, {16384}, 32, 8, 16, true, "p16", "p128", false},
    {"causal 1x16384 page1", {16384}, {16384}, 32, 8, 1, true, "p16", "p128", false},
    {"full 1x8192 ragged", {8192}, {8192}, 32, 8, 0, false, "p16", "r128", false},
    {"decode 128x8192 page16", rep(128,1), rep(128,8192), 32, 8, 16, false, "p16", "p64", false},
    {"decode zipf 64x4096 page16", rep(64,1), zipf, 32, 8, 16, false, "p16", "p64", false},
    {"decode 16x1024 page16", rep(16,1), rep(16,1024), 32, 8, 16, false, "p16", "p64", false},
    {"decode 1x32768 page16", rep(1,1), rep(1,32768), 32, 8, 16, false, "p16", "p64", false},
    {"decode 128x8192 page1", rep(128,1), rep(128,8192), 32, 8, 1, false, "p16", "p64", false},
  };
  for (auto& c : cases) run_case(c, json);
  std::fclose(json);
}
