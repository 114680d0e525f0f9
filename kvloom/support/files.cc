#include "kvloom/support/files.h"

#include "kvloom/support/format.h"

#include <dirent.h>
#include <fcntl.h>
#include <glob.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>

namespace kvloom {
namespace {

/// What errno says about doing `what`.
std::string fault(const char* what, const std::string& path) { return kvloom::format("{} {}: {}", what, path, std::strerror(errno)); }

bool write_all(int file, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::write(file, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    bytes.remove_prefix(size_t(n));
  }
  return true;
}

/// Reads `file`, which is `path`, to its end and closes it.
bool read_to_end(int file, const std::string& path, std::string& bytes, std::string& why) {
  bytes.clear();
  char part[1 << 16];
  ssize_t n;
  while ((n = ::read(file, part, sizeof part)) > 0 || (n < 0 && errno == EINTR)) {
    if (n > 0) bytes.append(part, size_t(n));
  }
  if (n < 0) why = fault("read", path);
  ::close(file);
  return n == 0;
}

}  // namespace

bool read_file(const std::string& path, std::string& bytes, std::string& why) {
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return why = fault("open", path), false;
  struct stat what;
  if (::fstat(file, &what) == 0 && (S_ISCHR(what.st_mode) || S_ISBLK(what.st_mode)) && ::isatty(file) == 0) {  // some never end
    ::close(file);
    return why = kvloom::format("read {}: got a device, wanted a file", path), false;
  }
  return read_to_end(file, path, bytes, why);
}

bool read_plain_file(const std::string& path, std::string& bytes, std::string& why) {
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // a pipe is opened without a writer
  if (file < 0) return why = fault("open", path), false;
  struct stat what;
  if (::fstat(file, &what) == 0 && S_ISREG(what.st_mode)) return read_to_end(file, path, bytes, why);
  ::close(file);
  return why = kvloom::format("read {}: got no plain file, wanted one", path), false;
}

bool publish_file(const std::string& path, std::string_view bytes, std::string& why) {
  static std::atomic<unsigned> number{0};
  const std::string own = kvloom::format("{}.{}.{}.part", path, ::getpid(), number.fetch_add(1));
  const int file = ::open(own.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
  if (file < 0) return why = fault("create", own), false;
  bool good = write_all(file, bytes);
  if (!good) why = fault("write", own);
  if (::close(file) != 0 && good) good = false, why = fault("close", own);
  if (good && ::rename(own.c_str(), path.c_str()) != 0) good = false, why = fault("rename to", path);
  if (!good) ::unlink(own.c_str());
  return good;
}

bool make_folders(const std::string& path, std::string& why) {
  for (size_t end = path.find('/', 1);; end = path.find('/', end + 1)) {
    const std::string part = path.substr(0, end);
    struct stat s;
    if (::stat(part.c_str(), &s) == 0) {
      if (!S_ISDIR(s.st_mode)) return why = part + " is not a folder", false;
    } else if (::mkdir(part.c_str(), 0700) != 0 && errno != EEXIST) {
      return why = fault("make folder", part), false;
    }
    if (end == std::string::npos) return true;
  }
}

std::string temporary_folder() {
  const std::string asked = environment("TMPDIR");
  return asked.empty() ? "/tmp" : asked;
}

bool write_temporary(std::string_view bytes, std::string& path, std::string& why) {
  path = temporary_folder() + "/kvloom-XXXXXX";
  const int file = ::mkostemp(path.data(), O_CLOEXEC);
  if (file < 0) return why = fault("create", path), false;
  bool good = write_all(file, bytes);
  if (!good) why = fault("write", path);
  if (::close(file) != 0 && good) good = false, why = fault("close", path);
  if (!good) ::unlink(path.c_str());
  return good;
}

FileLock::FileLock(const std::string& path, void (*waiting)(const void*), const void* context) : path_(path) {
  file_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (file_ < 0) return;
  if (::flock(file_, LOCK_EX | LOCK_NB) == 0) return;
  if (errno == EWOULDBLOCK) {
    waiting(context);
    while (::flock(file_, LOCK_EX) != 0) {
      if (errno == EINTR) continue;
      break;
    }
    return;
  }
  ::close(file_);  // a file system without locks
  file_ = -1;
}

FileLock::~FileLock() {
  if (file_ < 0) return;
  ::unlink(path_.c_str());
  ::close(file_);
}

std::vector<std::string> names_in(const std::string& folder, std::string& why) {
  std::vector<std::string> names;
  why.clear();
  DIR* const open = ::opendir(folder.c_str());
  if (open == nullptr) {
    if (errno != ENOENT && errno != ENOTDIR) why = fault("read folder", folder);
    return names;
  }
  const auto next = [open] { return errno = 0, ::readdir(open); };  // its end and its faults differ by errno alone
  for (const dirent* at = next(); at != nullptr; at = next()) {
    const std::string name = at->d_name;
    if (name != "." && name != "..") names.push_back(name);
  }
  if (errno != 0) why = fault("read folder", folder);
  ::closedir(open);
  std::sort(names.begin(), names.end());
  return names;
}

std::string plain_pattern(const std::string& path) {
  std::string pattern;
  for (const char c : path) {
    if (c == '*' || c == '?' || c == '[' || c == '\\') pattern += '\\';
    pattern += c;
  }
  return pattern;
}

std::vector<std::string> matching_paths(const std::string& pattern) {
  std::vector<std::string> paths;
  glob_t found;
  if (::glob(pattern.c_str(), 0, nullptr, &found) == 0) {
    for (size_t i = 0; i < found.gl_pathc; ++i) paths.emplace_back(found.gl_pathv[i]);
  }
  ::globfree(&found);
  return paths;
}

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : "";
}

}  // namespace kvloom
