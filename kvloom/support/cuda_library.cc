#include "kvloom/support/cuda_library.h"

#include "kvloom/support/files.h"

#include <sys/stat.h>

#include <algorithm>

namespace kvloom {
namespace {

/// `folder`: a pattern of folders.
void add_in(std::vector<std::string>& to, const CudaLibrary& library, const std::string& folder) {
  for (const std::string& file : library.files) {
    for (const std::string& path : matching_paths(folder + "/" + file)) to.push_back(path);
  }
}

/// Folders that hold Python packages, those of the environment in use first.
std::vector<std::string> package_folders() {
  std::vector<std::string> folders;
  const auto add = [&](const std::string& prefix) {
    for (const char* kind : {"site-packages", "dist-packages"}) {
      for (const std::string& path : matching_paths(plain_pattern(prefix) + "/lib/python3*/" + kind)) folders.push_back(path);
    }
  };
  for (const char* name : {"VIRTUAL_ENV", "CONDA_PREFIX"}) {
    const std::string prefix = environment(name);
    if (!prefix.empty()) add(prefix);
  }
  const std::string path = environment("PATH");  // .../bin/python3 belongs to the packages in .../lib
  for (size_t begin = 0; begin < path.size();) {
    const size_t end = std::min(path.find(':', begin), path.size());
    const std::string folder = path.substr(begin, end - begin);
    struct stat s;
    if (folder.ends_with("/bin") && ::stat((folder + "/python3").c_str(), &s) == 0) add(folder.substr(0, folder.size() - 4));
    begin = end + 1;
  }
  const std::string home = environment("HOME");
  if (!home.empty()) add(home + "/.local");
  add("/usr/local");
  add("/usr");
  if (!matching_paths("/usr/lib/python3/dist-packages").empty()) folders.push_back("/usr/lib/python3/dist-packages");
  return folders;
}

/// What was asked for, or an error: not quietly something else.
std::vector<std::string> asked_paths(const CudaLibrary& library, const std::string& asked) {
  struct stat s;
  if (::stat(asked.c_str(), &s) != 0 || !S_ISDIR(s.st_mode)) return {asked};
  std::vector<std::string> list;
  add_in(list, library, plain_pattern(asked));
  if (list.empty()) list.push_back(asked + "/" + library.files[0]);  // fails, and says where
  return list;
}

}  // namespace

std::vector<std::string> library_paths(const CudaLibrary& library) {
  const std::string asked = environment(library.variable);
  if (!asked.empty()) return asked_paths(library, asked);
  std::vector<std::string> list = library.files;
  for (const char* name : {"CUDA_HOME", "CUDA_PATH"}) {
    const std::string root = environment(name);
    if (!root.empty()) add_in(list, library, plain_pattern(root) + "/lib64");
  }
  add_in(list, library, "/usr/local/cuda/lib64");
  add_in(list, library, "/usr/local/cuda-*/lib64");
  for (const std::string& folder : package_folders()) {
    add_in(list, library, plain_pattern(folder) + "/nvidia/cu13/lib");
    add_in(list, library, plain_pattern(folder) + "/nvidia/" + library.package + "/lib");
  }
  return list;
}

}  // namespace kvloom
