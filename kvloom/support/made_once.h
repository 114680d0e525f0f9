// What is made once a process, when it is first asked for, and stays: compiled texts, loaded objects.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>

namespace kvloom {

/// Things by key. Each has a lock of its own: threads that want the same wait for whoever makes it, threads that want others do not.
template <class T>
class MadeOnce {
 public:
  /// The thing of `key`; where there is none yet, what make() returns, a std::unique_ptr<T>. If it throws, the next to ask makes it.
  template <class Make>
  const T& get(const std::string& key, Make&& make) {
    Slot& slot = slot_of(key);
    std::lock_guard lock(slot.mutex);
    if (!slot.thing) slot.thing = make();
    return *slot.thing;
  }

 private:
  struct Slot {
    std::mutex mutex;
    std::unique_ptr<const T> thing;
  };

  Slot& slot_of(const std::string& key) {
    std::lock_guard lock(mutex_);
    return slots_[key];  // a map's elements stay where they are
  }

  std::mutex mutex_;
  std::map<std::string, Slot> slots_;
};

}  // namespace kvloom
