// A command is one file in cli/commands that registers itself: adding one needs no edit elsewhere.
#pragma once

#include <CLI/CLI.hpp>

#include <functional>

namespace kvloom::cli {

/// Adds options and a callback to `app`'s new subcommand. The callback throws kvloom::Error or returns through `exit_code`.
using AddCommand = void (*)(CLI::App& command, int& exit_code);

struct Command {
  const char* name;
  const char* description;
  AddCommand add;
};

/// At namespace scope in a command's file: `const RegisterCommand r({"plan", "...", add});`
struct RegisterCommand {
  explicit RegisterCommand(Command command);
};

}  // namespace kvloom::cli
