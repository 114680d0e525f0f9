// Files as the cache needs them: read whole, published whole, found by pattern, and locked between processes.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace kvloom {

/// The bytes of a file, or of a pipe or terminal to its end; no other device. False: it can't be read; `why` says so.
bool read_file(const std::string& path, std::string& bytes, std::string& why);
/// The same of plain files alone: a pipe is refused, and not waited for.
bool read_plain_file(const std::string& path, std::string& bytes, std::string& why);

/// Writes `bytes` under a name of its own in the same folder, then renames: readers see the old file or the new one, never a part.
/// False: nothing was published; `why` says so.
bool publish_file(const std::string& path, std::string_view bytes, std::string& why);

/// Makes a folder and those above it, for this user alone where it is new. False: it is not there afterwards.
bool make_folders(const std::string& path, std::string& why);

/// The folder for files that are soon gone: TMPDIR, else /tmp.
std::string temporary_folder();
/// Writes `bytes` to a new file there, `path`. False: there is none; `why` says so.
bool write_temporary(std::string_view bytes, std::string& path, std::string& why);

/// An exclusive lock between processes and threads, by a file. The system lets go of it when its holder dies.
class FileLock {
 public:
  /// Waits until it is held. `waiting` is called once if somebody else holds it.
  FileLock(const std::string& path, void (*waiting)(const void* context), const void* context);
  /// Removes the file: whoever waits on it will look for what was made meanwhile.
  ~FileLock();
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;

  /// False: no lock can be had here (the folder can't be written); work goes on without.
  bool held() const { return file_ >= 0; }

 private:
  std::string path_;
  int file_ = -1;
};

/// The names in a folder, sorted, whatever they are made of; none where it can't be read: `why` says so, and is "" where there is no such
/// folder.
std::vector<std::string> names_in(const std::string& folder, std::string& why);

/// Paths that match a pattern of the shell, sorted; none if there are none. For names of ours: what a user has named goes through
/// plain_pattern().
std::vector<std::string> matching_paths(const std::string& pattern);
/// The pattern that matches `path` alone: its * ? [ and \ are what they are.
std::string plain_pattern(const std::string& path);

/// The value of an environment variable; "" if it is not set.
std::string environment(const char* name);

}  // namespace kvloom
