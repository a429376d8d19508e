// The drafter that an executor is given: what every backend is told of it.
#pragma once

#include <memory>
#include <vector>

#include "model/assistant_source.h"

namespace lapidary {

// From which position the drafts of a round ask. Published engines differ; the output is the same
// either way, only the share of accepted drafts is not.
enum class DraftPosition {
  kOfLastToken,  // p: that of the last token, whose keys are not there yet
  kBeforeIt,     // p - 1: that of the last cached key
};

// Which token of its distribution a drafter proposes.
enum class DraftDraw {
  // The one that the target's own draw would give: raced with the same seed, number and ids, after
  // the same penalties and filters. Alike distributions then mostly agree.
  kCoupled,
  kLikeliest,
};

struct DrafterOptions {
  AssistantPlan plan;  // paired with the executor's model
  std::shared_ptr<const AssistantSource> source;
  DraftPosition position = DraftPosition::kOfLastToken;
  DraftDraw draw = DraftDraw::kCoupled;
  // Not empty: drafts are accepted at these rates instead (sampling/simulated_acceptance.h), by
  // their place in the round, and take the place of the target's tokens.
  std::vector<float> simulated_rates;
};

}  // namespace lapidary
