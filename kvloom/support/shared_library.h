// A library of the system, found and opened at run time: one binary serves machines that have it and machines that don't.
#pragma once

#include <string>

namespace kvloom {

class SharedLibrary {
 public:
  SharedLibrary() = default;
  /// Opens `name`: a path, or a file name that the loader looks for. `why`: the loader's words where it can't.
  static SharedLibrary open(const std::string& name, std::string& why);
  /// Loads a library that lies in memory, through a file in temporary_folder() that is gone at once. `of_folder`: it is the folder that
  /// does not serve, and no other bytes would load either; `why` has the remedy then.
  static SharedLibrary open_bytes(const std::string& bytes, std::string& why, bool& of_folder);
  SharedLibrary(SharedLibrary&& other) noexcept;
  SharedLibrary& operator=(SharedLibrary&& other) noexcept;
  ~SharedLibrary();

  /// Until the process ends: for libraries that leave threads or memory of their own behind.
  void keep_open() { kept_open_ = true; }
  explicit operator bool() const { return handle_ != nullptr; }
  /// nullptr: no such entry.
  void* find(const char* entry) const;
  /// The same with the entry's type; false and `missing` set to its name if it is not there.
  template <class F>
  bool find(F& to, const char* entry, std::string& missing) const {
    to = reinterpret_cast<F>(find(entry));
    if (to == nullptr && missing.empty()) missing = entry;
    return to != nullptr;
  }
  /// Where the file lies that holds `address`; "" if that can't be told.
  static std::string path_of(const void* address);

 private:
  void* handle_ = nullptr;
  bool kept_open_ = false;
};

}  // namespace kvloom
