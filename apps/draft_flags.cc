#include "apps/draft_flags.h"

#include <spdlog/spdlog.h>

#include <algorithm>

#include "executor/step_positions.h"

namespace lapidary {
namespace {

constexpr const char* kGroup = "Drafting";

constexpr const char* kConfigKeys[] = {"model", "num_speculative_tokens", "method",
                                       "prompt_lookup_min", "prompt_lookup_max"};

Status CheckLookup(const LookupLengths& lookup) {
  if (lookup.min <= lookup.max) return {};
  return MakeError(
      "text that repeats is looked up by {} to {} of its last tokens: the least must "
      "not be more than the most",
      lookup.min, lookup.max);
}

// {"model": DIR, "num_speculative_tokens": 4} or {"method": "ngram", "prompt_lookup_max": 4}, as
// vLLM has it.
Status TakeConfig(const std::string& text, DraftingRequest& request) {
  ASSIGN_OR_RETURN(const Json json, ParseJson(text, "--speculative-config"));
  JsonFields fields(json, "--speculative-config");
  request.assistant = fields.StringOr("model", "");
  request.num_drafts = static_cast<int>(
      fields.IntOr("num_speculative_tokens", kDefaultDrafts, {.min = 0, .max = kMaxDrafts}));
  const auto length_or = [&](const char* key, int fallback) {
    return static_cast<int32_t>(fields.IntOr(key, fallback, {.min = 1, .max = kMaxLookup}));
  };
  request.lookup.max = length_or("prompt_lookup_max", LookupLengths().max);
  request.lookup.min =
      length_or("prompt_lookup_min", std::min(LookupLengths().min, request.lookup.max));
  const std::string method = fields.StringOr("method", "mtp");
  if (method == "ngram") {
    request.method = DraftMethod::kNgram;
  } else if (method != "mtp") {
    fields.Fail(
        fmt::format("method '{}' is not there; Gemma 4 drafts by 'mtp' or 'ngram'", method));
  }
  if (json.is_object()) {
    for (const auto& [key, value] : json.items()) {
      if (std::ranges::find(kConfigKeys, key) == std::end(kConfigKeys)) {
        fields.Fail(fmt::format("unknown key '{}'", ShortUtf8(key, 64)));
      }
    }
  }
  return fields.status();
}

}  // namespace

std::vector<CLI::Option*> DraftFlags::AddAssistantTo(CLI::App& command) {
  return {
      command
          .add_option(
              "--spec-model", spec_model,
              "Assistant that drafts tokens (default: MODEL-assistant or MODEL/assistant; of "
              "MODEL.gguf MODEL-assistant.gguf, if there is one)")
          ->group(kGroup),
      command
          .add_option("--spec-position", spec_position,
                      "Where drafts ask from: the last token's position, or the one before")
          ->check(CLI::IsMember({"p", "p-1"}))
          ->capture_default_str()
          ->group(kGroup),
  };
}

std::vector<CLI::Option*> DraftFlags::AddTo(CLI::App& command) {
  std::vector<CLI::Option*> options = AddAssistantTo(command);
  const auto add = [&](CLI::Option* option) { options.push_back(option->group(kGroup)); };
  add(command
          .add_option("--spec-method", spec_method,
                      "Who drafts: an assistant, ngram (text that repeats; needs none, on a CPU), "
                      "or auto, both (default: assistant)")
          ->check(CLI::IsMember({"assistant", "ngram", "auto"})));
  add(command
          .add_option("--spec-lookup-max", lookup_max,
                      fmt::format("ngram: most of the last tokens that are looked up (default: {})",
                                  LookupLengths().max))
          ->check(CLI::Range(1, int{kMaxLookup})));
  add(command
          .add_option(
              "--spec-lookup-min", lookup_min,
              fmt::format("ngram: and the least of them (default: {})", LookupLengths().min))
          ->check(CLI::Range(1, int{kMaxLookup})));
  add(command
          .add_option("--spec-tokens", spec_tokens,
                      fmt::format("Most drafts of a round (default: {})", kDefaultDrafts))
          ->check(CLI::Range(1, int{kMaxDrafts})));
  add(command.add_flag("--spec-fixed", spec_fixed,
                       "Always draft --spec-tokens, also where fewer are faster"));
  add(command
          .add_option(
              "--spec-draw", spec_draw,
              "likeliest: the assistant's first choice; coupled: drawn with the target's own "
              "dice. The answers are the same")
          ->check(CLI::IsMember({"likeliest", "coupled"}))
          ->capture_default_str());
  add(command.add_option("--speculative-config", speculative_config,
                         "The same as JSON: {\"model\": DIR, \"num_speculative_tokens\": 4}"));
  add(command.add_flag("--no-spec", no_spec, "Do not draft"));
  return options;
}

void DraftFlags::AddSimulationTo(CLI::App& command) {
  command
      .add_option("--spec-simulate-accept-length", simulate_accept_length,
                  "Accept so many tokens a round on average, whatever was drafted: for timings "
                  "with random weights")
      ->check(CLI::Range(1.0, kMaxDrafts + 1.0))
      ->group(kGroup);
  command
      .add_option("--spec-simulate-schedule", simulate_schedule,
                  "constant: every draft at one rate; min-variance: rounds as alike as possible")
      ->check(CLI::IsMember({"constant", "min-variance"}))
      ->capture_default_str()
      ->group(kGroup);
}

Result<DraftingRequest> DraftFlags::Request() const {
  DraftingRequest request;
  request.enabled = !no_spec;
  if (!speculative_config.empty()) RETURN_IF_ERROR(TakeConfig(speculative_config, request));
  if (!spec_model.empty()) request.assistant = spec_model;
  if (spec_tokens > 0) request.num_drafts = spec_tokens;
  if (!spec_method.empty()) {
    request.method = spec_method == "ngram"  ? DraftMethod::kNgram
                     : spec_method == "auto" ? DraftMethod::kAuto
                                             : DraftMethod::kAssistant;
  }
  if (lookup_max > 0) {
    request.lookup.max = lookup_max;
    request.lookup.min = std::min(request.lookup.min, lookup_max);
  }
  if (lookup_min > 0) request.lookup.min = lookup_min;
  RETURN_IF_ERROR(CheckLookup(request.lookup));
  request.adapt = !spec_fixed;
  request.position = spec_position == "p" ? DraftPosition::kOfLastToken : DraftPosition::kBeforeIt;
  request.draw = spec_draw == "coupled" ? DraftDraw::kCoupled : DraftDraw::kLikeliest;
  request.simulated_accept_length = simulate_accept_length;
  request.simulated_schedule = simulate_schedule == "constant" ? SimulatedSchedule::kConstant
                                                               : SimulatedSchedule::kMinVariance;
  if (request.enabled && simulate_accept_length > 0.0) {
    spdlog::warn(
        "SIMULATED: {} tokens a round are accepted whatever was drafted; the text means nothing",
        simulate_accept_length);
  }
  return request;
}

}  // namespace lapidary
