#include "kvloom/cpu/merge_states.h"

#include "kvloom/base/math.h"

#include <cmath>

namespace kvloom::cpu {
namespace {

constexpr int64_t kBlock = 256;               // dims merged at once: fp32 sums on the stack
constexpr int64_t kRowsTogether = 16;         // rows a thread takes
constexpr int64_t kSerialElements = 1 << 16;  // below this, waking threads costs more than the merge

bool is_empty(float lse) { return std::isinf(lse); }

/// The largest LSE of the live states (NaN if one is NaN), how many live, and the sum of exp(lse - largest).
struct Sum {
  float largest = neg_inf();
  float sum = 0.0f;
  int64_t live = 0;
};

Sum sum_of(const StateList* lists, int32_t num_lists) {
  Sum s;
  for (int32_t l = 0; l < num_lists; ++l) {
    for (int64_t i = 0; i < lists[l].count; ++i) {
      const float lse = lists[l].lse[i * lists[l].lse_step];
      if (is_empty(lse)) continue;
      ++s.live;
      if (!(lse <= s.largest)) s.largest = lse;
      if (std::isnan(lse)) return s;
    }
  }
  for (int32_t l = 0; l < num_lists; ++l) {
    for (int64_t i = 0; i < lists[l].count; ++i) {
      const float lse = lists[l].lse[i * lists[l].lse_step];
      if (!is_empty(lse)) s.sum += std::exp(lse - s.largest);
    }
  }
  return s;
}

/// acc [n] = the weighed sum of dims [first, first + n) of all live states.
void add_block(const StateList* lists, int32_t num_lists, const Sum& s, int64_t first, int64_t n, const ElementRows& rows, float* acc) {
  bool begun = false;
  for (int32_t l = 0; l < num_lists; ++l) {
    const StateList& list = lists[l];
    const int64_t size = size_of(list.dtype);
    for (int64_t i = 0; i < list.count; ++i) {
      const float lse = list.lse[i * list.lse_step];
      if (is_empty(lse)) continue;
      const float weight = s.live == 1 && !std::isnan(lse) ? 1.0f : std::exp(lse - s.largest) / s.sum;
      const char* const o = static_cast<const char*>(list.o) + (i * list.o_step + first) * size;
      (begun ? rows.add_weighed : rows.weigh)(o, list.dtype, n, weight, acc);
      begun = true;
    }
  }
  for (int64_t d = 0; !begun && d < n; ++d) acc[d] = 0.0f;
}

/// Calls f(row) for every row, by several threads where there is enough to do.
template <class F>
void for_rows(int64_t num_rows, int64_t elements, ThreadPool* pool, F&& f) {
  if (pool == nullptr || elements < kSerialElements) {
    for (int64_t r = 0; r < num_rows; ++r) f(r);
    return;
  }
  pool->for_each(ceil_div(num_rows, kRowsTogether), [&](int64_t block, int) {
    const int64_t end = min_of(num_rows, (block + 1) * kRowsTogether);
    for (int64_t r = block * kRowsTogether; r < end; ++r) f(r);
  });
}

const void* at(const StateRows& s, int64_t row, int64_t head) {
  return static_cast<const char*>(s.o) + (row * s.o_row + head * s.o_head) * size_of(s.dtype);
}
void* at(const MergedRows& s, int64_t row, int64_t head) {
  return static_cast<char*>(s.o) + (row * s.o_row + head * s.o_head) * size_of(s.dtype);
}

}  // namespace

void merge_lists(const StateList* lists, int32_t num_lists, int64_t dim, const ElementRows& rows, void* o, DType dtype, float* lse) {
  const Sum s = sum_of(lists, num_lists);
  float acc[kBlock];
  for (int64_t first = 0; first < dim; first += kBlock) {
    const int64_t n = min_of(kBlock, dim - first);
    add_block(lists, num_lists, s, first, n, rows, acc);
    rows.narrow(acc, n, dtype, static_cast<char*>(o) + first * size_of(dtype));
  }
  if (lse != nullptr) *lse = s.live <= 1 ? s.largest : s.largest + std::log(s.sum);
}

void merge_states(const StateRows& a, const StateRows& b, const MergedRows& out, int64_t num_rows, int64_t heads, int64_t dim,
                  const ElementRows& rows, ThreadPool* pool) {
  for_rows(num_rows, num_rows * heads * dim, pool, [&](int64_t r) {
    for (int64_t h = 0; h < heads; ++h) {
      const StateList lists[2] = {{at(a, r, h), a.dtype, 0, a.lse + r * a.lse_row + h * a.lse_head, 0, 1},
                                  {at(b, r, h), b.dtype, 0, b.lse + r * b.lse_row + h * b.lse_head, 0, 1}};
      merge_lists(lists, 2, dim, rows, at(out, r, h), out.dtype, out.lse ? out.lse + r * out.lse_row + h * out.lse_head : nullptr);
    }
  });
}

void merge_ranges(const StateRanges& g, const MergedRows& out, int64_t num_rows, int64_t heads, int64_t dim, const ElementRows& rows,
                  ThreadPool* pool) {
  const StateRows& in = g.in;
  const int64_t states = g.indptr ? g.indptr[num_rows] - g.indptr[0] : num_rows * g.fixed;
  const int64_t o_step = g.indptr ? in.o_row : g.o_state, lse_step = g.indptr ? in.lse_row : g.lse_state;
  for_rows(num_rows, (states + num_rows) * heads * dim, pool, [&](int64_t r) {
    const int64_t first = g.indptr ? g.indptr[r] : r, count = g.indptr ? g.indptr[r + 1] - first : g.fixed;
    for (int64_t h = 0; h < heads; ++h) {
      const StateList list{at(in, first, h), in.dtype, o_step, in.lse + first * in.lse_row + h * in.lse_head, lse_step, count};
      merge_lists(&list, 1, dim, rows, at(out, r, h), out.dtype, out.lse ? out.lse + r * out.lse_row + h * out.lse_head : nullptr);
    }
  });
}

}  // namespace kvloom::cpu
