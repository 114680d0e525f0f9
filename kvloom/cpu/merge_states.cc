#include "kvloom/cpu/merge_states.h"

#include "kvloom/base/math.h"

#include <cmath>

namespace kvloom::cpu {
namespace {

constexpr int64_t kBlock = 256;               // dims merged at once: fp32 sums on the stack
constexpr int64_t kRowsTogether = 16;         // rows a thread takes
constexpr int64_t kSerialElements = 1 << 16;  // below this, waking threads costs more than the merge

/// States that one output row may be the merge of: `count` of them, `o_step` and `lse_step` elements apart.
struct StateList {
  const void* o = nullptr;
  DType dtype = DType::f32;
  int64_t o_step = 0;
  const float* lse = nullptr;
  int64_t lse_step = 0;
  int64_t count = 0;
};

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

/// o [dim], *lse = merge of all states of the lists, in their order. `o` may be the O of one of the states, `lse` its LSE.
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

/// `count` states from row `row` of `s` on: one a row, or all of that row.
StateList list_at(const StateView& s, int64_t row, int64_t head, bool one_a_row, int64_t count) {
  const void* const o = static_cast<const char*>(s.o) + (row * s.o_row + head * s.o_head) * size_of(s.dtype);
  const float* const lse = s.lse + row * s.lse_row + head * s.lse_head;
  return {o, s.dtype, one_a_row ? s.o_row : s.o_state, lse, one_a_row ? s.lse_row : s.lse_state, count};
}

}  // namespace

void merge_states(const MergeArgs& args, const ElementRows& rows, ThreadPool* pool) {
  const bool two = args.lists == 2, ragged = !two && args.indptr.given();
  const int64_t states = two      ? 0
                         : ragged ? args.indptr[args.num_rows] - args.indptr[0]
                                  : args.num_rows * args.fixed;  // besides a row's own
  for_rows(args.num_rows, (states + args.num_rows) * args.heads * args.dim, pool, [&](int64_t r) {
    const int64_t first = ragged ? args.indptr[r] : r;
    const int64_t count = two ? 1 : ragged ? args.indptr[r + 1] - first : args.fixed;
    for (int64_t h = 0; h < args.heads; ++h) {
      const StateList lists[2] = {list_at(args.in[0], first, h, ragged, count), two ? list_at(args.in[1], r, h, false, 1) : StateList{}};
      void* const o = static_cast<char*>(args.o) + (r * args.o_row + h * args.o_head) * size_of(args.dtype);
      merge_lists(lists, args.lists, args.dim, rows, o, args.dtype, args.lse ? args.lse + r * args.lse_row + h * args.lse_head : nullptr);
    }
  });
}

}  // namespace kvloom::cpu
