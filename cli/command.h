// A command is one file in cli/commands that registers itself: adding one needs no edit elsewhere.
#pragma once

#include <CLI/CLI.hpp>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <limits>
#include <string>
#include <vector>

namespace kvloom::cli {

/// Numbers above 0, and from 0: CLI11's own say "in range" up to 309 digits.
inline CLI::Validator number_from(bool zero) {
  return CLI::Validator(
      [zero](std::string& text) {
        char* end = nullptr;
        const double x = std::strtod(text.c_str(), &end);
        const bool good = end != text.c_str() && *end == '\0' && (zero ? x >= 0 : x > 0);
        return good ? std::string() : "got " + text + ", wanted a number " + (zero ? "from 0" : "above 0");
      },
      zero ? "NONNEGATIVE" : "POSITIVE");
}
inline const CLI::Validator kPositive = number_from(false), kNonNegative = number_from(true);

/// One of these words; the option's help names them.
inline CLI::Validator one_of(const std::vector<std::string>& words) {
  return CLI::Validator(
      [words](std::string& text) {
        if (std::find(words.begin(), words.end(), text) != words.end()) return std::string();
        return "got '" + text + "', wanted one of " + CLI::detail::join(words, ", ");
      },
      "");
}

/// Names of files that can be written in some form, as their endings say: `fault` is "" or what is wrong with a name.
inline CLI::Validator names_by(std::string (*fault)(const std::string&)) {
  return CLI::Validator([fault](std::string& text) { return fault(text); }, "");
}

/// An option for whole numbers with commas between them, read into `to`. Not CLI11's lists, which skip what is empty: "9,,9" is a mistake.
template <class T>
CLI::Option* add_numbers(CLI::App& app, const char* name, std::vector<T>& to, const char* help) {
  const auto read = [name, &to](const std::string& text) {
    to.clear();
    const char *at = text.data(), *const end = at + text.size();
    while (true) {
      T number{};
      const auto [past, error] = std::from_chars(at, end, number);
      if (error != std::errc() || (past != end && *past != ',')) {
        throw CLI::ValidationError(name, "got '" + text + "', wanted whole numbers up to " + std::to_string(std::numeric_limits<T>::max()) +
                                             " with commas between them");
      }
      to.push_back(number);
      if (past == end) return;
      at = past + 1;
    }
  };
  return app.add_option_function<std::string>(name, read, help)->type_name("INT,..");
}

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
