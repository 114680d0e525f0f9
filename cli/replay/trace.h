// Request traces: who arrived when, with how long a prompt, asking for how many tokens. Three sources, one stream of requests:
//   Azure LLM inference CSV   TIMESTAMP,ContextTokens,GeneratedTokens      (found by the header's names)
//   Mooncake JSONL            {"timestamp": ms, "input_length": n, "output_length": n, "hash_ids": [one id a block of 512 tokens]}
//   synthetic                 synthetic_trace.h
#pragma once

#include "cli/replay/line_reader.h"

#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace kvloom::replay {

/// No request may be longer than this many tokens, prompt or output: beyond it a row is a mistake.
inline constexpr int64_t kMaxTraceTokens = int64_t(1) << 24;

struct TraceRequest {
  int64_t line = 0;        // of the file; synthetic: 1, 2, ...
  int64_t arrival_ns = 0;  // since the first request
  int64_t prompt_tokens = 0;
  int64_t output_tokens = 0;
  /// Content of the prompt, one id a block of `block_tokens` tokens (the last may be partial): requests whose ids begin alike share that
  /// prefix. Empty: shares nothing with anybody.
  std::vector<uint64_t> blocks;
  int32_t block_tokens = 512;
};

/// What a format must know: how to read one row. `parse` returns "" and fills `out` (arrival_ns absolute), or says what is wrong.
class RowParser {
 public:
  virtual ~RowParser() = default;
  virtual std::string parse(std::string_view row, TraceRequest& out) = 0;
  virtual const char* format() const = 0;
};

/// Reads requests one by one. A bad row (truncated, empty, not sorted by time, not a number, negative, huge) throws Error(invalid_argument)
/// that names the file, the line and what was wanted; with `skip_bad` it is counted and left out.
class TraceReader {
 public:
  TraceReader(std::string name, std::unique_ptr<ByteSource> source, bool skip_bad);
  TraceReader(const TraceReader&) = delete;
  TraceReader& operator=(const TraceReader&) = delete;

  /// False at the end of the trace.
  bool next(TraceRequest& out);

  int64_t skipped_rows() const { return skipped_; }
  /// What the first skipped row was refused for; "" if none was.
  const std::string& first_skipped() const { return first_skipped_; }
  /// "azure-csv", "mooncake-jsonl", or "empty".
  const char* format() const { return parser_ ? parser_->format() : "empty"; }

 private:
  bool next_row(Line& line);
  void choose_parser(const Line& first);
  void refuse(int64_t line, const std::string& why);

  std::string name_;
  std::unique_ptr<ByteSource> source_;
  LineReader lines_;
  bool skip_bad_;
  std::unique_ptr<RowParser> parser_;
  Line pending_;  // the first row, when it is data rather than a header
  bool has_pending_ = false;
  bool started_ = false;
  int64_t first_ns_ = -1;
  int64_t last_ns_ = 0;
  int64_t skipped_ = 0;
  std::string first_skipped_;
};

/// The file at `path` ("-" is stdin).
TraceReader open_trace(const std::string& path, bool skip_bad);

/// At most 40 bytes of `text`, printable, in quotes: for messages.
std::string excerpt(std::string_view text);

}  // namespace kvloom::replay
