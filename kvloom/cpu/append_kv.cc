#include "kvloom/cpu/append_kv.h"

#include "kvloom/attn/rope.h"
#include "kvloom/base/math.h"

#include <cstring>
#include <vector>

namespace kvloom::cpu {
namespace {

constexpr int64_t kTokensTogether = 16;       // tokens a thread takes
constexpr int64_t kSerialElements = 1 << 15;  // below this, waking threads costs more than the copy

/// Radians per position of each pair.
std::vector<double> frequencies(const RopeSpec& rope, int32_t head_dim) {
  std::vector<double> f(rope.mode == RopeMode::none ? 0 : size_t(rotary_dim(rope, head_dim) / 2));
  for (size_t i = 0; i < f.size(); ++i) f[i] = rope_frequency(rope, head_dim, int32_t(i));
  return f;
}

/// Cosines and sines of one position: shared by the heads of a token.
struct Turn {
  std::vector<float> cos, sin;

  void set(const std::vector<double>& frequency, int32_t pos) {
    cos.resize(frequency.size());
    sin.resize(frequency.size());
    for (size_t i = 0; i < frequency.size(); ++i) {
      const double angle = frequency[i] * pos;
      cos[i] = float(std::cos(angle));
      sin[i] = float(std::sin(angle));
    }
  }
};

void rotate(RopeMode mode, const Turn& turn, float* x) {
  const auto pairs = int64_t(turn.cos.size());
  const int64_t step = mode == RopeMode::interleaved ? 2 : 1, partner = mode == RopeMode::interleaved ? 1 : pairs;
  for (int64_t i = 0; i < pairs; ++i) {
    const float a = x[i * step], b = x[i * step + partner];
    x[i * step] = a * turn.cos[size_t(i)] - b * turn.sin[size_t(i)];
    x[i * step + partner] = b * turn.cos[size_t(i)] + a * turn.sin[size_t(i)];
  }
}

/// Calls f(token, memory) for all tokens; `memory` is the thread's own.
template <class Memory, class F>
void for_tokens(int64_t num_tokens, int64_t elements, ThreadPool* pool, F&& f) {
  if (pool == nullptr || elements < kSerialElements) {
    Memory memory;
    for (int64_t t = 0; t < num_tokens; ++t) f(t, memory);
    return;
  }
  std::vector<Memory> memory(static_cast<size_t>(pool->size()));
  pool->for_each(ceil_div(num_tokens, kTokensTogether), [&](int64_t block, int thread) {
    const int64_t end = min_of(num_tokens, (block + 1) * kTokensTogether);
    for (int64_t t = block * kTokensTogether; t < end; ++t) f(t, memory[size_t(thread)]);
  });
}

/// What a thread needs: one row in fp32, and the turn of its token.
struct RowMemory {
  std::vector<float> row;
  Turn turn;
};

char* at(const TokenView& x, int64_t token, int64_t head) {
  return static_cast<char*>(x.data) + (token * x.token + head * x.head) * size_of(x.dtype);
}

/// One side (K or V): where it goes and what happens on the way.
struct Side {
  const TokenView& from;
  char* to;
  int64_t page, token, head;  // strides of `to`
  float scale;
  const float* scale_per_head;
  bool rotated;
};

void append_side(const AppendArgs& args, const ElementRows& rows, const Side& side, int64_t token, RowMemory& m) {
  const int64_t page = args.slot[token] / args.page_size, place = args.slot[token] % args.page_size;
  const int32_t dim = side.from.dim, size = size_of(args.kv_dtype);
  for (int32_t h = 0; h < args.num_kv_heads; ++h) {
    char* const out = side.to + (page * side.page + place * side.token + h * side.head) * size;
    const char* const in = at(side.from, token, h);
    const float scale = side.scale_per_head ? side.scale_per_head[h] : side.scale;
    if (side.from.dtype == args.kv_dtype && !side.rotated && scale == 1.0f) {
      std::memcpy(out, in, size_t(dim) * size_t(size));
      continue;
    }
    float* const row = m.row.data();
    rows.widen(in, side.from.dtype, dim, row);
    if (side.rotated) rotate(args.rope.mode, m.turn, row);
    if (scale != 1.0f) {
      for (int32_t d = 0; d < dim; ++d) row[d] /= scale;
    }
    rows.narrow(row, dim, args.kv_dtype, out);
  }
}

}  // namespace

void append_kv(const AppendArgs& args, const ElementRows& rows, ThreadPool* pool) {
  const bool rotated = args.rope.mode != RopeMode::none;
  const std::vector<double> frequency = frequencies(args.rope, args.k_new.dim);
  const KvView& kv = args.kv;
  const auto written = [](const void* pages) { return static_cast<char*>(const_cast<void*>(pages)); };  // attention only reads such a view
  const Side k{args.k_new, written(kv.k), kv.k_page, kv.k_token, kv.k_head, args.scale.k, args.scale.k_per_head, rotated};
  const Side v{args.v_new, written(kv.v), kv.v_page, kv.v_token, kv.v_head, args.scale.v, args.scale.v_per_head, false};
  const int64_t elements = args.num_tokens * args.num_kv_heads * (args.k_new.dim + args.v_new.dim);
  const size_t longest = size_t(max_of(args.k_new.dim, args.v_new.dim));
  for_tokens<RowMemory>(args.num_tokens, elements, pool, [&](int64_t t, RowMemory& m) {
    if (args.slot[t] < 0) return;
    m.row.resize(longest);
    if (rotated) m.turn.set(frequency, args.rope_pos[t]);
    append_side(args, rows, k, t, m);
    if (args.v_new.dim > 0) append_side(args, rows, v, t, m);
  });
}

void apply_rope(const RopeArgs& args, const ElementRows& rows, ThreadPool* pool) {
  const TokenView& x = args.x;
  const std::vector<double> frequency = frequencies(args.rope, x.dim);
  const auto turned = int64_t(frequency.size()) * 2;
  for_tokens<RowMemory>(args.num_tokens, args.num_tokens * args.heads * x.dim, pool, [&](int64_t t, RowMemory& m) {
    m.row.resize(size_t(x.dim));
    m.turn.set(frequency, args.pos[t]);
    for (int32_t h = 0; h < args.heads; ++h) {
      char* const row = at(x, t, h);
      rows.widen(row, x.dtype, turned, m.row.data());
      rotate(args.rope.mode, m.turn, m.row.data());
      rows.narrow(m.row.data(), turned, x.dtype, row);
    }
  });
}

}  // namespace kvloom::cpu
