// `lapidary logits`: teacher-forced logits of every position, as a NumPy file.
#include "apps/commands.h"
#include "apps/media_flags.h"
#include "apps/model_flags.h"
#include "apps/npy.h"
#include "engine/single_sequence.h"

namespace lapidary {
namespace {

// Bounds the logits held at once: 262,144 floats a row.
constexpr int32_t kMaxLogitRows = 128;

Status Logits(const ModelFlags& model_flags, const MediaFlags& media_flags,
              const std::string& ids_text, const std::string& output) {
  ASSIGN_OR_RETURN(std::vector<int32_t> ids, ParseIds(ids_text));
  PlacedMedia placed;
  ASSIGN_OR_RETURN(const ModelDescription description, DescribeModel(model_flags.model));
  ASSIGN_OR_RETURN(const PromptMedia media, media_flags.Encode(description, model_flags));
  if (description.plan.media_tokens || !media.empty()) {
    ASSIGN_OR_RETURN(placed, PlaceMedia(description.plan, ids, media));
    ReplaceIdsBeyondVocabulary(description.plan, placed, ids);
  }
  RETURN_IF_ERROR(CheckPrompt(description.plan, ids, /*max_new_tokens=*/0));
  ASSIGN_OR_RETURN(const auto adapter, model_flags.lora.Load(description.plan));
  ASSIGN_OR_RETURN(LoadedModel model, model_flags.Load(static_cast<int64_t>(ids.size())));
  if (placed.runs && !model.executor->takes_media()) {
    return MakeError("the model takes no images or audio");
  }
  if (adapter && !model.executor->takes_adapters()) return NoAdaptersHere();
  ASSIGN_OR_RETURN(NpyWriter writer, NpyWriter::Create(output, static_cast<int64_t>(ids.size()),
                                                       model.description.plan.vocab_size));
  const int chunk_rows = model_flags.chunk_rows > 0 ? model_flags.chunk_rows : kMaxLogitRows;
  SingleSequence sequence(*model.executor, std::min(chunk_rows, kMaxLogitRows),
                          /*sampling=*/nullptr, /*prompt_len=*/0, placed.runs, adapter);
  return sequence.Append(ids, [&](std::span<const float> rows) { return writer.Append(rows); });
}

}  // namespace

void AddLogitsCommand(CommandLine& command_line) {
  struct Flags {
    ModelFlags model;
    MediaFlags media;
    std::string ids;
    std::string output;
  };
  auto flags = std::make_shared<Flags>();
  CLI::App* command = command_line.Add(
      "logits", "Write the logits of every position of a prompt as float32 [tokens, vocab] (.npy)",
      [flags]() -> Status {
        RETURN_IF_ERROR(flags->model.Find(/*media=*/!flags->media.empty(), /*drafts=*/false));
        return Logits(flags->model, flags->media, flags->ids, flags->output);
      });
  flags->model.AddTo(*command);
  flags->model.lora.AddTo(*command);
  command->add_option("--ids", flags->ids, "Token ids, used as they stand: 2,5,9")->required();
  flags->media.AddTo(*command);
  command->add_option("--output", flags->output, "File to write")->required();
}

}  // namespace lapidary
