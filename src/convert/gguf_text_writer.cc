#include "convert/gguf_text_writer.h"

#include <deque>

#include "base/json_fields.h"
#include "base/read_file.h"
#include "sampling/generation_config.h"
#include "text/tokenizer_json.h"

namespace lapidary {
namespace {

constexpr size_t kMaxTokenizerBytes = size_t{1} << 30;

enum TokenType : int32_t {
  kNormal = 1,
  kUnknown = 2,
  kControl = 3,
  kUserDefined = 4,
  kUnused = 5,
  kByte = 6
};

bool IsByteToken(std::string_view piece) {
  return piece.size() == 6 && piece.starts_with("<0x") && piece.ends_with('>');
}

Status AddTokenizer(const std::filesystem::path& path, int vocab_size, GgufWriter& writer) {
  ASSIGN_OR_RETURN(const std::string text, ReadFile(path, kMaxTokenizerBytes));
  const auto file = ParseTokenizerJson(text);
  if (!file.ok()) return MakeError("{}: {}", path.string(), file.error().message);
  std::vector<std::string_view> tokens;
  std::vector<int32_t> types;
  std::deque<std::string> unused;  // owns the names of holes
  for (int32_t id = 0; id < vocab_size; ++id) {
    const bool has = file->vocabulary.Has(id);
    tokens.push_back(has ? file->vocabulary.Piece(id)
                         : unused.emplace_back(fmt::format("<unused_id_{}>", id)));
    types.push_back(!has ? kUnused : IsByteToken(tokens.back()) ? kByte : kNormal);
  }
  for (const AddedToken& token : file->added_tokens) {
    if (token.id < vocab_size) types[token.id] = token.special ? kControl : kUserDefined;
  }
  std::deque<std::string> spelled;
  std::vector<std::string_view> merges;
  for (size_t rank = 0; rank < file->merges.size(); ++rank) {
    merges.push_back(spelled.emplace_back(
        fmt::format("{} {}", file->merges.Left(rank), file->merges.Right(rank))));
  }
  writer.AddString("tokenizer.ggml.model", "gemma4");
  writer.AddStrings("tokenizer.ggml.tokens", tokens);
  writer.AddF32s("tokenizer.ggml.scores", std::vector<float>(tokens.size(), 0.0f));
  writer.AddI32s("tokenizer.ggml.token_type", types);
  writer.AddStrings("tokenizer.ggml.merges", merges);
  writer.AddBool("tokenizer.ggml.add_bos_token", true);
  writer.AddBool("tokenizer.ggml.add_space_prefix", false);
  const std::pair<const char*, const char*> ids[] = {
      {"bos", "<bos>"}, {"unknown", "<unk>"}, {"padding", "<pad>"}};
  for (const auto& [name, piece] : ids) {
    if (const auto id = file->vocabulary.Find(piece)) {
      writer.AddU32(fmt::format("tokenizer.ggml.{}_token_id", name), static_cast<uint32_t>(*id));
    }
  }
  return {};
}

void AddDefaults(const GenerationDefaults& defaults, GgufWriter& writer) {
  constexpr const char* kEndNames[] = {"eos", "eot", "eom"};
  for (size_t idx = 0; idx < defaults.stop_ids.size() && idx < std::size(kEndNames); ++idx) {
    writer.AddU32(fmt::format("tokenizer.ggml.{}_token_id", kEndNames[idx]),
                  static_cast<uint32_t>(defaults.stop_ids[idx]));
  }
  const SamplingParams& sampling = defaults.sampling;
  writer.AddF32("general.sampling.temp", sampling.temperature);
  writer.AddU32("general.sampling.top_k", static_cast<uint32_t>(std::max(sampling.top_k, 0)));
  writer.AddF32("general.sampling.top_p", sampling.top_p);
  writer.AddF32("general.sampling.min_p", sampling.min_p);
  if (!sampling.suppress_tokens.empty()) {
    writer.AddI32s("tokenizer.ggml.suppress_tokens", sampling.suppress_tokens);
  }
}

}  // namespace

Status AddTextMetadata(const std::filesystem::path& directory, int vocab_size, GgufWriter& writer) {
  std::error_code error;
  if (std::filesystem::exists(directory / "tokenizer.json", error)) {
    RETURN_IF_ERROR(AddTokenizer(directory / "tokenizer.json", vocab_size, writer));
  }
  ASSIGN_OR_RETURN(const GenerationDefaults defaults, GenerationDefaults::Load(directory));
  AddDefaults(defaults, writer);
  if (std::filesystem::exists(directory / "chat_template.jinja", error)) {
    ASSIGN_OR_RETURN(const std::string text,
                     ReadFile(directory / "chat_template.jinja", kMaxConfigFileBytes));
    writer.AddString("tokenizer.chat_template", text);
  }
  return {};
}

}  // namespace lapidary
