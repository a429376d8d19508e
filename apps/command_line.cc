#include "apps/command_line.h"

#include <cstdio>
#include <exception>
#include <new>

#include "base/version.h"
#include "device/device_probe.h"

namespace lapidary {

CommandLine::CommandLine()
    : app_("Lapidary serves Google's Gemma 4 models, and only those, fast.") {
  app_.name("lapidary");
  app_.require_subcommand(1);
  app_.set_version_flag("--version", fmt::format("lapidary {} ({})", kVersion,
                                                 BuiltWithCuda() ? "CPU and CUDA" : "CPU only"));
  app_.footer(
      "`lapidary COMMAND --help` explains a command; in the source tree, `./lapidary test` runs "
      "the "
      "tests.");
}

CLI::App* CommandLine::Add(const std::string& name, const std::string& description,
                           std::function<Status()> action) {
  return AddTo(&app_, name, description, std::move(action));
}

CLI::App* CommandLine::AddGroup(const std::string& name, const std::string& description) {
  CLI::App* group = app_.add_subcommand(name, description);
  group->require_subcommand(1);
  return group;
}

CLI::App* CommandLine::AddTo(CLI::App* group, const std::string& name,
                             const std::string& description, std::function<Status()> action) {
  CLI::App* command = group->add_subcommand(name, description);
  command->callback([this, action = std::move(action)] { chosen_action_ = action; });
  return command;
}

int CommandLine::Run(int argc, char** argv) {
  if (argc <= 1) {
    std::fputs(app_.help().c_str(), stdout);
    return 0;
  }
  const auto is_chosen = [&](const CLI::App* command) { return command->check_name(argv[1]); };
  if (argv[1][0] != '-' && app_.get_subcommands(is_chosen).empty()) {
    std::fprintf(stderr, "lapidary: unknown command '%s'; `lapidary --help` lists them\n", argv[1]);
    return 2;
  }
  try {
    app_.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    // CLI11 uses exit code 0 for --help and --version.
    return app_.exit(error) == 0 ? 0 : 2;
  }
  try {
    if (Status status = chosen_action_(); !status.ok()) {
      std::fprintf(stderr, "lapidary: %s\n", status.error().message.c_str());
      return 1;
    }
  } catch (const std::bad_alloc&) {
    std::fputs("lapidary: out of memory\n", stderr);
    return 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "lapidary: %s\n", error.what());
    return 1;
  }
  return 0;
}

}  // namespace lapidary
