// The kernels of device/any on the emulated GPU, against the CPU backend: same states, same bytes in the pages.
#include "kvloom/device/any/append_kv.cuh"
#include "kvloom/device/any/merge_states.cuh"

#include "kvloom/cpu/append_kv.h"
#include "kvloom/cpu/merge_states.h"

#include <cstdio>
#include <random>
#include <vector>

using namespace kvloom;

namespace {
std::mt19937 g(5);
int below(int n) { return int(g() % unsigned(n)); }
float normal() { return std::normal_distribution<float>()(g); }
DType some_type(bool narrow) {
  const DType t[5] = {DType::f32, DType::f16, DType::bf16, DType::e4m3, DType::e5m2};
  return t[below(narrow ? 5 : 3)];
}
int bad = 0, wide = 0;

double worst_gap(const std::vector<char>& a, const std::vector<char>& b, DType t) {
  double worst = 0;
  for (int64_t i = 0; i < int64_t(a.size()) / size_of(t); ++i) {
    const double x = load_as_float(a.data(), t, i), y = load_as_float(b.data(), t, i);
    if ((x == x) != (y == y)) return 1e9;
    if (x == x && x != y) worst = std::max(worst, std::fabs(x - y) / std::max(1.0, std::fabs(y)));
  }
  return worst;
}
double ulp(DType t) { return t == DType::f32 ? 2e-6 : t == DType::f16 ? 1.0 / 1024 : t == DType::bf16 ? 1.0 / 128 : t == DType::e4m3 ? 1.0 / 8 : 1.0 / 4; }

void check(bool ok, const char* what, int i, double gap) {
  if (ok) return;
  ++bad;
  std::printf("%s case %d: gap %g\n", what, i, gap);
}

void merge_case(int i) {
  const int rows = below(5), heads = 1 + below(3), dim = 1 + below(200), kind = below(3), states = kind == 0 ? 2 : below(6);
  const DType in = some_type(false), out = some_type(false);
  std::vector<int64_t> indptr{0};
  for (int r = 0; r < rows; ++r) indptr.push_back(indptr.back() + below(40));
  const int64_t total = kind == 2 ? indptr.back() : int64_t(rows) * states;
  std::vector<char> o(size_t(total * heads * dim * size_of(in)) + 16);
  std::vector<float> lse(size_t(total * heads) + 4);
  for (int64_t e = 0; e < total * heads * dim; ++e) store_from_float(o.data(), in, e, normal());
  for (auto& l : lse) {
    const int k = below(8);
    l = k == 0 ? neg_inf() : k == 1 ? -neg_inf() : k == 2 && below(20) == 0 ? NAN : normal() * (k == 3 ? 60.0f : 3.0f);
    if (k < 2 && &l - lse.data() < total * heads) {  // what an empty state holds doesn't matter
      for (int d = 0; d < dim; ++d) store_from_float(o.data(), in, (&l - lse.data()) * dim + d, NAN);
    }
  }
  std::vector<char> got(size_t(rows * heads * dim * size_of(out)) + 16), want = got;
  std::vector<float> got_lse(size_t(rows * heads) + 1), want_lse = got_lse;
  MergeArgs a;
  a.num_rows = rows, a.heads = heads, a.dim = dim, a.dtype = out, a.o = got.data(), a.o_row = heads * dim, a.o_head = dim;
  a.lse = got_lse.data(), a.lse_row = heads, a.lse_head = 1;
  const auto& rows_of = cpu::element_rows(cpu::Target::portable);
  if (kind == 0) {
    const int64_t half = int64_t(rows) * heads;
    for (int l = 0; l < 2; ++l) a.in[l] = {o.data() + l * half * dim * size_of(in), in, heads * dim, dim, 0, lse.data() + l * half, heads, 1, 0};
    a.lists = 2;
  } else if (kind == 1) {
    a.in[0] = {o.data(), in, states * heads * dim, dim, heads * dim, lse.data(), states * heads, 1, heads};
    a.fixed = states;
  } else {
    a.in[0] = {o.data(), in, heads * dim, dim, 0, lse.data(), heads, 1, 0};
    a.indptr = IndexView(indptr.data(), rows + 1);
  }
  MergeArgs on_cpu = a;
  on_cpu.o = want.data(), on_cpu.lse = want_lse.data();
  cpu::merge_states(on_cpu, rows_of, nullptr);
  simt::launch([](const void* p) { merge_states(*static_cast<const MergeArgs*>(p)); }, &a, 1 + below(3), 128, 0);
  const double gap = worst_gap(got, want, out);
  check(gap <= 2 * ulp(out), "merge", i, gap);
  for (int r = 0; r < rows * heads; ++r) {
    const float x = got_lse[size_t(r)], y = want_lse[size_t(r)];
    check(std::isnan(y) ? std::isnan(x) : x == y || std::fabs(x - y) <= 2e-6 * (1 + std::fabs(y)), "merge lse", i, x - y);
  }
}

void append_case(int i) {
  const int tokens = below(6), heads = 1 + below(3), page_size = 1 + below(5), pages = 8, dk = 2 + below(90), dv = below(3) ? 1 + below(80) : 0;
  const DType in = below(5) ? some_type(false) : DType::e4m3, kv = in == DType::e4m3 ? in : some_type(true);
  AppendArgs a;
  const bool hnd = below(2);
  std::vector<char> k_new(size_t(tokens * heads * dk * size_of(in)) + 16), v_new(size_t(tokens * heads * (dv + 1) * size_of(in)) + 16);
  for (int e = 0; e < tokens * heads * dk; ++e) store_from_float(k_new.data(), in, e, normal());
  for (int e = 0; e < tokens * heads * dv; ++e) store_from_float(v_new.data(), in, e, below(50) ? normal() : NAN);
  a.num_tokens = tokens, a.num_kv_heads = heads, a.page_size = page_size, a.kv_dtype = kv;
  a.k_new = {k_new.data(), in, heads * dk, dk, dk};
  a.v_new = {v_new.data(), in, heads * dv, dv, dv};
  std::vector<char> k(size_t(pages * page_size * heads * dk * size_of(kv)), 0x11), v(size_t(pages * page_size * heads * (dv + 1) * size_of(kv)), 0x11);
  std::vector<char> k2 = k, v2 = v;
  a.kv = {k.data(), v.data(), page_size * heads * dk, hnd ? dk : heads * dk, hnd ? page_size * dk : dk, page_size * heads * dv, hnd ? dv : heads * dv, hnd ? page_size * dv : dv, pages};
  std::vector<int64_t> slot;
  std::vector<int32_t> pos;
  for (int t = 0; t < tokens; ++t) slot.push_back(below(4) ? t * 3 % (pages * page_size) : -1), pos.push_back(below(3) ? below(1000000) : below(10));
  a.slot = slot.data(), a.rope_pos = pos.data();
  if (below(2) && in != DType::e4m3) {
    a.rope.mode = below(2) ? RopeMode::interleaved : RopeMode::half_split;
    a.rope.rotary_dim = below(2) ? 0 : 2 * (1 + below(dk / 2));
    if (dk % 2 && !a.rope.rotary_dim) a.rope.rotary_dim = dk - 1;
    if (below(2)) a.rope.scaling = 8, a.rope.low_freq_factor = 1, a.rope.high_freq_factor = 4;
  }
  std::vector<float> scales{0.5f, 2.0f, 1.0f};
  if (is_fp8(kv) && in != DType::e4m3) a.scale.k = 0.7f, a.scale.v = 1.5f, a.scale.k_per_head = below(2) ? scales.data() : nullptr;
  AppendArgs on_cpu = a;
  on_cpu.kv.k = k2.data(), on_cpu.kv.v = v2.data();
  cpu::append_kv(on_cpu, cpu::element_rows(cpu::Target::portable), nullptr);
  simt::launch([](const void* x) { append_kv(*static_cast<const AppendArgs*>(x)); }, &a, 1 + below(2), 128, 8 * ((dk + 1) / 2));
  const double gap = std::max(worst_gap(k, k2, kv), worst_gap(v, v2, kv));
  check(gap <= (a.rope.mode == RopeMode::none ? 0.0 : 1.01 * ulp(kv)), "append", i, gap);
}

/// In place, strided, with dims behind those that are rotated; some so that eight values can't be moved at once.
void rope_case(int i) {
  const int tokens = 1 + below(40), heads = 1 + below(11), eighth = below(3) ? 8 : 1, dim = eighth * (2 + below(12)), pad = eighth * below(3);
  RopeArgs a;
  a.x.dtype = below(6) ? (below(2) ? DType::bf16 : DType::f16) : DType::f32;
  a.x.dim = dim, a.x.head = dim + pad, a.x.token = a.x.head * heads + pad, a.heads = heads, a.num_tokens = tokens;
  a.rope.mode = below(2) ? RopeMode::interleaved : RopeMode::half_split;
  a.rope.rotary_dim = below(2) ? dim / 2 * 2 : 2 * (1 + below(dim / 2));
  std::vector<char> x(size_t(tokens * a.x.token * size_of(a.x.dtype)) + 64);
  const int shift = below(4) ? 0 : 2 * size_of(a.x.dtype);
  char* const begin = x.data() + (16 - reinterpret_cast<uintptr_t>(x.data()) % 16) % 16 + shift;
  for (int64_t e = 0; e < tokens * a.x.token; ++e) store_from_float(begin, a.x.dtype, e, normal());
  std::vector<char> want = x;
  std::vector<int32_t> pos;
  for (int t = 0; t < tokens; ++t) pos.push_back(below(3) ? below(1000000) : below(10));
  a.pos = pos.data();
  RopeArgs on_cpu = a;
  on_cpu.x.data = want.data() + (begin - x.data());
  a.x.data = begin;
  cpu::apply_rope(on_cpu, cpu::element_rows(cpu::Target::portable), nullptr);
  simt::launch([](const void* p) { apply_rope(*static_cast<const RopeArgs*>(p)); }, &a, 1 + below(3), 128, 8 * ((dim + 1) / 2));
  std::vector<char> got(begin, begin + tokens * a.x.token * size_of(a.x.dtype)), right(want.data() + (begin - x.data()), want.data() + (begin - x.data()) + int64_t(got.size()));
  const double gap = worst_gap(got, right, a.x.dtype);
  check(gap <= 1.01 * ulp(a.x.dtype), "rope", i, gap);
  wide += any::rotates_wide(a);
}
}  // namespace

int main() {
  for (int i = 0; i < 500; ++i) merge_case(i);
  for (int i = 0; i < 500; ++i) append_case(i);
  for (int i = 0; i < 500; ++i) rope_case(i);
  std::printf("1500 cases, %d bad; %d of 500 rotations eight values at a time\n", bad, wide);
  return bad != 0 || wide < 50 || wide > 450;
}
