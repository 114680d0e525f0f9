#include "kvloom/jit/cache.h"

#include "kvloom/support/check.h"
#include "kvloom/support/files.h"
#include "kvloom/support/hash.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string_view>

namespace kvloom::jit {
namespace {

constexpr std::string_view kFirstLine = "kvloom cache entry 1\n";
constexpr const char* kSuffix = ".kvloom";

std::string word_of(std::string text) {
  for (char& c : text) c = c == ' ' || c == '/' ? '-' : c;
  return text;
}

std::string header_of(const CacheName& n, const std::string& payload) {
  return kvloom::format("{}key {}\ntarget {}\ncompiler {}\ninput {}\nbytes {}\nsha256 {}\n\n", kFirstLine, n.key, n.target, n.compiler,
                        n.input, payload.size(), sha256_hex(payload));
}

/// The line "word value" at the front of `text`, taken off it.
bool take_line(std::string_view& text, std::string_view word, std::string& value) {
  const size_t end = text.find('\n');
  if (end == std::string_view::npos || !text.starts_with(word) || text.size() <= word.size() || text[word.size()] != ' ') return false;
  value = text.substr(word.size() + 1, end - word.size() - 1);
  text.remove_prefix(end + 1);
  return true;
}

/// Reads and proves an entry. False: not an entry of ours, or not whole.
bool read_entry(const std::string& path, CacheName& name, std::string& payload) {
  std::string bytes, why, size, sum;
  if (!read_plain_file(path, bytes, why)) return false;
  std::string_view rest = bytes;
  if (!rest.starts_with(kFirstLine)) return false;
  rest.remove_prefix(kFirstLine.size());
  if (!take_line(rest, "key", name.key) || !take_line(rest, "target", name.target) || !take_line(rest, "compiler", name.compiler) ||
      !take_line(rest, "input", name.input) || !take_line(rest, "bytes", size) || !take_line(rest, "sha256", sum) || rest.empty()) {
    return false;
  }
  rest.remove_prefix(1);  // the empty line
  if (size != std::to_string(rest.size()) || sum != sha256_hex(rest)) return false;
  payload = rest;
  return true;
}

bool matches(const CacheName& entry, const CacheName& wanted) {
  return entry.input == wanted.input && entry.target == wanted.target && (wanted.compiler.empty() || entry.compiler == wanted.compiler);
}

/// An empty `why`: the cache was turned off on purpose.
void say_once(const std::string& why) {
  static std::atomic<bool> said{false};
  if (!why.empty() && !said.exchange(true)) {
    std::fprintf(stderr, "kvloom: kernels are not kept: %s; name a folder that can be written in KVLOOM_CACHE_DIR\n", why.c_str());
  }
}

}  // namespace

Cache::Cache(std::string folder, std::string why) : folder_(std::move(folder)), why_(std::move(why)) {}

Cache Cache::of_environment() {
  const std::string asked = environment("KVLOOM_CACHE_DIR"), xdg = environment("XDG_CACHE_HOME"), home = environment("HOME");
  if (!asked.empty()) return Cache(asked);
  if (!xdg.empty()) return Cache(xdg + "/kvloom");
  if (!home.empty()) return Cache(home + "/.cache/kvloom");
  return Cache("", "HOME is not set");
}

std::string Cache::path_of(const CacheName& name) const {
  return kvloom::format("{}/{}-{}{}", folder_, name.input, word_of(name.compiler), kSuffix);
}

bool Cache::find(const CacheName& name, std::string& payload) const {
  if (folder_.empty()) return false;
  CacheName found;
  if (!name.compiler.empty()) return read_entry(path_of(name), found, payload) && matches(found, name);
  std::string why;
  const std::vector<std::string> files = names_in(folder_, why);
  return std::any_of(files.rbegin(), files.rend(), [&](const std::string& file) {
    return file.starts_with(name.input + "-") && file.ends_with(kSuffix) && read_entry(folder_ + "/" + file, found, payload) &&
           matches(found, name);
  });
}

bool Cache::store(const CacheName& name, const std::string& payload) const {
  std::string why = why_;
  if (!folder_.empty() && make_folders(folder_, why) && publish_file(path_of(name), header_of(name, payload) + payload, why)) return true;
  say_once(why);
  return false;
}

std::string Cache::find_or_make(const CacheName& name, const std::function<std::string()>& make,
                                void (*waiting)(const std::string&)) const {
  std::string payload, why;
  if (find(name, payload)) return payload;
  if (folder_.empty() || !make_folders(folder_, why)) {
    say_once(folder_.empty() ? why_ : why);
    return make();
  }
  struct Context {
    const std::string& key;
    void (*waiting)(const std::string&);
  } context{name.key, waiting};
  const FileLock lock(
      path_of(name) + ".lock",
      [](const void* c) {
        const auto& at = *static_cast<const Context*>(c);
        if (at.waiting != nullptr) at.waiting(at.key);
      },
      &context);
  if (find(name, payload)) return payload;  // made while we waited
  payload = make();
  store(name, payload);
  return payload;
}

std::vector<CacheEntry> Cache::list() const {
  std::vector<CacheEntry> entries;
  if (folder_.empty()) return entries;
  std::string why;
  for (const std::string& file : names_in(folder_, why)) {
    CacheEntry e;
    std::string payload;
    e.path = folder_ + "/" + file;
    if (!file.ends_with(kSuffix) || !read_entry(e.path, e.name, payload)) continue;
    e.bytes = int64_t(payload.size());
    entries.push_back(std::move(e));
  }
  std::sort(entries.begin(), entries.end(), [](const CacheEntry& a, const CacheEntry& b) {
    return a.name.key != b.name.key ? a.name.key < b.name.key : a.name.target < b.name.target;
  });
  return entries;
}

int64_t Cache::clear() const {
  int64_t removed = 0, left = 0;
  if (folder_.empty()) return removed;
  std::string why;
  for (const std::string& file : names_in(folder_, why)) {
    if (file.find(kSuffix) == std::string::npos) continue;
    if (::unlink((folder_ + "/" + file).c_str()) == 0) {
      ++removed;
    } else if (errno != ENOENT) {  // that somebody else has just removed it is well
      ++left;
      why = kvloom::format("remove {}: {}", file, std::strerror(errno));
    }
  }
  if (!why.empty()) {
    fail(ErrorCode::io,
         "cache clear: {}: got {} files removed and {} left ({}), wanted none left; let this user write the folder, or remove them by hand",
         folder_, removed, left, why);
  }
  return removed;
}

int64_t Cache::export_to(const std::string& folder, const std::function<bool(const CacheEntry&)>& wanted) const {
  std::string why;
  if (!make_folders(folder, why)) fail(ErrorCode::io, "cache export: {}; name a folder that can be written", why);
  const Cache target(folder);
  int64_t copied = 0;
  for (const CacheEntry& e : list()) {
    CacheName name;
    std::string payload;
    if (!wanted(e) || !read_entry(e.path, name, payload)) continue;
    if (!publish_file(target.path_of(name), header_of(name, payload) + payload, why)) {
      fail(ErrorCode::io, "cache export: {}; free some space or name another folder", why);
    }
    ++copied;
  }
  return copied;
}

}  // namespace kvloom::jit
