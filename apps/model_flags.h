// Flags shared by every command that runs a model, and the checks of what they feed it.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "apps/command_line.h"
#include "apps/device_flag.h"
#include "apps/draft_flags.h"
#include "apps/load_flags.h"
#include "apps/lora_flag.h"
#include "session/session.h"

namespace lapidary {

struct ModelFlags {
  std::string model;  // Empty until Find: the user named none.
  std::string hf_repo;
  bool has_dummy_weights = false;  // whatever --load-format says
  LoadFlags load;
  int chunk_rows = 0;  // 0: as the device likes it
  uint64_t dummy_seed = 0;
  DeviceRequest device = DeviceRequest::kAuto;
  DraftFlags drafting;  // added by the commands that generate
  LoraFlag lora;        // added by those that take adapters

  void AddTo(CLI::App& command);
  // Makes a path of a name (named_models.h), and the bundled model's of none. Towers that are files
  // of their own are fetched only with `media`, the assistant only with `drafts`.
  Status Find(bool media, bool drafts);
  // Of the CPU, as was asked for.
  int NumThreads() const { return load.Options().num_threads; }
  // Room for one sequence of `max_tokens`. The choice of device is logged.
  Result<LoadedModel> Load(int64_t max_tokens,
                           const DraftingRequest& request = {.enabled = false}) const;
  // Room for `num_sequences` of them; more than run at once leave room for the prefix cache.
  // `max_num_seqs` of them run at once; 0: as many as there is room for. Towers are loaded for what
  // `media` allows and the model has.
  Result<std::unique_ptr<Session>> LoadSession(ModelFiles files, int64_t max_tokens,
                                               int num_sequences = 1, int max_num_seqs = 0,
                                               const MediaLimits& media = {}) const;

 private:
  Result<LoadOptions> Options(int64_t max_tokens) const;
};

// "2,5,9" or "2 5 9" -> ids.
Result<std::vector<int32_t>> ParseIds(const std::string& text);

// Refuses an empty prompt, ids outside the vocabulary and a prompt that leaves no room in the
// context.
Status CheckPrompt(const ModelPlan& plan, std::span<const int32_t> ids, int64_t max_new_tokens);

}  // namespace lapidary
