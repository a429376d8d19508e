#include "apps/commands.h"

int main(int argc, char** argv) {
  lapidary::CommandLine command_line;
  lapidary::AddGenerateCommand(command_line);
  lapidary::AddTokenizeCommand(command_line);
  lapidary::AddDetokenizeCommand(command_line);
  lapidary::AddInspectCommand(command_line);
  lapidary::AddLogitsCommand(command_line);
  lapidary::AddSynthCommand(command_line);
  return command_line.Run(argc, argv);
}
