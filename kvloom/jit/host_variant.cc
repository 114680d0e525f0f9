#include "kvloom/jit/host_variant.h"

#include "kvloom/jit/cache.h"
#include "kvloom/jit/compiler_log.h"
#include "kvloom/jit/host_compiler.h"
#include "kvloom/jit/progress.h"
#include "kvloom/support/check.h"
#include "kvloom/support/hash.h"
#include "kvloom/support/made_once.h"
#include "kvloom/support/shared_library.h"

#include <memory>

namespace kvloom::jit {
namespace {

CacheName host_cache_name(const Program& unit, const HostTarget& target) {
  Sha256 hash;
  hash.add_field(unit.text);
  for (const std::string& option : host_options(target)) hash.add_field(option);
  CacheName name{unit.key, target.name, hash.hex(), ""};
  std::string why;
  if (const HostCompiler* compiler = no_jit() ? nullptr : HostCompiler::find(why)) name.compiler = compiler->version();
  return name;
}

std::string compiled(const Program& unit, const HostTarget& target) {
  std::string why, object, log, folder_fault;
  const HostCompiler* const compiler = HostCompiler::find(why);
  if (compiler == nullptr) fail(ErrorCode::unsupported, "jit: {}: {}", unit.key, why);
  const std::vector<std::string> options = host_options(target);
  if (compiler->compile(unit.text, options, object, log, folder_fault)) return object;
  if (!folder_fault.empty()) fail(ErrorCode::io, "jit: {}: {}", unit.key, folder_fault);
  const std::string plain = plain_log(log);
  if (!plain.empty()) log = plain;
  if (!log.empty() && log.back() != '\n') log += '\n';
  fail(ErrorCode::invalid_argument, "jit: {}: {} does not compile it; its log:\n{}for {} by {}, options:{}", unit.key, compiler->version(),
       log, target.name, compiler->path(), option_words(options));
}

std::string object_of(const Program& unit, const HostTarget& target) {
  const Cache cache = Cache::of_environment();
  const CacheName name = host_cache_name(unit, target);
  if (!no_jit()) {
    const auto make = [&] { return compile_aloud(unit.key, target.name, [&] { return compiled(unit, target); }); };
    return cache.find_or_make(name, make, say_waiting);
  }
  std::string object;
  if (cache.find(name, object)) return object;
  fail(ErrorCode::unsupported,
       "jit: {}: got no compiled variant for {} in the cache ({}), and KVLOOM_NO_JIT=1 forbids compiling; use it once on a machine with a "
       "C++ compiler and the same library, and bring its cache here, or unset KVLOOM_NO_JIT",
       unit.key, target.name, cache.folder().empty() ? "there is none" : cache.folder());
}

/// A loaded object; the library keeps what the variant points into.
struct Loaded {
  SharedLibrary library;
  HostVariant variant = {};
};

std::unique_ptr<Loaded> load(const Program& unit, const HostTarget& target) {
  std::string why;
  bool of_folder = false;
  auto loaded = std::make_unique<Loaded>(Loaded{SharedLibrary::open_bytes(object_of(unit, target), why, of_folder)});
  const SharedLibrary& library = loaded->library;
  HostVariant& v = loaded->variant;
  if (of_folder) fail(ErrorCode::io, "jit: {}: can't load its shared object: {}", unit.key, why);
  void (*describe)(UserVariant*) = nullptr;
  if (!library || !library.find(describe, "kvloom_user_variant", why) || !library.find(v.stage, "kvloom_user_stage", why)) {
    fail(ErrorCode::io, "jit: {}: got a shared object that can't be loaded ({}), wanted one of this machine; remove the cache ({})",
         unit.key, why, "kvloom cache clear");
  }
  describe(&v.facts);
  return loaded;
}

}  // namespace

const HostVariant& host_variant(const Program& unit, const HostTarget& target) {
  static auto* const all = new MadeOnce<Loaded>;  // never destroyed: engines, plans and interned variants point into it
  return all->get(unit.text, [&] { return load(unit, target); }).variant;
}

}  // namespace kvloom::jit
