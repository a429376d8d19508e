#include "towers/processor_config.h"

#include "base/json_fields.h"
#include "base/read_file.h"
#include "media/image_size.h"

namespace lapidary {

Result<int> ReadDefaultSoftTokens(const std::filesystem::path& directory) {
  constexpr size_t kMaxBytes = 1 << 20;
  const std::filesystem::path path = directory / "processor_config.json";
  std::error_code failed;
  if (!std::filesystem::exists(path, failed)) return kDefaultSoftTokens;
  ASSIGN_OR_RETURN(const std::string text, ReadFile(path, kMaxBytes));
  ASSIGN_OR_RETURN(const Json json, ParseJson(text, path.string()));
  JsonFields fields(json, path.string());
  const Json* images = fields.OptionalObject("image_processor");
  RETURN_IF_ERROR(fields.status());
  if (images == nullptr) return kDefaultSoftTokens;
  JsonFields of_images(*images, path.string() + ": image_processor");
  const auto tokens = static_cast<int>(
      of_images.IntOr("max_soft_tokens", kDefaultSoftTokens, {.min = 1, .max = 1 << 20}));
  RETURN_IF_ERROR(of_images.status());
  if (const Status valid = CheckSoftTokenBudget(tokens); !valid.ok()) {
    return MakeError("{}: {}", path.string(), valid.error().message);
  }
  return tokens;
}

}  // namespace lapidary
