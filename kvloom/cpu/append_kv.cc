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

const char* at(const TokenRows& x, int64_t token, int64_t head) {
  return static_cast<const char*>(x.data) + (token * x.token + head * x.head) * size_of(x.dtype);
}

/// One side (K or V) of a token: where it goes and what happens on the way.
struct Side {
  const TokenRows* from;
  const PageRows* to;
  float scale;
  const float* scale_per_head;
  bool rotated;
};

void append_side(const AppendParams& p, const ElementRows& rows, const Side& side, int64_t token, RowMemory& m) {
  const int64_t page = p.slot[token] / p.page_size, place = p.slot[token] % p.page_size;
  const int32_t dim = side.from->dim, size = size_of(p.kv_dtype);
  for (int32_t h = 0; h < p.num_kv_heads; ++h) {
    char* const out = static_cast<char*>(side.to->data) + (page * side.to->page + place * side.to->token + h * side.to->head) * size;
    const char* const in = at(*side.from, token, h);
    const float scale = side.scale_per_head ? side.scale_per_head[h] : side.scale;
    if (side.from->dtype == p.kv_dtype && !side.rotated && scale == 1.0f) {
      std::memcpy(out, in, size_t(dim) * size_t(size));
      continue;
    }
    float* const row = m.row.data();
    rows.widen(in, side.from->dtype, dim, row);
    if (side.rotated) rotate(p.rope.mode, m.turn, row);
    if (scale != 1.0f) {
      for (int32_t d = 0; d < dim; ++d) row[d] /= scale;
    }
    rows.narrow(row, dim, p.kv_dtype, out);
  }
}

}  // namespace

void append_kv(const AppendParams& p, const ElementRows& rows, ThreadPool* pool) {
  const bool rotated = p.rope.mode != RopeMode::none;
  const std::vector<double> frequency = frequencies(p.rope, p.k_new.dim);
  const Side k{&p.k_new, &p.k, p.scale.k, p.scale.k_per_head, rotated}, v{&p.v_new, &p.v, p.scale.v, p.scale.v_per_head, false};
  const size_t longest = size_t(max_of(p.k_new.dim, p.v_new.dim));
  for_tokens<RowMemory>(p.num_tokens, p.num_tokens * p.num_kv_heads * (p.k_new.dim + p.v_new.dim), pool, [&](int64_t t, RowMemory& m) {
    if (p.slot[t] < 0) return;
    m.row.resize(longest);
    if (rotated) m.turn.set(frequency, p.rope_pos[t]);
    append_side(p, rows, k, t, m);
    if (p.v_new.dim > 0) append_side(p, rows, v, t, m);
  });
}

void apply_rope(const TokenRows& x, int64_t num_tokens, int32_t num_heads, const int32_t* pos, const RopeSpec& rope,
                const ElementRows& rows, ThreadPool* pool) {
  const std::vector<double> frequency = frequencies(rope, x.dim);
  const auto turned = int64_t(frequency.size()) * 2;
  for_tokens<RowMemory>(num_tokens, num_tokens * num_heads * x.dim, pool, [&](int64_t t, RowMemory& m) {
    m.row.resize(size_t(x.dim));
    m.turn.set(frequency, pos[t]);
    for (int32_t h = 0; h < num_heads; ++h) {
      char* const row = const_cast<char*>(at(x, t, h));
      rows.widen(row, x.dtype, turned, m.row.data());
      rotate(rope.mode, m.turn, m.row.data());
      rows.narrow(m.row.data(), turned, x.dtype, row);
    }
  });
}

}  // namespace kvloom::cpu
