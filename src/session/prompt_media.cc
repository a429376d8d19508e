#include "session/prompt_media.h"

#include <algorithm>

namespace lapidary {
namespace {

struct Kind {
  const char* name;
  int token;
  int begin_token;
  int end_token;
  const std::vector<NamedMedium>* media;
  bool is_image;
};

std::vector<Kind> KindsOf(const MediaTokens& tokens, const PromptMedia& media) {
  return {{"image", tokens.image, tokens.begin_image, tokens.end_image, &media.images, true},
          {"audio", tokens.audio, tokens.begin_audio, tokens.end_audio, &media.audio, false}};
}

const Kind* KindOf(const std::vector<Kind>& kinds, int32_t id) {
  for (const Kind& kind : kinds) {
    if (kind.token == id) return &kind;
  }
  return nullptr;
}

Error NotMultimodal(const ModelPlan& plan) {
  return MakeError("{} takes text only: it has no placeholder tokens for images and audio",
                   plan.architecture);
}

Error WrongCount(const Kind& kind, size_t num_found, const char* what) {
  return MakeError("the prompt has {} {} of the {} token {}, but {} {} files are given", num_found,
                   what, kind.name, kind.token, kind.media->size(), kind.name);
}

}  // namespace

Result<std::vector<int32_t>> ExpandPlaceholders(const ModelPlan& plan, std::span<const int32_t> ids,
                                                const PromptMedia& media) {
  if (!plan.media_tokens) return NotMultimodal(plan);
  const std::vector<Kind> kinds = KindsOf(*plan.media_tokens, media);
  for (const Kind& kind : kinds) {
    const auto num_found = static_cast<size_t>(std::count(ids.begin(), ids.end(), kind.token));
    if (num_found != kind.media->size()) return WrongCount(kind, num_found, "occurrences");
  }
  std::vector<int32_t> expanded;
  std::vector<size_t> num_used(kinds.size());
  for (const int32_t id : ids) {
    const Kind* kind = KindOf(kinds, id);
    if (kind == nullptr) {
      expanded.push_back(id);
      continue;
    }
    const size_t medium_idx = num_used[kind - kinds.data()]++;
    expanded.push_back(kind->begin_token);
    expanded.insert(expanded.end(), (*kind->media)[medium_idx].medium.num_tokens, id);
    expanded.push_back(kind->end_token);
  }
  return expanded;
}

Result<PlacedMedia> PlaceMedia(const ModelPlan& plan, std::span<const int32_t> ids,
                               const PromptMedia& media) {
  if (!plan.media_tokens) return NotMultimodal(plan);
  const std::vector<Kind> kinds = KindsOf(*plan.media_tokens, media);
  std::vector<size_t> num_runs(kinds.size());
  SoftTokenRuns runs;
  PlacedMedia placed;
  for (size_t begin = 0; begin < ids.size();) {
    const Kind* kind = KindOf(kinds, ids[begin]);
    size_t end = begin + 1;
    while (kind != nullptr && end < ids.size() && ids[end] == ids[begin]) ++end;
    const size_t length = end - begin;
    const auto position = static_cast<int32_t>(begin);
    begin = end;
    if (kind == nullptr) continue;
    const size_t run_idx = num_runs[kind - kinds.data()]++;
    if (run_idx >= kind->media->size()) continue;  // counted, and refused below
    const auto& [name, medium] = (*kind->media)[run_idx];
    if (static_cast<size_t>(medium.num_tokens) != length) {
      return MakeError("{} is {} soft tokens, but its run of the {} token {} has {}", name,
                       medium.num_tokens, kind->name, kind->token, length);
    }
    runs.push_back({position, medium.num_tokens, kind->is_image, medium.rows});
    placed.digests.push_back({position, medium.digest.low, medium.digest.high});
    placed.media.push_back(&medium);
  }
  for (const Kind& kind : kinds) {
    const size_t num_found = num_runs[&kind - kinds.data()];
    if (num_found != kind.media->size()) return WrongCount(kind, num_found, "runs");
  }
  if (!runs.empty()) placed.runs = std::make_shared<const SoftTokenRuns>(std::move(runs));
  return placed;
}

void ReplaceIdsBeyondVocabulary(const ModelPlan& plan, const PlacedMedia& placed,
                                std::vector<int32_t>& ids) {
  if (!placed.runs) return;
  for (const SoftTokenRun& run : *placed.runs) {
    for (int32_t position = run.position; position < run.end(); ++position) {
      if (ids[position] >= plan.vocab_size) ids[position] = plan.media_tokens->pad;
    }
  }
}

}  // namespace lapidary
