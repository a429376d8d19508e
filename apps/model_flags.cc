#include "apps/model_flags.h"

#include <charconv>

#include "apps/named_models.h"
#include "session/bundled_models.h"

namespace lapidary {

void ModelFlags::AddTo(CLI::App& command) {
  constexpr const char* kGroup = "Model";
  command.add_option(
      "model", model,
      fmt::format("{}; with --load-format dummy, a preset (e2b e4b ...)", kDefaultModelHelp));
  command.add_option("--hf-repo", hf_repo, kHubFlagHelp)->group(kGroup);
  load.AddTo(command);
  command
      .add_option("--chunk-rows", chunk_rows,
                  fmt::format("Most prompt tokens in one step (default: {} on the CPU, {} on a "
                              "GPU, with experts {})",
                              DefaultLimits(DeviceKind::kCpu).max_num_batched_tokens,
                              DefaultLimits(DeviceKind::kCuda).max_num_batched_tokens,
                              kBatchedTokensWithExperts))
      ->group(kGroup)
      ->check(CLI::Range(1, 65536));
  AddDeviceFlag(&command, &device)->group(kGroup);
  command.add_option("--dummy-seed", dummy_seed, "Seed of dummy weights")
      ->group(kGroup)
      ->capture_default_str();
}

Status ModelFlags::Find(bool media, bool drafts) {
  RETURN_IF_ERROR(TakeHubFlag(hf_repo, &model));
  const ModelNeeds needs{
      .weights = !has_dummy_weights && load.Options().format != LoadFormat::kDummy,
      .media = media,
      .drafting = drafts ? &drafting : nullptr};
  const auto found = FindModelOrDefault(&model, needs);
  return found.ok() ? Status() : found.error();
}

Result<LoadOptions> ModelFlags::Options(int64_t max_tokens) const {
  ASSIGN_OR_RETURN(const DeviceChoice choice, ChooseDevice(device));
  LoadOptions options = load.Options();
  options.device = choice;
  options.limits.max_num_seqs = SchedulerLimits{}.max_num_seqs;
  options.limits.max_num_batched_tokens = chunk_rows;
  options.limits.max_model_len = static_cast<int>(max_tokens);
  if (has_dummy_weights) options.format = LoadFormat::kDummy;
  options.dummy_seed = dummy_seed;
  options.max_tokens = max_tokens;
  return options;
}

Result<LoadedModel> ModelFlags::Load(int64_t max_tokens, const DraftingRequest& request) const {
  ASSIGN_OR_RETURN(LoadOptions options, Options(max_tokens));
  options.drafting = request;
  ASSIGN_OR_RETURN(ModelDescription description, DescribeModel(model));
  return LoadModel(std::move(description), options);
}

Result<std::unique_ptr<Session>> ModelFlags::LoadSession(ModelFiles files, int64_t max_tokens,
                                                         int num_sequences, int max_num_seqs,
                                                         const MediaLimits& media) const {
  SessionOptions options;
  options.media = media;
  ASSIGN_OR_RETURN(options.adapter, lora.Load(files.description.plan));
  ASSIGN_OR_RETURN(options.load, Options(max_tokens));
  if (options.adapter) {
    RETURN_IF_ERROR(CheckTakesAdapters(options.load.device, options.load.num_ranks));
  }
  ASSIGN_OR_RETURN(options.load.drafting, drafting.Request());
  options.load.num_sequences = num_sequences;
  if (max_num_seqs > 0) options.load.limits.max_num_seqs = max_num_seqs;
  return Session::Load(std::move(files), options);
}

Result<std::vector<int32_t>> ParseIds(const std::string& text) {
  std::vector<int32_t> ids;
  const char* at = text.data();
  const char* end = text.data() + text.size();
  while (at < end) {
    if (*at == ',' || *at == ' ' || *at == '\n' || *at == '\t') {
      ++at;
      continue;
    }
    int32_t id = 0;
    const auto [next, error] = std::from_chars(at, end, id);
    if (error != std::errc() || (next < end && *next != ',' && *next != ' ' && *next != '\n')) {
      return MakeError("--ids: '{}' is not a list of token ids such as 2,5,9", text.substr(0, 60));
    }
    ids.push_back(id);
    at = next;
  }
  return ids;
}

Status CheckPrompt(const ModelPlan& plan, std::span<const int32_t> ids, int64_t max_new_tokens) {
  if (ids.empty()) return MakeError("the prompt is empty: give at least one token");
  for (const int32_t id : ids) {
    if (id < 0 || id >= plan.vocab_size) {
      return MakeError("token id {} is outside the vocabulary [0, {})", id, plan.vocab_size);
    }
  }
  const int64_t prompt_tokens = static_cast<int64_t>(ids.size());
  if (prompt_tokens + max_new_tokens > plan.max_context) {
    return MakeError("{} prompt tokens and {} new ones exceed the model's context of {}",
                     prompt_tokens, max_new_tokens, plan.max_context);
  }
  return {};
}

}  // namespace lapidary
