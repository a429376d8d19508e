#include "session/prompt_media.h"

#include <algorithm>

namespace lapidary {
namespace {

struct Kind {
  const char* name;
  int token;
  std::vector<const NamedMedium*> media;
  bool is_image;
};

std::vector<const NamedMedium*> Select(const std::vector<NamedMedium>& media, bool video_frames) {
  std::vector<const NamedMedium*> selected;
  for (const NamedMedium& medium : media) {
    if (medium.is_video_frame == video_frames) selected.push_back(&medium);
  }
  return selected;
}

// Of the tokens in an expanded prompt.
std::vector<Kind> KindsOf(const MediaTokens& tokens, const PromptMedia& media) {
  return {{"image", tokens.image, Select(media.images, /*video_frames=*/false), true},
          {"video", tokens.video, Select(media.images, /*video_frames=*/true), true},
          {"audio", tokens.audio, Select(media.audio, /*video_frames=*/false), false}};
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

Error WrongCount(const char* kind, int token, size_t num_found, const char* what,
                 size_t num_given) {
  return MakeError("the prompt has {} {} of the {} token {}, but {} {} files are given", num_found,
                   what, kind, token, num_given, kind);
}

}  // namespace

Result<std::vector<int32_t>> ExpandPlaceholders(const ModelPlan& plan, std::span<const int32_t> ids,
                                                const PromptMedia& media) {
  if (!plan.media_tokens) return NotMultimodal(plan);
  const MediaTokens& tokens = *plan.media_tokens;
  const auto count = [&](int token) {
    return static_cast<size_t>(std::count(ids.begin(), ids.end(), token));
  };
  const size_t num_images = count(tokens.image);
  if (num_images != media.images.size()) {
    return WrongCount("image", tokens.image, num_images, "occurrences", media.images.size());
  }
  const size_t num_sounds = count(tokens.audio);
  if (num_sounds != media.audio.size()) {
    return WrongCount("audio", tokens.audio, num_sounds, "occurrences", media.audio.size());
  }
  std::vector<int32_t> expanded;
  auto next_image = media.images.begin();
  auto next_sound = media.audio.begin();
  for (const int32_t id : ids) {
    if (id == tokens.image) {
      const NamedMedium& image = *next_image++;
      expanded.push_back(tokens.begin_image);
      expanded.insert(expanded.end(), image.medium.num_tokens,
                      image.is_video_frame ? tokens.video : tokens.image);
      expanded.push_back(tokens.end_image);
    } else if (id == tokens.audio) {
      expanded.push_back(tokens.begin_audio);
      expanded.insert(expanded.end(), (next_sound++)->medium.num_tokens, tokens.audio);
      expanded.push_back(tokens.end_audio);
    } else {
      expanded.push_back(id);
    }
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
    if (run_idx >= kind->media.size()) continue;  // counted, and refused below
    const std::string& name = kind->media[run_idx]->name;
    const EncodedMedium& medium = kind->media[run_idx]->medium;
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
    if (num_found != kind.media.size()) {
      return WrongCount(kind.name, kind.token, num_found, "runs", kind.media.size());
    }
  }
  if (!runs.empty()) placed.runs = std::make_shared<const SoftTokenRuns>(std::move(runs));
  return placed;
}

Result<PlacedMedia> ExpandAndPlaceMedia(const ModelPlan& plan, const Tokenizer& tokenizer,
                                        const PromptMedia& media, ChatPrompt* prompt) {
  ASSIGN_OR_RETURN(prompt->ids, ExpandPlaceholders(plan, prompt->ids, media));
  ASSIGN_OR_RETURN(PlacedMedia placed, PlaceMedia(plan, prompt->ids, media));
  prompt->cache_points = ChatCachePoints(tokenizer, prompt->ids);
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
