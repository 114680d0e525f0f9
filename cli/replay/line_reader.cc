#include "cli/replay/line_reader.h"

#include "kvloom/support/check.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace kvloom::replay {

FileSource::FileSource(const std::string& path) : path_(path), file_(path == "-" ? stdin : std::fopen(path.c_str(), "rb")) {
  if (!file_) fail(ErrorCode::io, "trace {}: cannot open: {}; name a file that exists and can be read", path, std::strerror(errno));
}

FileSource::~FileSource() {
  if (file_ != stdin) std::fclose(file_);
}

size_t FileSource::read(char* out, size_t size) {
  const size_t got = std::fread(out, 1, size, file_);
  if (got < size && std::ferror(file_)) {
    fail(ErrorCode::io, "trace {}: read failed: {}; name a file that can be read to its end", path_, std::strerror(errno));
  }
  return got;
}

size_t MemorySource::read(char* out, size_t size) {
  const size_t n = std::min(size, rest_.size());
  std::memcpy(out, rest_.data(), n);
  rest_.remove_prefix(n);
  return n;
}

bool LineReader::fill() {
  begin_ = 0;
  end_ = source_.read(buffer_, sizeof buffer_);
  return end_ > 0;
}

bool LineReader::next(Line& out) {
  line_.clear();
  bool too_long = false;
  bool any = false;
  while (begin_ < end_ || fill()) {
    any = true;
    const char* from = buffer_ + begin_;
    const char* newline = static_cast<const char*>(std::memchr(from, '\n', end_ - begin_));
    const size_t length = newline ? size_t(newline - from) : end_ - begin_;
    const size_t room = kMaxLineBytes - line_.size();
    line_.append(from, std::min(length, room));
    too_long |= length > room;
    begin_ += length + (newline ? 1 : 0);
    if (newline) break;
  }
  if (!any) return false;
  ++number_;
  std::string_view text = line_;
  if (number_ == 1 && text.substr(0, 3) == "\xef\xbb\xbf") text.remove_prefix(3);
  if (!too_long && !text.empty() && text.back() == '\r') text.remove_suffix(1);
  out = {text, number_, too_long};
  return true;
}

}  // namespace kvloom::replay
