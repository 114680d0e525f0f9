#include "cli/command.h"
#include "kvloom/support/error.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

namespace kvloom::cli {
namespace {

std::vector<Command>& commands() {
  static std::vector<Command> list;
  return list;
}

/// A wrong command line, in the form of all refusals; --help and --version end here too. The exit status.
int refuse(const CLI::App& app, const CLI::ParseError& error) {
  if (error.get_exit_code() == 0) return app.exit(error);
  const CLI::App* at = &app;
  std::string where, help = "kvloom";
  while (!at->get_subcommands().empty()) {
    at = at->get_subcommands().front();
    where += at->get_name() + ": ";
    help += " " + at->get_name();
  }
  std::string message = error.what();
  if (at->get_require_subcommand_min() > 0) {  // what stands there is no command of it
    const std::vector<std::string> rest = at->remaining();
    message = "got " + (rest.empty() ? "no command" : "'" + rest.front() + "'") + ", wanted one of";
    for (const CLI::App* c : at->get_subcommands([](const CLI::App*) { return true; })) message += " " + c->get_name();
  }
  std::fprintf(stderr, "kvloom: %s%s; %s --help lists what there is\n", where.c_str(), message.c_str(), help.c_str());
  return 2;
}

/// An option that is there has a value: `--trace "$UNSET"` is a mistake, not the default.
void want_values(CLI::App& app) {
  for (CLI::Option* o : app.get_options()) {
    if (o->get_items_expected_max() > 0)
      o->check([](const std::string& v) { return v.empty() ? "got nothing, wanted a value" : std::string(); });
  }
  for (CLI::App* c : app.get_subcommands([](const CLI::App*) { return true; })) want_values(*c);
}

/// What was printed has arrived: a full disk is an error, not a short file.
int flushed(int exit_code) {
  errno = 0;
  if ((std::fflush(stdout) == 0 && std::ferror(stdout) == 0) || exit_code != 0) return exit_code;
  std::fprintf(stderr, "kvloom: stdout: write failed: %s; free some space or write elsewhere\n",
               errno != 0 ? std::strerror(errno) : "an earlier part did not fit");
  return 1;
}

int run(int argc, char** argv) {
  CLI::App app{"kvloom: attention for LLM serving. Plans ragged batches, runs them, replays real traffic, checks itself."};
  app.require_subcommand(1);
  app.set_version_flag("--version", "kvloom " KVLOOM_VERSION);
  int exit_code = 0;
  std::sort(commands().begin(), commands().end(), [](const Command& a, const Command& b) { return std::string_view(a.name) < b.name; });
  for (const Command& c : commands()) c.add(*app.add_subcommand(c.name, c.description), exit_code);
  want_values(app);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    return refuse(app, e);
  } catch (const Error& e) {
    std::fprintf(stderr, "kvloom: %s\n", e.what());
    return 1;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "kvloom: internal error: %s\n", e.what());
    return 70;
  }
  return exit_code;
}

}  // namespace

RegisterCommand::RegisterCommand(Command command) { commands().push_back(command); }

}  // namespace kvloom::cli

int main(int argc, char** argv) { return kvloom::cli::flushed(kvloom::cli::run(argc, argv)); }
