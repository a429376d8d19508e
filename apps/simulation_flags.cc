#include "apps/simulation_flags.h"

#include <filesystem>

#include "model/presets.h"
#include "session/bundled_models.h"

namespace lapidary {

std::vector<CLI::Option*> SimulationFlags::AddTo(CLI::App& command) {
  constexpr const char* kGroup = "Model";
  std::vector<CLI::Option*> options = {
      command
          .add_option("--simulate", card,
                      "With --device simulated: the GPU whose measured times steps take. Answers "
                      "are made up and no weights are read: for tests of clients, routers and "
                      "fleets (default: h200)")
          ->check(CLI::IsMember(simulated::CardNames())),
      command
          .add_option("--simulate-speed", speed,
                      "With --device simulated: so many times as fast as that GPU; below 1 is "
                      "slower, for many servers on few cores")
          ->check(CLI::Range(0.01, 1000.0))
          ->capture_default_str(),
  };
  for (CLI::Option* option : options) option->group(kGroup);
  return options;
}

Status SimulationFlags::Complete(DeviceRequest device, const std::string& model,
                                 std::string* tokenizer) {
  if (device != DeviceRequest::kSimulated) {
    if (card.empty() && speed == 1.0) return {};
    return MakeError("{} is for --device simulated: add that, or leave it out",
                     card.empty() ? "--simulate-speed" : "--simulate");
  }
  if (card.empty()) card = simulated::CardNames().front();
  std::error_code error;
  if (tokenizer->empty() && IsPreset(model) && !std::filesystem::exists(model, error)) {
    ASSIGN_OR_RETURN(*tokenizer, FindBundled(kDefaultModel));
  }
  return {};
}

simulated::SimulationOptions SimulationFlags::Options() const {
  simulated::SimulationOptions options;
  const auto found = simulated::FindCard(card);
  if (found.ok()) options.card = *found;
  options.speed = speed;
  return options;
}

}  // namespace lapidary
