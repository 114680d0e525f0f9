#include "cli/report/text_output.h"

#include "kvloom/support/check.h"

#include <unistd.h>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>

namespace kvloom::cli {
namespace {

void write_to(std::FILE* file, const char* option, const std::string& path, const std::string& text) {
  const bool written = std::fwrite(text.data(), 1, text.size(), file) == text.size() && std::fflush(file) == 0;
  if (!written) {
    fail(ErrorCode::io, "{} {}: write failed: {} ({} bytes wanted); free some space or name another file", option, path, std::strerror(errno), text.size());
  }
}

bool is_regular_target(const std::string& path) {
  // Devices and pipes (/dev/full, /dev/stderr, a fifo) are written in place: a rename would replace them.
  std::FILE* probe = std::fopen(path.c_str(), "rb");
  if (!probe) return true;
  const bool seekable = std::fseek(probe, 0, SEEK_END) == 0 && path.rfind("/dev/", 0) != 0;
  std::fclose(probe);
  return seekable;
}

}  // namespace

void write_text(const char* option, const std::string& path, const std::string& text) {
  if (path == "-") return write_to(stdout, option, path, text);
  const bool replace = is_regular_target(path);
  const std::string target = replace ? path + ".tmp-" + std::to_string(getpid()) : path;
  std::FILE* file = std::fopen(target.c_str(), "wb");
  if (!file) {
    fail(ErrorCode::io, "{} {}: cannot open: {}; name a file in a folder that exists and can be written", option, path, std::strerror(errno));
  }
  try {
    write_to(file, option, path, text);
  } catch (...) {
    std::fclose(file);
    if (replace) std::remove(target.c_str());
    throw;
  }
  if (std::fclose(file) != 0 || (replace && std::rename(target.c_str(), path.c_str()) != 0)) {
    const int reason = errno;
    if (replace) std::remove(target.c_str());
    fail(ErrorCode::io, "{} {}: write failed: {}; free some space or name another file", option, path, std::strerror(reason));
  }
}

void check_target(const char* option, const std::string& path) {
  if (path.empty() || path == "-") return;
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  require(access(folder.empty() ? "." : folder.c_str(), W_OK | X_OK) == 0 || std::filesystem::exists(path),
          "{} {}: got a folder that does not exist or can't be written, wanted one that can; name another file", option, path);
}

}  // namespace kvloom::cli
