#include "kvloom/support/process.h"

#include "kvloom/support/files.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

extern char** environ;

namespace kvloom {
namespace {

bool can_run(const std::string& path) {
  struct stat s;
  return ::stat(path.c_str(), &s) == 0 && S_ISREG(s.st_mode) && ::access(path.c_str(), X_OK) == 0;
}

std::string read_all(int file) {
  std::string text;
  char part[4096];
  for (;;) {
    const ssize_t n = ::read(file, part, sizeof part);
    if (n > 0) text.append(part, size_t(n));
    if (n == 0 || (n < 0 && errno != EINTR)) return text;
  }
}

}  // namespace

ProcessResult run_process(const std::vector<std::string>& words) {
  ProcessResult result;
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return result.output = std::strerror(errno), result;
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
  ::posix_spawn_file_actions_adddup2(&actions, ends[1], 1);
  ::posix_spawn_file_actions_adddup2(&actions, ends[1], 2);
  std::vector<char*> list;
  for (const std::string& w : words) list.push_back(const_cast<char*>(w.c_str()));
  list.push_back(nullptr);
  pid_t child = 0;
  const int failed = ::posix_spawn(&child, words[0].c_str(), &actions, nullptr, list.data(), environ);
  ::posix_spawn_file_actions_destroy(&actions);
  ::close(ends[1]);
  if (failed == 0) {
    result.started = true;
    result.output = read_all(ends[0]);
    int status = 0;
    while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
    }
    result.status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  } else {
    result.output = std::strerror(failed);
  }
  ::close(ends[0]);
  return result;
}

std::string find_program(const std::string& name) {
  if (name.find('/') != std::string::npos) return can_run(name) ? name : "";
  const std::string list = environment("PATH");
  for (size_t begin = 0; begin <= list.size();) {
    const size_t end = std::min(list.find(':', begin), list.size());
    const std::string path = (end > begin ? list.substr(begin, end - begin) : ".") + "/" + name;
    if (can_run(path)) return path;
    begin = end + 1;
  }
  return "";
}

}  // namespace kvloom
