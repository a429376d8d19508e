#include "apps/command_line.h"

#include <cstdio>
#include <cstring>
#include <exception>
#include <new>
#include <vector>

#include "apps/foreign_flags.h"
#include "base/edit_distance.h"
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

namespace {

// The command that was named, or the subcommand of its group.
const CLI::App& Innermost(const CLI::App& app) {
  const std::vector<CLI::App*> chosen = app.get_subcommands();
  return chosen.empty() ? app : Innermost(*chosen.front());
}

// `-hf NAME` is one flag, as llama.cpp has it, and not -h and -f; so is vLLM's `-tp N`.
std::vector<const char*> Arguments(int argc, char** argv) {
  std::vector<const char*> arguments(argv, argv + argc);
  for (const char*& argument : arguments) {
    if (std::strcmp(argument, "-hf") == 0 || std::strcmp(argument, "-hfr") == 0) {
      argument = "--hf-repo";
    } else if (std::strcmp(argument, "-tp") == 0) {
      argument = "--tensor-parallel-size";
    }
  }
  return arguments;
}

// The command whose name is most like a mistyped one; empty where none is.
std::string NearestCommand(const CLI::App& app, const std::string& typed) {
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    if (EditDistance(typed, command->get_name()) <= 2) return command->get_name();
  }
  return {};
}

}  // namespace

int CommandLine::Run(int argc, char** argv) {
  if (argc <= 1) {
    std::fputs(app_.help().c_str(), stdout);
    return 0;
  }
  const auto is_chosen = [&](const CLI::App* command) { return command->check_name(argv[1]); };
  if (argv[1][0] != '-' && app_.get_subcommands(is_chosen).empty()) {
    const std::string nearest = NearestCommand(app_, argv[1]);
    std::fprintf(stderr, "lapidary: unknown command '%s'; %s`lapidary --help` lists them\n",
                 argv[1],
                 nearest.empty() ? "" : fmt::format("the nearest is '{}'; ", nearest).c_str());
    return 2;
  }
  try {
    const std::vector<const char*> arguments = Arguments(argc, argv);
    app_.parse(argc, arguments.data());
  } catch (const CLI::ExtrasError& error) {
    const CLI::App& command = Innermost(app_);
    for (const std::string& extra : command.remaining()) {
      if (!extra.starts_with('-')) continue;
      std::fprintf(stderr, "lapidary: %s\n", ExplainUnknownFlag(extra, command).c_str());
      return 2;
    }
    app_.exit(error);
    return 2;
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
