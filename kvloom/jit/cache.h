// Compiled kernels on disk, shared by all processes of a user. An entry's name is the hash of everything it was made of, so an entry is
// never out of date; it carries its own checksum, so a torn, spoiled or foreign file is an entry that is not there.
//
// Folder: KVLOOM_CACHE_DIR, else $XDG_CACHE_HOME/kvloom, else ~/.cache/kvloom. File: <input hash>-<compiler>.kvloom: a few lines of text
// (what it is), an empty line, the bytes.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace kvloom::jit {

/// What names an entry.
struct CacheName {
  std::string key;       // "attend.sm80....": for people
  std::string target;    // "sm_90a"; a CPU's name for host code
  std::string input;     // SHA-256 of source, options and target
  std::string compiler;  // "nvrtc 13.0"; "": any that there is
};

struct CacheEntry {
  CacheName name;
  std::string path;
  int64_t bytes = 0;  // of the payload
};

class Cache {
 public:
  /// The folder of this process's environment. Nothing is made or read yet.
  static Cache of_environment();
  /// `folder` "": no cache at all; `why` for explanations.
  explicit Cache(std::string folder, std::string why = "");

  const std::string& folder() const { return folder_; }

  /// The payload of a sound entry. False: there is none.
  bool find(const CacheName& name, std::string& payload) const;
  /// find(), or make() under a lock between processes, published for all. `waiting` is called when another process is making it.
  std::string find_or_make(const CacheName& name, const std::function<std::string()>& make, void (*waiting)(const std::string& key)) const;
  /// Publishes an entry. False where the folder can't be written: said once a process, on stderr.
  bool store(const CacheName& name, const std::string& payload) const;

  /// All sound entries, by key and target.
  std::vector<CacheEntry> list() const;
  /// Removes every file of the cache, sound or not, and returns how many. Throws Error(io) where some are left.
  int64_t clear() const;
  /// Copies entries for which `wanted` into `folder`, which then serves as a cache itself. Throws Error(io).
  int64_t export_to(const std::string& folder, const std::function<bool(const CacheEntry&)>& wanted) const;

 private:
  std::string path_of(const CacheName& name) const;
  std::string folder_;
  std::string why_;
};

}  // namespace kvloom::jit
