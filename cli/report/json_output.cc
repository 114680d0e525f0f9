#include "cli/report/json_output.h"

#include "kvloom/support/check.h"

#include <unistd.h>
#include <cerrno>
#include <cstdio>
#include <cstring>

namespace kvloom::cli {
namespace {

void write_text(std::FILE* file, const std::string& text, const std::string& path) {
  const bool written = std::fwrite(text.data(), 1, text.size(), file) == text.size() && std::fflush(file) == 0;
  if (!written) {
    fail(ErrorCode::io, "--json {}: write failed: {} ({} bytes wanted); free some space or name another file", path, std::strerror(errno),
         text.size());
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

void write_json(const std::string& path, const nlohmann::ordered_json& value) {
  const std::string text = value.dump(2) + "\n";
  if (path == "-") return write_text(stdout, text, path);
  const bool replace = is_regular_target(path);
  const std::string target = replace ? path + ".tmp-" + std::to_string(getpid()) : path;
  std::FILE* file = std::fopen(target.c_str(), "wb");
  if (!file)
    fail(ErrorCode::io, "--json {}: cannot open: {}; name a file in a folder that exists and can be written", path, std::strerror(errno));
  try {
    write_text(file, text, path);
  } catch (...) {
    std::fclose(file);
    if (replace) std::remove(target.c_str());
    throw;
  }
  if (std::fclose(file) != 0 || (replace && std::rename(target.c_str(), path.c_str()) != 0)) {
    const int reason = errno;
    if (replace) std::remove(target.c_str());
    fail(ErrorCode::io, "--json {}: write failed: {}; free some space or name another file", path, std::strerror(reason));
  }
}

}  // namespace kvloom::cli
