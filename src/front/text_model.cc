#include "front/text_model.h"

#include "front/gguf_text.h"
#include "gguf/gguf_checkpoint.h"

namespace lapidary {
namespace {

constexpr const char* kTokenizerFile = "tokenizer.json";

Result<Tokenizer> LoadTokenizer(const std::filesystem::path& path) {
  ASSIGN_OR_RETURN(Tokenizer tokenizer, Tokenizer::Load(path));
  if (const Status status = tokenizer.CheckGemma4Specials(); !status.ok()) {
    return MakeError("{}: {}", path.string(), status.error().message);
  }
  return tokenizer;
}

}  // namespace

Result<TextModel> TextModel::Load(const std::filesystem::path& directory) {
  if (IsGgufFile(directory)) return LoadGgufText(directory);
  ASSIGN_OR_RETURN(GenerationDefaults defaults, GenerationDefaults::Load(directory));
  const std::filesystem::path tokenizer_path = directory / kTokenizerFile;
  Result<Tokenizer> tokenizer = MakeError("{} has no {}, so it takes and gives token ids only",
                                          directory.string(), kTokenizerFile);
  std::error_code ignored;
  if (std::filesystem::exists(tokenizer_path, ignored)) {
    tokenizer = LoadTokenizer(tokenizer_path);
    if (!tokenizer.ok()) return tokenizer.error();
  }
  return TextModel{std::move(tokenizer), ChatTemplate::FromModelDir(directory),
                   std::move(defaults)};
}

TextModel TextModel::None(const std::string& name) {
  const Error error = MakeError("'{}' is a preset and has no tokenizer: give token ids", name);
  GenerationDefaults defaults;
  defaults.sampling.temperature = 0.0f;
  return {error, error, std::move(defaults)};
}

}  // namespace lapidary
