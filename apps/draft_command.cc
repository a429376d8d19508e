// `lapidary draft`: one round of the assistant behind a prompt, with its logits.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "apps/commands.h"
#include "apps/model_flags.h"
#include "base/json.h"
#include "engine/single_sequence.h"

namespace lapidary {
namespace {

constexpr int kNumTop = 5;

struct DraftCommandFlags {
  ModelFlags model;
  std::string ids;
  bool json = false;
};

// [[id, logit], ...], the largest first.
nlohmann::ordered_json TopLogits(std::span<const float> logits) {
  std::vector<int32_t> ids(logits.size());
  std::iota(ids.begin(), ids.end(), 0);
  const size_t count = std::min<size_t>(kNumTop, ids.size());
  std::partial_sort(
      ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(count), ids.end(),
      [&](int32_t a, int32_t b) { return logits[a] != logits[b] ? logits[a] > logits[b] : a < b; });
  auto top = nlohmann::ordered_json::array();
  for (size_t rank = 0; rank < count && std::isfinite(logits[ids[rank]]); ++rank) {
    top.push_back({ids[rank], logits[ids[rank]]});
  }
  return top;
}

Status Draft(const DraftCommandFlags& flags) {
  ASSIGN_OR_RETURN(const std::vector<int32_t> ids, ParseIds(flags.ids));
  ASSIGN_OR_RETURN(const DraftingRequest drafting, flags.model.drafting.Request());
  {
    ASSIGN_OR_RETURN(const ModelDescription description, DescribeModel(flags.model.model));
    RETURN_IF_ERROR(CheckPrompt(description.plan, ids, 1 + drafting.num_drafts));
  }
  ASSIGN_OR_RETURN(LoadedModel model,
                   flags.model.Load(std::ssize(ids) + 1 + drafting.num_drafts, drafting));
  if (model.executor->max_drafts() == 0) {
    return MakeError("there is no assistant beside {}: name one with --spec-model",
                     flags.model.model);
  }
  const auto greedy = std::make_shared<SamplingParams>(SamplingParams{.temperature = 0.0f});
  SingleSequence sequence(*model.executor, model.limits.max_num_batched_tokens, greedy,
                          static_cast<int32_t>(ids.size()));
  ASSIGN_OR_RETURN(const SampledToken next, sequence.AppendAndSample(ids));
  ASSIGN_OR_RETURN(const StepOutput round, sequence.DraftRound(drafting.num_drafts));

  nlohmann::ordered_json result;
  result["next_id"] = next.id;
  result["draft_ids"] = round.draft_ids;
  auto& tops = result["draft_top"] = nlohmann::ordered_json::array();
  const size_t vocab_size = static_cast<size_t>(model.description.plan.vocab_size);
  for (size_t draft = 0; draft < round.draft_ids.size(); ++draft) {
    tops.push_back(
        TopLogits(std::span(round.draft_logits).subspan(draft * vocab_size, vocab_size)));
  }
  if (flags.json) {
    fmt::print("{}\n", result.dump());
    return {};
  }
  fmt::print("next {}\n", next.id);
  for (size_t draft = 0; draft < round.draft_ids.size(); ++draft) {
    fmt::print("draft {}: {}  of {}\n", draft + 1, round.draft_ids[draft], tops[draft].dump());
  }
  return {};
}

}  // namespace

void AddDraftCommand(CommandLine& command_line) {
  auto flags = std::make_shared<DraftCommandFlags>();
  CLI::App* command = command_line.Add(
      "draft", "Print one greedy round of drafts behind a prompt, with the assistant's top logits",
      [flags]() -> Status {
        RETURN_IF_ERROR(flags->model.Find(/*media=*/false, /*drafts=*/true));
        return Draft(*flags);
      });
  flags->model.AddTo(*command);
  flags->model.drafting.AddAssistantTo(*command);
  command
      ->add_option("--tokens", flags->model.drafting.spec_tokens,
                   fmt::format("Drafts of the round (default: {})", kDefaultDrafts))
      ->check(CLI::Range(1, int{kMaxDrafts}));
  command->add_option("--ids", flags->ids, "Token ids, used as they stand: 2,5,9")->required();
  command->add_flag("--json", flags->json, "Print one JSON object");
}

}  // namespace lapidary
