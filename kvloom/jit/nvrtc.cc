#include "kvloom/jit/nvrtc.h"

#include "kvloom/jit/driver.h"
#include "kvloom/support/check.h"
#include "kvloom/support/cuda_library.h"
#include "kvloom/support/files.h"
#include "kvloom/support/shared_library.h"

#include <memory>

namespace kvloom::jit {

// NVRTC's interface: results are integers, 0 is success, 6 a compilation error.
struct Nvrtc::Entries {
  using Program = struct ProgramTag*;
  int (*version)(int* major, int* minor) = nullptr;
  const char* (*error_string)(int) = nullptr;
  int (*create)(Program*, const char* text, const char* name, int num_headers, const char* const* headers,
                const char* const* names) = nullptr;
  int (*destroy)(Program*) = nullptr;
  int (*compile)(Program, int num_options, const char* const* options) = nullptr;
  int (*cubin_size)(Program, size_t*) = nullptr;
  int (*cubin)(Program, char*) = nullptr;
  int (*log_size)(Program, size_t*) = nullptr;
  int (*log)(Program, char*) = nullptr;
  int (*num_archs)(int*) = nullptr;
  int (*archs)(int*) = nullptr;
  SharedLibrary library, builtins;

  std::string load() {
    std::string missing;
    library.find(version, "nvrtcVersion", missing);
    library.find(error_string, "nvrtcGetErrorString", missing);
    library.find(create, "nvrtcCreateProgram", missing);
    library.find(destroy, "nvrtcDestroyProgram", missing);
    library.find(compile, "nvrtcCompileProgram", missing);
    library.find(cubin_size, "nvrtcGetCUBINSize", missing);
    library.find(cubin, "nvrtcGetCUBIN", missing);
    library.find(log_size, "nvrtcGetProgramLogSize", missing);
    library.find(log, "nvrtcGetProgramLog", missing);
    library.find(num_archs, "nvrtcGetNumSupportedArchs", missing);
    library.find(archs, "nvrtcGetSupportedArchs", missing);
    return missing;
  }
};

namespace {

constexpr int kOldestMajor = 12;

/// The CUDA version of the driver, major; 0: there is none, anything will do.
int driver_major() {
  std::string why;
  const Driver* d = find_driver(why);
  return d != nullptr ? d->version / 1000 : 0;
}

}  // namespace

bool Nvrtc::open(const std::string& path, std::string& why) {
  auto entries = std::make_unique<Entries>();
  // Its second half is opened by name; from its own folder that only works if it is there already.
  const size_t slash = path.rfind('/');
  if (slash != std::string::npos) {
    std::string ignored;
    for (const std::string& file : matching_paths(plain_pattern(path.substr(0, slash)) + "/libnvrtc-builtins.so.1*")) {
      if (!entries->builtins) entries->builtins = SharedLibrary::open(file, ignored);
    }
  }
  entries->library = SharedLibrary::open(path, why);
  if (!entries->library) return false;
  const std::string missing = entries->load();
  if (!missing.empty()) return why = kvloom::format("{}: has no {}", path, missing), false;
  entries->version(&major_, &minor_);
  if (major_ < kOldestMajor) return why = kvloom::format("{}: version {}.{}, wanted 12 or newer", path, major_, minor_), false;
  int count = 0;
  if (entries->num_archs(&count) == 0 && count > 0) {
    archs_.resize(size_t(count));
    entries->archs(archs_.data());
  }
  const std::string found = SharedLibrary::path_of(reinterpret_cast<const void*>(entries->version));
  path_ = found.empty() ? path : found;
  entries_ = entries.release();  // for the life of the process
  return true;
}

const Nvrtc* Nvrtc::search(std::string& why) {
  const int limit = driver_major();
  std::string tried, too_new;
  for (const std::string& path : library_paths({"KVLOOM_NVRTC", {"libnvrtc.so.13", "libnvrtc.so.12"}, "cuda_nvrtc"})) {
    auto n = std::make_unique<Nvrtc>();
    std::string reason;
    if (!n->open(path, reason)) {
      tried += kvloom::format("\n  {}", reason);
    } else if (limit > 0 && n->major_ > limit) {
      tried +=
          kvloom::format("\n  {}: version {}.{} is newer than the driver, which is for CUDA {}", n->path_, n->major_, n->minor_, limit);
    } else {
      return n.release();
    }
  }
  why = kvloom::format(
      "no NVRTC (the CUDA run-time compiler, version 12 or 13) was found; install it (it comes with CUDA, and with the Python package "
      "nvidia-cuda-nvrtc), or name its file or folder in KVLOOM_NVRTC; tried:{}",
      tried);
  return nullptr;
}

const Nvrtc* Nvrtc::find(std::string& why) {
  struct Found {
    const Nvrtc* nvrtc;
    std::string why;
  };
  static const Found* const found = [] {
    auto* f = new Found;
    f->nvrtc = search(f->why);
    return f;
  }();
  why = found->why;
  return found->nvrtc;
}

std::string Nvrtc::version() const { return kvloom::format("nvrtc {}.{}", major_, minor_); }

Compiled Nvrtc::compile(const std::string& text, const std::string& name, Span<const SourceText> headers,
                        const std::vector<std::string>& options) const {
  const Entries& e = *entries_;
  std::vector<const char*> header_texts, header_names, words;
  for (const SourceText& h : headers) {
    header_texts.push_back(h.text);
    header_names.push_back(h.name);
  }
  for (const std::string& option : options) words.push_back(option.c_str());
  Entries::Program program = nullptr;
  int result = e.create(&program, text.c_str(), name.c_str(), int(header_names.size()), header_texts.data(), header_names.data());
  if (result != 0) fail(ErrorCode::internal, "jit: {}: nvrtcCreateProgram: got error {}: {}", name, result, e.error_string(result));
  Compiled out;
  result = e.compile(program, int(words.size()), words.data());
  size_t bytes = 0;
  if (e.log_size(program, &bytes) == 0 && bytes > 1) {
    out.log.resize(bytes);
    e.log(program, out.log.data());
    out.log.resize(bytes - 1);  // without the closing zero
  }
  if (result == 0 && e.cubin_size(program, &bytes) == 0 && bytes > 0) {
    out.cubin.resize(bytes);
    out.ok = e.cubin(program, out.cubin.data()) == 0;
  }
  if (!out.ok && out.log.empty()) out.log = kvloom::format("nvrtcCompileProgram: error {}: {}", result, e.error_string(result));
  e.destroy(&program);
  return out;
}

}  // namespace kvloom::jit
