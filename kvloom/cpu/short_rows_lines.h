// Which cache lines a kernel will want next, in the order of their addresses, and a cursor that fetches them one at a time between
// arithmetic. The order is the memory's, not the kernel's: whole pages in sequence keep address translation and the hardware's own
// prefetchers with us, whatever order the arithmetic visits heads in.
#pragma once

#include "kvloom/base/math.h"

namespace kvloom::cpu {

inline constexpr int64_t kLineBytes = 64;

/// Bytes [begin, end), from the start of a line.
struct LineRun {
  const char* begin;
  const char* end;
};

/// Appends `bytes` bytes at `p` to the runs; grows the last run where they adjoin.
KVLOOM_HD void append_run(LineRun* runs, int32_t& count, const char* p, int64_t bytes) {
  if (count > 0 && runs[count - 1].end == p) {
    runs[count - 1].end = p + bytes;
    return;
  }
  const auto offset = static_cast<int64_t>(reinterpret_cast<uintptr_t>(p) % kLineBytes);
  runs[count++] = {p - offset, p + bytes};
}

/// `count` rows of `bytes` bytes, `apart` bytes from one to the next.
KVLOOM_HD void append_rows(LineRun* runs, int32_t& n, const char* p, int64_t count, int64_t apart, int64_t bytes) {
  if (apart == bytes) return append_run(runs, n, p, count * bytes);
  for (int64_t i = 0; i < count; ++i) append_run(runs, n, p + i * apart, bytes);
}

class LineCursor {
 public:
  /// Nothing to fetch.
  LineCursor() = default;
  /// Runs [0, count), which must outlive the cursor.
  KVLOOM_HD LineCursor(const LineRun* runs, int32_t count) : next_(runs), last_(runs + count) { advance(); }

  /// The address of the next `count` lines, for the caller to fetch one by one between products (a branch there would cost more than the
  /// lines). At the end of a run they are fetched here, and what is returned is good for nothing but to be fetched in vain.
  KVLOOM_HD const char* take(int count) {
    const char* const lines = line_;
    if (end_ - lines > count * kLineBytes) [[likely]] {
      line_ = lines + count * kLineBytes;
      return lines;
    }
    LineCursor rest = *this;  // whose address may leave the registers
    rest.fetch_over_end(count);
    *this = rest;
    return &idle_;
  }

  /// Fetches the next line; nothing when there is none left.
  KVLOOM_HD void fetch() {
    __builtin_prefetch(line_, 0, 3);
    line_ += kLineBytes;
    if (line_ >= end_) [[unlikely]]
      advance();
  }
  KVLOOM_HD bool done() const { return end_ == &idle_ + 1; }

 private:
  __attribute__((noinline, cold)) void fetch_over_end(int count) {
    for (int j = 0; j < count; ++j) fetch();
  }
  KVLOOM_HD void advance() {
    if (next_ != last_) {
      line_ = next_->begin;
      end_ = next_->end;
      ++next_;
    } else {
      line_ = &idle_;
      end_ = &idle_ + 1;
    }
  }

  static constexpr char idle_ = 0;  // fetched for want of anything better
  const char* line_ = &idle_;
  const char* end_ = &idle_ + 1;
  const LineRun* next_ = nullptr;
  const LineRun* last_ = nullptr;
};

}  // namespace kvloom::cpu
