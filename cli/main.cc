#include "cli/command.h"
#include "kvloom/support/error.h"

#include <algorithm>
#include <cstdio>
#include <string_view>
#include <vector>

namespace kvloom::cli {
namespace {

std::vector<Command>& commands() {
  static std::vector<Command> list;
  return list;
}

int run(int argc, char** argv) {
  CLI::App app{"kvloom: attention for LLM serving. Plans ragged batches, runs them, replays real traffic, checks itself."};
  app.require_subcommand(1);
  app.set_version_flag("--version", "kvloom " KVLOOM_VERSION);
  int exit_code = 0;
  std::sort(commands().begin(), commands().end(), [](const Command& a, const Command& b) { return std::string_view(a.name) < b.name; });
  for (const Command& c : commands()) c.add(*app.add_subcommand(c.name, c.description), exit_code);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    return app.exit(e);
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

int main(int argc, char** argv) { return kvloom::cli::run(argc, argv); }
