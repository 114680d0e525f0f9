#include "kvloom/support/shared_library.h"

#include "kvloom/support/files.h"

#include <dlfcn.h>
#include <sys/statvfs.h>
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

SharedLibrary SharedLibrary::open_bytes(const std::string& bytes, std::string& why, bool& of_folder) {
  // A name of its own every time: the loader takes a name that it knows for the library that it has.
  std::string path;
  of_folder = !write_temporary(bytes, path, why);
  if (of_folder) return why += "; name a folder that can be written in TMPDIR", SharedLibrary();
  SharedLibrary library = open(path, why);
  struct statvfs mount;
  if (!library && ::statvfs(path.c_str(), &mount) == 0 && (mount.f_flag & ST_NOEXEC) != 0) {
    of_folder = true;
    why += "; " + temporary_folder() + " is mounted noexec: name a folder that libraries can be loaded from in TMPDIR";
  }
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
