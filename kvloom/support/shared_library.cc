#include "kvloom/support/shared_library.h"

#include "kvloom/support/files.h"

#include <dlfcn.h>
#include <unistd.h>

#include <utility>

namespace kvloom {

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
  std::string path;
  if (!write_temporary(bytes, path, why)) return why += "; name a folder that can be written in TMPDIR", SharedLibrary();
  SharedLibrary library = open(path, why);
  ::unlink(path.c_str());
  return library;
}

SharedLibrary::SharedLibrary(SharedLibrary&& other) noexcept
    : handle_(std::exchange(other.handle_, nullptr)), kept_open_(other.kept_open_) {}

SharedLibrary& SharedLibrary::operator=(SharedLibrary&& other) noexcept {
  std::swap(handle_, other.handle_);
  std::swap(kept_open_, other.kept_open_);
  return *this;
}

SharedLibrary::~SharedLibrary() {
  if (handle_ != nullptr && !kept_open_) ::dlclose(handle_);
}

void* SharedLibrary::find(const char* entry) const { return handle_ != nullptr ? ::dlsym(handle_, entry) : nullptr; }

std::string SharedLibrary::path_of(const void* address) {
  Dl_info info;
  return ::dladdr(const_cast<void*>(address), &info) != 0 && info.dli_fname != nullptr ? info.dli_fname : "";
}

}  // namespace kvloom
