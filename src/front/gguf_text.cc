#include "front/gguf_text.h"

#include <algorithm>

#include "gguf/gguf_checkpoint.h"
#include "text/tokenizer_json.h"

namespace lapidary {
namespace {

constexpr const char* kTokens = "tokenizer.ggml.tokens";
constexpr const char* kTokenTypes = "tokenizer.ggml.token_type";
constexpr const char* kMerges = "tokenizer.ggml.merges";
constexpr size_t kMaxAddedTokenBytes = 1024;

enum TokenType : int64_t { kControl = 3, kUserDefined = 4 };

// Some control tokens are typed as user-defined so that other programs show them: "<|channel>".
bool IsControlSpelling(std::string_view piece) {
  return piece.size() > 3 && ((piece.starts_with("<|") && piece.ends_with(">")) ||
                              (piece.starts_with("<") && piece.ends_with("|>")));
}

Result<TokenizerFile> ReadTokenizer(const GgufCheckpoint& file) {
  const std::string where = file.path().string();
  const std::string_view model = file.String("tokenizer.ggml.model").value_or("");
  if (model != "gemma4") {
    return MakeError("{}: tokenizer.ggml.model '{}' is not 'gemma4'", where, model.substr(0, 40));
  }
  const auto strings = [&](const char* key) {
    const GgufValue* value = file.Value(key);
    return value != nullptr && value->is_array() ? value->Strings() : std::nullopt;
  };
  const auto tokens = strings(kTokens);
  const auto merges = strings(kMerges);
  const GgufValue* type_value = file.Value(kTokenTypes);
  const auto types = type_value == nullptr ? std::nullopt : type_value->Ints();
  if (!tokens || !merges || !types || types->size() != tokens->size()) {
    return MakeError("{}: {}, {} and {} must be there, with a type for each token", where, kTokens,
                     kTokenTypes, kMerges);
  }
  TokenizerFile tokenizer;
  for (size_t id = 0; id < tokens->size(); ++id) {
    const std::string_view piece = (*tokens)[id];
    if (const Status status = tokenizer.vocabulary.Add(piece, static_cast<int64_t>(id));
        !status.ok()) {
      return MakeError("{}: {}", where, status.error().message);
    }
    const int64_t type = (*types)[id];
    if (type != kControl && type != kUserDefined) continue;
    if (piece.empty() || piece.size() > kMaxAddedTokenBytes) {
      return MakeError("{}: token {} has {} bytes, which is outside 1..{}", where, id, piece.size(),
                       kMaxAddedTokenBytes);
    }
    tokenizer.added_tokens.push_back({.content = std::string(piece),
                                      .id = static_cast<int32_t>(id),
                                      .special = type == kControl || IsControlSpelling(piece)});
  }
  for (const std::string_view merge : *merges) {
    // Pieces spell a space as U+2581, so the one space is between the two parts.
    const size_t space = merge.find(' ');
    if (space == std::string_view::npos || merge.find(' ', space + 1) != std::string_view::npos) {
      return MakeError("{}: a merge is not two pieces with a space between", where);
    }
    tokenizer.merges.Add(merge.substr(0, space), merge.substr(space + 1));
  }
  return tokenizer;
}

Result<Tokenizer> MakeTokenizer(const GgufCheckpoint& file) {
  const std::string where = file.path().string();
  ASSIGN_OR_RETURN(TokenizerFile pieces, ReadTokenizer(file));
  ASSIGN_OR_RETURN(Tokenizer tokenizer, Tokenizer::FromFile(std::move(pieces), where));
  if (const Status status = tokenizer.CheckGemma4Specials(); !status.ok()) {
    return MakeError("{}: {}", where, status.error().message);
  }
  return tokenizer;
}

// Each once, and only ids the tokenizer has.
std::vector<int32_t> StopIds(const GgufCheckpoint& file, const Tokenizer& tokenizer,
                             bool has_template) {
  std::vector<int32_t> ids;
  const auto add = [&](std::optional<int64_t> id) {
    if (!id || *id < 0 || *id >= tokenizer.vocab_size()) return;
    const int32_t narrow = static_cast<int32_t>(*id);
    if (std::find(ids.begin(), ids.end(), narrow) == ids.end()) ids.push_back(narrow);
  };
  for (const char* name : {"eos", "eot", "eom"}) {
    add(file.Int(fmt::format("tokenizer.ggml.{}_token_id", name)));
  }
  for (const char* piece : {"<eos>", "<turn|>", "<|tool_response>"}) {
    const auto id = tokenizer.TokenToId(piece);
    if (has_template && id && tokenizer.IsSpecial(*id)) add(*id);
  }
  return ids;
}

Result<SamplingParams> ReadSampling(const GgufCheckpoint& file, bool has_template) {
  SamplingParams sampling;
  if (has_template) {
    // What the generation_config.json of every size says.
    sampling.top_k = 64;
    sampling.top_p = 0.95f;
  } else {
    sampling.temperature = 0.0f;
  }
  const auto number = [&](const char* name, float fallback) {
    return static_cast<float>(
        file.Number(fmt::format("general.sampling.{}", name)).value_or(double{fallback}));
  };
  sampling.temperature = number("temp", sampling.temperature);
  sampling.top_p = number("top_p", sampling.top_p);
  sampling.min_p = number("min_p", sampling.min_p);
  sampling.repetition_penalty = number("penalty_repeat", sampling.repetition_penalty);
  const int64_t top_k = file.Int("general.sampling.top_k").value_or(sampling.top_k);
  sampling.top_k = static_cast<int32_t>(std::clamp<int64_t>(top_k, -1, INT32_MAX));
  if (const GgufValue* value = file.Value("tokenizer.ggml.suppress_tokens")) {
    for (const int64_t id : value->Ints().value_or(std::vector<int64_t>())) {
      if (id >= 0 && id <= Vocabulary::kMaxId) {
        sampling.suppress_tokens.push_back(static_cast<int32_t>(id));
      }
    }
  }
  if (const Status status = sampling.Validate(INT32_MAX); !status.ok()) {
    return MakeError("{}: general.sampling: {}", file.path().string(), status.error().message);
  }
  return sampling;
}

}  // namespace

Result<TextModel> LoadGgufText(const std::filesystem::path& path) {
  ASSIGN_OR_RETURN(const GgufCheckpoint file, GgufCheckpoint::Open(path));
  TextModel text{
      MakeError("{} has no tokenizer, so it takes and gives token ids only", path.string()),
      MakeError("{} has no chat template", path.string()),
      {}};
  if (const auto source = file.String("tokenizer.chat_template")) {
    text.chat_template = ChatTemplate::FromString(*source);
    if (!text.chat_template.ok()) {
      return MakeError("{}: tokenizer.chat_template: {}", path.string(),
                       text.chat_template.error().message);
    }
  }
  ASSIGN_OR_RETURN(text.defaults.sampling, ReadSampling(file, text.chat_template.ok()));
  if (file.Value(kTokens) != nullptr) {
    text.tokenizer = MakeTokenizer(file);
    if (!text.tokenizer.ok()) return text.tokenizer.error();
    text.defaults.stop_ids = StopIds(file, *text.tokenizer, text.chat_template.ok());
  }
  return text;
}

}  // namespace lapidary
