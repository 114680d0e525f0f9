// Lines of a file or of a piece of memory, streamed: whatever the input, memory stays bounded.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>

namespace kvloom::replay {

/// Where bytes come from. read() fills up to `size` bytes and returns how many; 0 is the end.
class ByteSource {
 public:
  virtual ~ByteSource() = default;
  virtual size_t read(char* out, size_t size) = 0;
  /// It ended before its end: its last line may be a part of one.
  virtual bool stopped() const { return false; }
};

/// A file by name; "-" is stdin. Throws Error(io) that names the file and the reason. Where `stop` is set, it has no more bytes: a pipe may
/// never end.
class FileSource : public ByteSource {
 public:
  explicit FileSource(const std::string& path, const std::atomic<bool>* stop = nullptr);
  ~FileSource() override;
  FileSource(const FileSource&) = delete;
  FileSource& operator=(const FileSource&) = delete;
  size_t read(char* out, size_t size) override;
  bool stopped() const override { return stop_ != nullptr && stop_->load(std::memory_order_relaxed); }

 private:
  std::string path_;
  const std::atomic<bool>* stop_;
  std::FILE* file_;
};

/// Memory of the caller, which must outlive this.
class MemorySource : public ByteSource {
 public:
  explicit MemorySource(std::string_view bytes) : rest_(bytes) {}
  size_t read(char* out, size_t size) override;

 private:
  std::string_view rest_;
};

/// One line: `text` lives until the next call, without its line end (\n or \r\n) and, on line 1, without a UTF-8 byte order mark.
struct Line {
  std::string_view text;
  int64_t number = 0;     // from 1
  bool too_long = false;  // longer than kMaxLineBytes: `text` is only its beginning, and the rest is read by the next call
};

class LineReader {
 public:
  static constexpr size_t kMaxLineBytes = size_t(1) << 20;

  explicit LineReader(ByteSource& source) : source_(source) {}

  /// False at the end. A missing final newline is fine.
  bool next(Line& out);

 private:
  bool fill();
  void skip_line();

  ByteSource& source_;
  std::string line_;
  char buffer_[1 << 16];
  size_t begin_ = 0;
  size_t end_ = 0;
  int64_t number_ = 0;
  bool in_line_ = false;  // the rest of a line that was too long comes first
};

}  // namespace kvloom::replay
