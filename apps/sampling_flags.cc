#include "apps/sampling_flags.h"

#include <spdlog/spdlog.h>

#include "base/random_bits.h"
#include "front/prompt.h"
#include "text/stop_strings.h"

namespace lapidary {
namespace {

template <typename T>
void Replace(T& value, const std::optional<T>& flag) {
  if (flag) value = *flag;
}

}  // namespace

void SamplingFlags::AddTo(CLI::App& command) {
  const auto add = [&](const char* name, auto& field, const char* help) {
    command.add_option(name, field, help)->group("Sampling (default: generation_config.json)");
  };
  add("--temperature", temperature, "Above 1 bolder, below 1 safer, 0: always the likeliest token");
  add("--top-k", top_k, "Draw from the K likeliest tokens; 0: all");
  add("--top-p", top_p, "Draw from the likeliest tokens that make up P of the probability");
  add("--min-p", min_p, "Leave out tokens below this share of the likeliest one's probability");
  add("--repetition-penalty", repetition_penalty, "Above 1: avoid tokens seen so far");
  add("--presence-penalty", presence_penalty, "-2 to 2: against tokens already generated");
  add("--frequency-penalty", frequency_penalty, "-2 to 2: the same, per occurrence");
  add("--seed", seed, "Same seed, same tokens (default: random)");
}

Result<SamplingParams> SamplingFlags::Over(const SamplingParams& defaults,
                                           int32_t vocab_size) const {
  SamplingParams params = defaults;
  Replace(params.temperature, temperature);
  Replace(params.top_k, top_k);
  Replace(params.top_p, top_p);
  Replace(params.min_p, min_p);
  Replace(params.repetition_penalty, repetition_penalty);
  Replace(params.presence_penalty, presence_penalty);
  Replace(params.frequency_penalty, frequency_penalty);
  RETURN_IF_ERROR(params.Validate(vocab_size));
  params.seed = seed.value_or(0);
  if (!params.greedy() && !seed) {
    params.seed = RandomBits() >> 32;  // enough to tell runs apart, and short enough to type
    spdlog::info("sampling with --seed {}", params.seed);
  }
  return params;
}

void StopFlags::AddTo(CLI::App& command) {
  constexpr const char* kGroup = "Stopping";
  command.add_option("--stop", strings, "Stop before this text; may be given several times")
      ->group(kGroup)
      ->type_name("TEXT")
      ->allow_extra_args(false);
  command.add_option("--min-tokens", min_tokens, "Nothing stops the answer before so many tokens")
      ->group(kGroup)
      ->check(CLI::Range(0, 1 << 28));
  command.add_flag("--ignore-eos", ignore_eos, "Go on past the model's stop tokens")->group(kGroup);
}

Status StopFlags::Check() const {
  for (const std::string& text : strings) RETURN_IF_ERROR(CheckUtf8(text, "--stop"));
  const auto created = StopStrings::Create(strings);
  if (!created.ok()) return MakeError("--stop: {}", created.error().message);
  return {};
}

}  // namespace lapidary
