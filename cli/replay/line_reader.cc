#include "cli/replay/line_reader.h"

#include "kvloom/support/check.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace kvloom::replay {

FileSource::FileSource(const std::string& path, const std::atomic<bool>* stop)
    : path_(path), stop_(stop), file_(path == "-" ? stdin : std::fopen(path.c_str(), "rb")) {
  if (!file_) fail(ErrorCode::io, "trace {}: cannot open: {}; name a file that exists and can be read", path, std::strerror(errno));
  struct stat what;
  if (file_ == stdin || ::fstat(::fileno(file_), &what) != 0 || !(S_ISCHR(what.st_mode) || S_ISBLK(what.st_mode)) || ::isatty(::fileno(file_))) return;
  std::fclose(file_);  // some never end
  fail(ErrorCode::io, "trace {}: got a device, wanted a file or a pipe; - reads stdin", path);
}

FileSource::~FileSource() {
  if (file_ != stdin) std::fclose(file_);
}

size_t FileSource::read(char* out, size_t size) {
  if (stopped()) return 0;
  const size_t got = std::fread(out, 1, size, file_);
  if (got < size && std::ferror(file_)) {
    if (errno == EINTR && stopped()) return 0;
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

void LineReader::skip_line() {
  while (begin_ < end_ || fill()) {
    const char* from = buffer_ + begin_;
    const char* newline = static_cast<const char*>(std::memchr(from, '\n', end_ - begin_));
    begin_ = newline ? size_t(newline - buffer_) + 1 : end_;
    if (newline) return;
  }
}

bool LineReader::next(Line& out) {
  if (in_line_) skip_line();
  in_line_ = false;
  line_.clear();
  bool too_long = false;
  bool any = false, whole = false;
  while (begin_ < end_ || fill()) {
    any = true;
    const char* from = buffer_ + begin_;
    const char* newline = static_cast<const char*>(std::memchr(from, '\n', end_ - begin_));
    const size_t length = newline ? size_t(newline - from) : end_ - begin_;
    const size_t room = kMaxLineBytes - line_.size();
    line_.append(from, std::min(length, room));
    too_long |= length > room;
    begin_ += length + (newline ? 1 : 0);
    in_line_ = too_long && !newline;
    whole = newline || too_long;
    if (whole) break;
  }
  if (!any || (!whole && source_.stopped())) return false;
  ++number_;
  std::string_view text = line_;
  if (number_ == 1 && text.substr(0, 3) == "\xef\xbb\xbf") text.remove_prefix(3);
  if (!too_long && !text.empty() && text.back() == '\r') text.remove_suffix(1);
  out = {text, number_, too_long};
  return true;
}

}  // namespace kvloom::replay
