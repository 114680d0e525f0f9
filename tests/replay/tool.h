// The kvloom tool run as a user runs it.
#pragma once

#include "tests/support/temporary_folder.h"

#include <sys/wait.h>
#include <unistd.h>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

namespace kvloom::test {

inline bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

inline std::string read_file(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

/// A kvloom process with its output in files of a folder of its own; `out`: another place for stdout.
class Tool {
 public:
  explicit Tool(std::vector<std::string> arguments, const char* out = nullptr) {
    arguments.insert(arguments.begin(), std::string(KVLOOM_BINARY_DIR) + "/bin/kvloom");
    for (std::string& a : arguments) {
      if (a.rfind("@/", 0) == 0) a = folder_ / a.substr(2);  // "@/x": a file of this folder
    }
    pid_ = fork();
    if (pid_ == 0) {
      std::vector<char*> argv;
      for (std::string& a : arguments) argv.push_back(a.data());
      argv.push_back(nullptr);
      (void)!freopen((out != nullptr ? out : folder_ / "stdout").c_str(), "wb", stdout);
      (void)!freopen((folder_ / "stderr").c_str(), "wb", stderr);
      execv(argv[0], argv.data());
      _exit(127);
    }
  }
  ~Tool() {
    if (pid_ > 0) kill(pid_, SIGKILL), wait();
  }

  void signal(int number) { kill(pid_, number); }
  /// The exit status.
  int wait() {
    int status = 0;
    if (pid_ > 0) waitpid(pid_, &status, 0);
    pid_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
  }
  std::string out() const { return read_file(folder_ / "stdout"); }
  std::string err() const { return read_file(folder_ / "stderr"); }
  std::filesystem::path file(const char* name) const { return folder_ / name; }

 private:
  TemporaryFolder folder_;
  pid_t pid_ = -1;
};

}  // namespace kvloom::test
