// The list of subcommands; main.cc calls each in the order --help shows them.
#pragma once

#include "apps/command_line.h"

namespace lapidary {

void AddBenchCommand(CommandLine& command_line);
void AddChatCommand(CommandLine& command_line);
void AddGenerateCommand(CommandLine& command_line);
void AddServeCommand(CommandLine& command_line);
void AddEvalCommand(CommandLine& command_line);
void AddTokenizeCommand(CommandLine& command_line);
void AddDetokenizeCommand(CommandLine& command_line);
void AddInspectCommand(CommandLine& command_line);
void AddPlanCommand(CommandLine& command_line);
void AddDraftCommand(CommandLine& command_line);
void AddLogitsCommand(CommandLine& command_line);
void AddConvertCommand(CommandLine& command_line);
void AddSynthCommand(CommandLine& command_line);
void AddPullCommand(CommandLine& command_line);
void AddListCommand(CommandLine& command_line);
void AddRmCommand(CommandLine& command_line);
void AddRenderCommand(CommandLine& command_line);

}  // namespace lapidary
