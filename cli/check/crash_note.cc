#include "cli/check/crash_note.h"

#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstring>

namespace kvloom::check {
namespace {

// A handler may touch nothing that allocates or locks: a fixed buffer it is.
char note[512];

void print(const char* text) { [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, text, std::strlen(text)); }

void on_crash(int signal) {
  if (note[0] != 0) {
    print("\nkvloom: crashed in this case: ");
    print(note);
    print("\n");
  }
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

}  // namespace

void install_crash_note() {
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  for (const int s : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT}) std::signal(s, on_crash);
#endif
}

void set_crash_note(const std::string& command) {
  const size_t n = std::min(command.size(), sizeof note - 1);
  std::memcpy(note, command.data(), n);
  note[n] = 0;
}

}  // namespace kvloom::check
