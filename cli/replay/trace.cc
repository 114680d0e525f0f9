#include "cli/replay/trace.h"

#include "cli/replay/row_parsers.h"
#include "kvloom/support/check.h"

namespace kvloom::replay {
namespace {

bool is_blank(std::string_view text) { return text.find_first_not_of(" \t") == std::string_view::npos; }

char first_character(std::string_view text) {
  const size_t at = text.find_first_not_of(" \t");
  return at == std::string_view::npos ? '\0' : text[at];
}

}  // namespace

std::string excerpt(std::string_view text) {
  std::string out = "'";
  for (const char c : text.substr(0, 40)) {
    if (c >= 0x20 && c < 0x7f) {
      out += c;
    } else {
      out += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    }
  }
  return out + (text.size() > 40 ? "...'" : "'");
}

TraceReader::TraceReader(std::string name, std::unique_ptr<ByteSource> source, bool skip_bad)
    : name_(std::move(name)), source_(std::move(source)), lines_(*source_), skip_bad_(skip_bad) {}

void TraceReader::refuse(int64_t line, const std::string& why) {
  const std::string message = fmt::format("trace {}: line {}: {}", name_, line, why);
  if (!skip_bad_) throw Error(ErrorCode::invalid_argument, message + "; mend the row, or leave such rows out with --skip-bad");
  if (skipped_++ == 0) first_skipped_ = message;
}

/// The next line that is not blank. Blank lines are refused unless nothing but blank lines follows.
bool TraceReader::next_row(Line& line) {
  int64_t blanks = 0, first_blank = 0;
  while (lines_.next(line)) {
    if (line.too_long || !is_blank(line.text)) {
      for (int64_t i = 0; i < blanks; ++i) refuse(first_blank + i, "got an empty row, wanted a request");
      return true;
    }
    if (blanks++ == 0) first_blank = line.number;
  }
  return false;
}

void TraceReader::choose_parser(const Line& first) {
  const char c = first_character(first.text);
  std::string error;
  if (c == '{') {
    parser_ = mooncake_parser();
    has_pending_ = true;
  } else if (c >= '0' && c <= '9') {  // a CSV that lost its header
    parser_ = azure_parser("TIMESTAMP,ContextTokens,GeneratedTokens", error);
    has_pending_ = true;
  } else {
    parser_ = azure_parser(first.text, error);
  }
  if (!parser_) {
    fail(ErrorCode::invalid_argument,
         "trace {}: line {}: format: {}; wanted a CSV header with TIMESTAMP,ContextTokens,GeneratedTokens (Azure) or a JSON object "
         "(Mooncake)",
         name_, first.number, error);
  }
  if (has_pending_) pending_ = first;
}

bool TraceReader::next(TraceRequest& out) {
  Line line;
  if (!started_) {
    started_ = true;
    if (!next_row(line)) return false;
    choose_parser(line);
  }
  while (has_pending_ || next_row(line)) {
    if (has_pending_) line = pending_;
    has_pending_ = false;
    if (line.too_long) {
      refuse(line.number, fmt::format("row: got more than {} bytes, wanted a request", LineReader::kMaxLineBytes));
      continue;
    }
    out = TraceRequest{};
    out.line = line.number;
    std::string why = parser_->parse(line.text, out);
    if (why.empty() && first_ns_ >= 0 && out.arrival_ns < last_ns_) {
      why = fmt::format("time: got {:.7f} s before the row above, wanted rows sorted by arrival", double(last_ns_ - out.arrival_ns) * 1e-9);
    }
    if (!why.empty()) {
      refuse(line.number, why);
      continue;
    }
    if (first_ns_ < 0) first_ns_ = out.arrival_ns;
    last_ns_ = out.arrival_ns;
    out.arrival_ns -= first_ns_;
    return true;
  }
  return false;
}

TraceReader open_trace(const std::string& path, bool skip_bad) {
  return TraceReader(path == "-" ? "stdin" : path, std::make_unique<FileSource>(path), skip_bad);
}

}  // namespace kvloom::replay
