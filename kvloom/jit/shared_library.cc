#include "kvloom/jit/shared_library.h"

#include "kvloom/support/files.h"

#include <dlfcn.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>

namespace kvloom::jit {

SharedLibrary SharedLibrary::open(const std::string& name, std::string& why) {
  SharedLibrary library;
  library.handle_ = ::dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library.handle_ == nullptr) {
    const char* words = ::dlerror();
    why = words != nullptr ? words : "no such library";
  }
  return library;
}

SharedLibrary SharedLibrary::open_bytes(const std::string& bytes, std::string& why) {
  // A name of its own every time: the loader takes a name that it knows for the library that it has.
  const std::string base = environment("TMPDIR");
  std::string path = (base.empty() ? "/tmp" : base) + "/kvloom-XXXXXX";
  const int file = ::mkstemp(path.data());
  if (file < 0) return why = path + ": " + std::strerror(errno) + "; name a folder that can be written in TMPDIR", SharedLibrary();
  size_t done = 0;
  for (ssize_t n = 1; done < bytes.size() && n > 0; done += n > 0 ? size_t(n) : 0)
    n = ::write(file, bytes.data() + done, bytes.size() - done);
  SharedLibrary library;
  if (done == bytes.size()) {
    library = open(path, why);
  } else {
    why = path + ": " + std::strerror(errno);
  }
  ::close(file);
  ::unlink(path.c_str());
  return library;
}

SharedLibrary::SharedLibrary(SharedLibrary&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}

SharedLibrary& SharedLibrary::operator=(SharedLibrary&& other) noexcept {
  std::swap(handle_, other.handle_);
  return *this;
}

SharedLibrary::~SharedLibrary() {
  if (handle_ != nullptr) ::dlclose(handle_);
}

void* SharedLibrary::find(const char* entry) const { return handle_ != nullptr ? ::dlsym(handle_, entry) : nullptr; }

std::string SharedLibrary::path_of(const void* address) {
  Dl_info info;
  return ::dladdr(const_cast<void*>(address), &info) != 0 && info.dli_fname != nullptr ? info.dli_fname : "";
}

}  // namespace kvloom::jit
