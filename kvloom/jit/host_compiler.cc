#include "kvloom/jit/host_compiler.h"

#include "kvloom/support/files.h"
#include "kvloom/support/format.h"
#include "kvloom/support/process.h"

#include <stdlib.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>

namespace kvloom::jit {
namespace {

constexpr const char* kNames[] = {"c++", "g++", "clang++"};

/// A folder for the compiler's files, gone with it.
class WorkFolder {
 public:
  WorkFolder() {
    path_ = temporary_folder() + "/kvloom-XXXXXX";
    if (::mkdtemp(path_.data()) != nullptr) return;
    why_ = temporary_folder() + ": " + std::strerror(errno);
    path_.clear();
  }
  ~WorkFolder() {
    if (path_.empty()) return;
    for (const char* name : {"/variant.cc", "/variant.so"}) ::unlink((path_ + name).c_str());
    ::rmdir(path_.c_str());
  }
  WorkFolder(const WorkFolder&) = delete;
  WorkFolder& operator=(const WorkFolder&) = delete;
  const std::string& path() const { return path_; }
  const std::string& why() const { return why_; }

 private:
  std::string path_, why_;
};

/// The value of a macro in a list of "#define NAME VALUE"; "" if it is not there.
std::string macro_in(const std::string& list, const std::string& name) {
  const std::string line = "#define " + name + " ";
  const size_t at = list.find(line);
  if (at == std::string::npos) return "";
  const size_t begin = at + line.size();
  return list.substr(begin, list.find('\n', begin) - begin);
}

/// "g++ 12.2.0", by the macros that only a C++ compiler has: many programs answer --version. "": it is none.
std::string version_of(const std::string& path) {
  const ProcessResult r = run_process({path, "-dM", "-E", "-x", "c++", "/dev/null"});
  if (!r.started || r.status != 0 || macro_in(r.output, "__cplusplus").empty()) return "";
  const bool clang = !macro_in(r.output, "__clang__").empty();
  std::string number;
  for (const char* part : {clang ? "__clang_major__" : "__GNUC__", clang ? "__clang_minor__" : "__GNUC_MINOR__",
                           clang ? "__clang_patchlevel__" : "__GNUC_PATCHLEVEL__"}) {
    const std::string value = macro_in(r.output, part);
    if (value.empty()) return "";
    number += (number.empty() ? "" : ".") + value;
  }
  return (clang ? "clang++ " : "g++ ") + number;
}

}  // namespace

HostCompiler* HostCompiler::search(const std::string& asked, std::string& why) {
  std::string tried;
  for (const char* name : kNames) {
    if (!asked.empty() && name != kNames[0]) break;
    HostCompiler found;
    found.path_ = find_program(asked.empty() ? name : asked);
    if (!found.path_.empty()) found.version_ = version_of(found.path_);
    if (!found.version_.empty()) return new HostCompiler(found);
    tried += (tried.empty() ? "" : ", ") + (asked.empty() ? std::string(name) : asked);
  }
  why = asked.empty()
            ? kvloom::format("no C++ compiler: looked for {} on the PATH; install g++ or clang++, or name one in KVLOOM_CXX", tried)
            : kvloom::format("no C++ compiler: KVLOOM_CXX names {}, which is none; name g++ or clang++ by path or by name", tried);
  return nullptr;
}

const HostCompiler* HostCompiler::find(std::string& why) {
  struct Found {
    const HostCompiler* compiler;
    std::string why;
  };
  static std::mutex mutex;
  static auto* const known = new std::map<std::string, Found>;  // by KVLOOM_CXX
  const std::string asked = environment("KVLOOM_CXX");
  std::lock_guard lock(mutex);
  auto at = known->find(asked);
  if (at == known->end()) {
    Found f{nullptr, ""};
    f.compiler = search(asked, f.why);
    at = known->emplace(asked, f).first;
  }
  why = at->second.why;
  return at->second.compiler;
}

bool HostCompiler::compile(const std::string& text, const std::vector<std::string>& options, std::string& object, std::string& log,
                           std::string& folder_fault) const {
  const WorkFolder folder;
  const std::string source = folder.path() + "/variant.cc", target = folder.path() + "/variant.so";
  const auto fail_by_folder = [&](const std::string& why) {
    folder_fault = "no folder to work in: name one that can be written in TMPDIR (" + why + ")";
    return false;
  };
  if (folder.path().empty()) return fail_by_folder(folder.why());
  if (std::string why; !publish_file(source, text, why)) return fail_by_folder(why);
  std::vector<std::string> words{path_};
  words.insert(words.end(), options.begin(), options.end());
  words.insert(words.end(), {source, "-o", target});
  const ProcessResult r = run_process(words);
  log = r.output;
  // The compiler, too, says so in the words of errno.
  if (r.status != 0 && log.find(std::strerror(ENOSPC)) != std::string::npos)
    return fail_by_folder(temporary_folder() + ": " + std::strerror(ENOSPC));
  if (!r.started || r.status != 0) return false;
  std::string why;
  return read_file(target, object, why) || fail_by_folder(why);
}

}  // namespace kvloom::jit
