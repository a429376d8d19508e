// --image, --audio and --max-soft-tokens, of the commands whose prompts may hold media.
#pragma once

#include <string>
#include <vector>

#include "apps/command_line.h"
#include "apps/model_flags.h"
#include "load/model_directory.h"
#include "session/prompt_media.h"
#include "session/session.h"

namespace lapidary {

struct MediaFlags {
  std::vector<std::string> images;
  std::vector<std::string> audio;
  int max_soft_tokens = 0;  // 0: what the checkpoint says

  void AddTo(CLI::App& command);
  bool empty() const { return images.empty() && audio.empty(); }
  // Decodes the files and runs the model's towers over them, which are read for it, where the model
  // will run.
  Result<PromptMedia> Encode(const ModelDescription& model, const ModelFlags& flags) const;
};

// --limit-mm-per-prompt: what is not named is 0.
inline constexpr const char* kDefaultMediaLimits = R"({"image": 4, "audio": 1, "video": 1})";
Result<MediaLimits> ReadMediaLimits(const std::string& text);

// For --json: [{kind, soft_tokens, height, width}] in the prompt's order; sizes are those the model
// saw, null for audio.
Json MediaJson(const PlacedMedia& placed);

}  // namespace lapidary
