#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include "apps/commands.h"

int main(int argc, char** argv) {
  // stdout is for results alone.
  spdlog::set_default_logger(spdlog::stderr_color_mt("lapidary"));
  spdlog::set_pattern("%H:%M:%S.%e %^%L%$ %v");

  lapidary::CommandLine command_line;
  lapidary::AddChatCommand(command_line);
  lapidary::AddGenerateCommand(command_line);
  lapidary::AddServeCommand(command_line);
  lapidary::AddPullCommand(command_line);
  lapidary::AddListCommand(command_line);
  lapidary::AddRmCommand(command_line);
  lapidary::AddEvalCommand(command_line);
  lapidary::AddBenchCommand(command_line);
  lapidary::AddTokenizeCommand(command_line);
  lapidary::AddDetokenizeCommand(command_line);
  lapidary::AddInspectCommand(command_line);
  lapidary::AddPlanCommand(command_line);
  lapidary::AddLogitsCommand(command_line);
  lapidary::AddDraftCommand(command_line);
  lapidary::AddConvertCommand(command_line);
  lapidary::AddSynthCommand(command_line);
  lapidary::AddRenderCommand(command_line);
  return command_line.Run(argc, argv);
}
