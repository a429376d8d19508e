// Flags of speculative decoding, the same on every command that generates.
#pragma once

#include <string>
#include <vector>

#include "apps/command_line.h"
#include "load/drafting.h"

namespace lapidary {

struct DraftFlags {
  bool no_spec = false;
  std::string spec_model;
  std::string spec_method;  // empty: as the config says, or assistant
  int spec_tokens = 0;      // 0: as the config says, or the default
  bool spec_fixed = false;
  std::string spec_position = "p";
  std::string spec_draw = "likeliest";
  int lookup_min = 0;  // 0: as the config says, or the default
  int lookup_max = 0;
  std::string speculative_config;
  double simulate_accept_length = 0.0;
  std::string simulate_schedule = "constant";

  // --spec-model and --spec-position alone.
  std::vector<CLI::Option*> AddAssistantTo(CLI::App& command);
  // All but the simulation. The options added, so that a command may tie environment variables to
  // them.
  std::vector<CLI::Option*> AddTo(CLI::App& command);
  // --spec-simulate-*: for benchmarks alone.
  void AddSimulationTo(CLI::App& command);

  // --no-spec overrides --spec-*, those --speculative-config, that the assistant
  // beside the model.
  Result<DraftingRequest> Request() const;
};

}  // namespace lapidary
