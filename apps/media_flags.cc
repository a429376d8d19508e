#include "apps/media_flags.h"

#include "base/read_file.h"
#include "media/decode_audio.h"
#include "media/decode_image.h"

namespace lapidary {
namespace {

template <typename T>
Result<T> WithName(const std::string& path, Result<T> result) {
  if (result.ok()) return result;
  return MakeError("{}: {}", path, result.error().message);
}

}  // namespace

void MediaFlags::AddTo(CLI::App& command) {
  constexpr const char* kGroup = "Images and audio";
  command
      .add_option("--image", images,
                  "A JPEG, PNG or WebP file for the next image placeholder; may be given again")
      ->group(kGroup)
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  command
      .add_option("--audio", audio,
                  "A WAV, FLAC, Ogg or MP3 file for the next audio placeholder; may be given again")
      ->group(kGroup)
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  command
      .add_option("--max-soft-tokens", max_soft_tokens,
                  "Tokens that an image may become, more see finer detail (default: what the "
                  "checkpoint's processor_config.json says, or 280)")
      ->group(kGroup)
      ->check(CLI::IsMember({70, 140, 280, 560, 1120}));
}

Result<PromptMedia> MediaFlags::Encode(const ModelDescription& model,
                                       const ModelFlags& flags) const {
  PromptMedia media;
  if (empty()) return media;
  if (!model.towers) {
    return MakeError(
        "{} has no towers for images and audio: name a checkpoint directory, or put its mmproj "
        "file beside a GGUF file",
        model.name);
  }
  const auto [plan, problem] = FindUsableTowers(model.config, model.name);
  const bool lacks_some =
      (!images.empty() && !plan.has_vision()) || (!audio.empty() && !plan.has_audio());
  if (lacks_some && !problem.empty()) return MakeError("{}", problem);
  ASSIGN_OR_RETURN(const DeviceChoice device, ChooseDevice(flags.device));
  ASSIGN_OR_RETURN(const auto encoder,
                   MediaEncoder::Load(plan, *model.towers, !images.empty(), !audio.empty(),
                                      flags.NumThreads(), device));
  for (const std::string& path : images) {
    ASSIGN_OR_RETURN(const std::string file,
                     ReadFile(path, static_cast<size_t>(ImageLimits{}.max_bytes)));
    ASSIGN_OR_RETURN(EncodedMedium medium,
                     WithName(path, encoder->EncodeImageFile(file, max_soft_tokens)));
    media.images.push_back({path, std::move(medium)});
  }
  for (const std::string& path : audio) {
    ASSIGN_OR_RETURN(const std::string file,
                     ReadFile(path, static_cast<size_t>(AudioLimits{}.max_bytes)));
    ASSIGN_OR_RETURN(EncodedMedium medium, WithName(path, encoder->EncodeAudioFile(file)));
    media.audio.push_back({path, std::move(medium)});
  }
  return media;
}

Result<MediaLimits> ReadMediaLimits(const std::string& text) {
  constexpr const char* kFlag = "--limit-mm-per-prompt";
  constexpr IntRange kRange{.min = 0, .max = 1024};
  ASSIGN_OR_RETURN(const Json json, ParseJson(text, kFlag));
  JsonFields fields(json, kFlag);
  MediaLimits limits;
  limits.images = static_cast<int>(fields.IntOr("image", 0, kRange));
  limits.audio = static_cast<int>(fields.IntOr("audio", 0, kRange));
  limits.videos = static_cast<int>(fields.IntOr("video", 0, kRange));
  RETURN_IF_ERROR(fields.status());
  return limits;
}

Json MediaJson(const PlacedMedia& placed) {
  Json list = Json::array();
  for (const EncodedMedium* medium : placed.media) {
    const bool is_image = medium->kind == MediaKind::kImage;
    list.push_back({{"kind", MediaKindName(medium->kind)},
                    {"soft_tokens", medium->num_tokens},
                    {"height", is_image ? Json(medium->height) : Json(nullptr)},
                    {"width", is_image ? Json(medium->width) : Json(nullptr)}});
  }
  return list;
}

}  // namespace lapidary
