// Images and audio in a prompt: which placeholder tokens they belong to.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "executor/soft_tokens.h"
#include "front/prompt.h"
#include "kv/prefix_hashes.h"
#include "model/plan.h"
#include "towers/media_encoder.h"

namespace lapidary {

// A medium and what messages call it: a file's name, "image 2".
struct NamedMedium {
  std::string name;
  EncodedMedium medium;
  bool is_video_frame = false;
};

// Of one prompt; each kind in the order of its placeholders.
struct PromptMedia {
  std::vector<NamedMedium> images;  // and frames of videos
  std::vector<NamedMedium> audio;

  bool empty() const { return images.empty() && audio.empty(); }
};

// What a request takes of them.
struct PlacedMedia {
  std::shared_ptr<const SoftTokenRuns> runs;  // null: there are none
  std::vector<MediaDigest> digests;           // as runs
  std::vector<const EncodedMedium*> media;    // as runs; of the PromptMedia they were placed from
};

// The prompt with each placeholder token made as long as its medium, between the tokens that begin
// and end one; a frame's placeholder is that of an image and becomes tokens of a video. An error
// when there are more or fewer placeholders than media.
Result<std::vector<int32_t>> ExpandPlaceholders(const ModelPlan& plan, std::span<const int32_t> ids,
                                                const PromptMedia& media);

// Every maximal run of a placeholder token gets the next medium of its kind. An error when there
// are more or fewer runs than media, or one has another length than its medium.
Result<PlacedMedia> PlaceMedia(const ModelPlan& plan, std::span<const int32_t> ids,
                               const PromptMedia& media);

// Both, in a prompt whose places to go on from move with its tokens.
Result<PlacedMedia> ExpandAndPlaceMedia(const ModelPlan& plan, const Tokenizer& tokenizer,
                                        const PromptMedia& media, ChatPrompt* prompt);

// Placeholders that no vocabulary row exists for become pad tokens: nobody embeds them.
void ReplaceIdsBeyondVocabulary(const ModelPlan& plan, const PlacedMedia& placed,
                                std::vector<int32_t>& ids);

}  // namespace lapidary
