#include "hub/model_name.h"

#include <algorithm>
#include <cctype>

#include "hub/known_models.h"
#include "hub/lower_case.h"
#include "hub/repo_path.h"

namespace lapidary::hub {
namespace {

constexpr size_t kMaxRepoLength = 96;  // as huggingface_hub has it
constexpr size_t kMaxQuantLength = 32;

bool IsAlnum(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0; }

// One half of "owner/name".
bool IsRepoPart(std::string_view part) {
  const auto is_allowed = [](char c) { return IsAlnum(c) || c == '-' || c == '_' || c == '.'; };
  return !part.empty() && std::all_of(part.begin(), part.end(), is_allowed) &&
         (IsAlnum(part.front()) || part.front() == '_') &&
         (IsAlnum(part.back()) || part.back() == '_');
}

bool IsQuantName(std::string_view quant) {
  const auto is_allowed = [](char c) { return IsAlnum(c) || c == '-' || c == '_' || c == '.'; };
  return !quant.empty() && quant.size() <= kMaxQuantLength &&
         std::all_of(quant.begin(), quant.end(), is_allowed);
}

// "Q4_K_M", "UD-Q4_K_XL", "IQ4_XS": what files of llama.cpp's community are called by.
bool IsGgufType(std::string_view format) {
  if (format.starts_with("ud-")) format.remove_prefix(3);
  if (format.starts_with("i")) format.remove_prefix(1);
  return format.size() >= 2 && format[0] == 'q' && std::isdigit(format[1]) != 0;
}

// The repository and the file of a short name in a format.
Result<ModelName> OfShortName(const KnownModel& model, std::string_view format) {
  ModelName name;
  name.repo = CheckpointRepo(model);
  const std::string lower = LowerCase(format);
  if (lower.empty() || lower == "bf16") return name;
  if (lower == "q4_0") {
    name.repo += "-qat-q4_0-gguf";
    name.quant = "Q4_0";
    return name;
  }
  if (lower == "w4a16" && model.has_w4a16) {
    name.repo += "-qat-w4a16-ct";
    return name;
  }
  if (IsGgufType(lower)) {
    name.repo = fmt::format("unsloth/gemma-4-{}-it-GGUF", model.hub_size);
    name.quant = std::string(format);
    return name;
  }
  return MakeError(
      "'{}:{}': there is {} as {}:bf16, {}:q4_0, {}GGUF types of unsloth's files such as {}:q8_0",
      model.short_name, format.substr(0, kMaxQuantLength), model.short_name, model.short_name,
      model.short_name, model.has_w4a16 ? fmt::format("{}:w4a16, ", model.short_name) : "",
      model.short_name);
}

}  // namespace

bool IsRepoName(std::string_view text) {
  const size_t slash = text.find('/');
  if (slash == std::string_view::npos || text.size() > kMaxRepoLength) return false;
  return IsRepoPart(text.substr(0, slash)) && IsRepoPart(text.substr(slash + 1)) &&
         text.find("--") == std::string_view::npos && text.find("..") == std::string_view::npos &&
         !text.ends_with(".git") && !text.ends_with(".gguf") && !text.ends_with(".json") &&
         !text.ends_with(".safetensors");
}

Result<std::optional<ModelName>> ParseModelName(std::string_view text) {
  using Parsed = std::optional<ModelName>;
  const size_t at = std::min(text.find('@'), text.size());
  const std::string_view typed = text.substr(0, at);
  const size_t colon = std::min(typed.find(':'), typed.size());
  const std::string_view place = typed.substr(0, colon);
  const std::string_view quant = typed.substr(std::min(colon + 1, typed.size()));
  const KnownModel* known = FindKnownModel(place);
  if (known == nullptr && !IsRepoName(place)) return Parsed();
  if (colon < typed.size() && !IsQuantName(quant)) {
    return MakeError("'{}': the type after the colon must be one such as Q4_K_M",
                     text.substr(0, kMaxRepoLength));
  }
  ModelName name;
  if (known != nullptr) {
    ASSIGN_OR_RETURN(name, OfShortName(*known, quant));
  } else {
    name.repo = std::string(place);
    name.quant = std::string(quant);
  }
  name.typed = std::string(typed);
  if (at < text.size()) {
    name.revision = std::string(text.substr(at + 1));
    if (!IsRevision(name.revision)) {
      return MakeError("'{}': what follows the @ must be a branch, a tag or a commit",
                       text.substr(0, kMaxRepoLength));
    }
  }
  return Parsed(std::move(name));
}

}  // namespace lapidary::hub
