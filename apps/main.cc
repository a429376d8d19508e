#include "apps/commands.h"

int main(int argc, char** argv) {
  lapidary::CommandLine command_line;
  return command_line.Run(argc, argv);
}
