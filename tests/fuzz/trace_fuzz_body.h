// What every input must satisfy, whoever makes it: libFuzzer (trace_fuzz.cc) and the plain test (tests/replay/trace_fuzz_test.cc).
#pragma once

#include "cli/replay/trace.h"
#include "kvloom/support/error.h"

#include <cstdlib>

namespace kvloom::replay {

/// Reads `text` as a trace, strictly and leniently, and aborts if a promise of the reader is broken: only Error(invalid_argument) is
/// thrown; requests come sorted and within bounds; lenient reading finds what strict reading found before its first error.
inline void fuzz_trace(std::string_view text) {
  const auto demand = [](bool ok) {
    if (!ok) std::abort();
  };
  int64_t counts[2] = {0, 0};
  bool failed[2] = {false, false};
  for (const bool skip_bad : {false, true}) {
    TraceReader reader("fuzz", std::make_unique<MemorySource>(text), skip_bad);
    int64_t last_ns = 0, last_line = 0;
    try {
      for (TraceRequest r; reader.next(r); ++counts[skip_bad]) {
        demand(r.arrival_ns >= last_ns && r.line > last_line);
        demand(counts[skip_bad] > 0 || r.arrival_ns == 0);
        demand(r.prompt_tokens >= 1 && r.prompt_tokens <= kMaxTraceTokens);
        demand(r.output_tokens >= 0 && r.output_tokens <= kMaxTraceTokens);
        demand(r.blocks.empty() || int64_t(r.blocks.size()) == (r.prompt_tokens + r.block_tokens - 1) / r.block_tokens);
        last_ns = r.arrival_ns;
        last_line = r.line;
      }
    } catch (const Error& e) {
      demand(e.code() == ErrorCode::invalid_argument);
      demand(std::string_view(e.what()).find("trace fuzz: line ") == 0);
      failed[skip_bad] = true;
    }
    demand(skip_bad || reader.skipped_rows() == 0);
    if (skip_bad && !failed[1]) demand((reader.skipped_rows() > 0) == failed[0]);
  }
  demand(counts[1] >= counts[0]);
}

}  // namespace kvloom::replay
