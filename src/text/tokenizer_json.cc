#include "text/tokenizer_json.h"

#include <utility>

#include "base/json.h"
#include "text/tokenizer_sax.h"

namespace lapidary {
namespace {

using nlohmann::json;

// An added token is compared byte by byte at many places of a text; real ones have under 20 bytes.
constexpr size_t kMaxAddedTokenBytes = 1024;

const json& Field(const json& object, const char* name) {
  static const json kNull;
  const auto it = object.is_object() ? object.find(name) : object.end();
  return it == object.end() ? kNull : *it;
}

// The value as it stands in the file, shortened: part of every complaint about it.
std::string Show(const json& value) {
  std::string text = value.dump(-1, ' ', false, json::error_handler_t::replace);
  constexpr size_t kMaxShown = 160;
  return text.size() <= kMaxShown ? text : text.substr(0, kMaxShown) + "...";
}

bool IsReplace(const json& step, std::string_view from, std::string_view to) {
  return Field(step, "type") == "Replace" && Field(step, "pattern") == json{{"String", from}} &&
         Field(step, "content") == to;
}

// A one-element {"type": "Sequence", `list_name`: [x]} stands for x.
const json& Unwrap(const json& step, const char* list_name) {
  const json& list = Field(step, list_name);
  return Field(step, "type") == "Sequence" && list.is_array() && list.size() == 1 ? list[0] : step;
}

Status CheckNormalizer(const json& field) {
  if (IsReplace(Unwrap(field, "normalizers"), " ", "\u2581")) return {};
  return MakeError("normalizer must replace ' ' by U+2581 and do nothing else, but is {}",
                   Show(field));
}

Status CheckPreTokenizer(const json& field) {
  if (field.is_null()) return {};
  const json& step = Unwrap(field, "pretokenizers");
  // No space is left after the normalizer, so the split never finds anything to split at.
  const json& invert = Field(step, "invert");
  if (Field(step, "type") == "Split" && Field(step, "pattern") == json{{"String", " "}} &&
      (invert.is_null() || invert == false)) {
    return {};
  }
  return MakeError("pre_tokenizer must be null or a Split at ' ', but is {}", Show(field));
}

Status CheckDecoder(const json& field) {
  const json& steps = Field(field, "decoders");
  if (Field(field, "type") == "Sequence" && steps.is_array() && steps.size() == 3 &&
      IsReplace(steps[0], "\u2581", " ") && Field(steps[1], "type") == "ByteFallback" &&
      Field(steps[2], "type") == "Fuse") {
    return {};
  }
  return MakeError("decoder must be Replace U+2581 by ' ', ByteFallback, Fuse, but is {}",
                   Show(field));
}

Status CheckModel(const json& model) {
  if (!model.is_object()) return MakeError("model is missing or not an object");
  const json& type = Field(model, "type");
  if (!type.is_null() && type != "BPE") {
    return MakeError("model.type must be \"BPE\", but is {}", Show(type));
  }
  if (Field(model, "byte_fallback") != true) {
    return MakeError("model.byte_fallback must be true, but is {}",
                     Show(Field(model, "byte_fallback")));
  }
  // unk_token and fuse_unk have no effect: every byte has a token, so nothing is ever unknown.
  const json& dropout = Field(model, "dropout");
  if (!dropout.is_null() && dropout != 0.0) {
    return MakeError("model.dropout must be null, but is {}", Show(dropout));
  }
  const json& ignore_merges = Field(model, "ignore_merges");
  if (!ignore_merges.is_null() && ignore_merges != false) {
    return MakeError("model.ignore_merges must be false, but is {}", Show(ignore_merges));
  }
  for (const char* name : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    const json& value = Field(model, name);
    if (!value.is_null() && value != "") {
      return MakeError("model.{} must be null, but is {}", name, Show(value));
    }
  }
  // The tables were taken out by the reader, which leaves null; anything else is of a wrong type.
  for (const char* name : {"vocab", "merges"}) {
    if (!model.contains(name)) return MakeError("model.{} is missing", name);
    if (!model[name].is_null()) {
      return MakeError("model.{} has the wrong type: {}", name, Show(model[name]));
    }
  }
  return {};
}

Result<AddedToken> ParseAddedToken(const json& entry, size_t idx) {
  const json& content = Field(entry, "content");
  const json& id = Field(entry, "id");
  if (!content.is_string() || !id.is_number_integer()) {
    return MakeError("added_tokens[{}] needs a string 'content' and an integer 'id', but is {}",
                     idx, Show(entry));
  }
  AddedToken token{.content = content.get<std::string>()};
  if (token.content.empty() || token.content.size() > kMaxAddedTokenBytes) {
    return MakeError("added_tokens[{}].content has {} bytes, which is outside 1..{}", idx,
                     token.content.size(), kMaxAddedTokenBytes);
  }
  const bool id_fits = id.is_number_unsigned() ? id.get<uint64_t>() <= Vocabulary::kMaxId : false;
  if (!id_fits) {
    return MakeError("added_tokens[{}].id is {}, which is outside 0..{}", idx, Show(id),
                     Vocabulary::kMaxId);
  }
  token.id = id.get<int32_t>();
  for (const char* name : {"single_word", "lstrip", "rstrip"}) {
    const json& flag = Field(entry, name);
    if (!flag.is_null() && flag != false) {
      return MakeError("added_tokens[{}].{} must be false, but is {}", idx, name, Show(flag));
    }
  }
  const json& special = Field(entry, "special");
  const json& normalized = Field(entry, "normalized");
  for (const json* flag : {&special, &normalized}) {
    if (!flag->is_null() && !flag->is_boolean()) {
      return MakeError("added_tokens[{}] has a flag that is neither true nor false: {}", idx,
                       Show(entry));
    }
  }
  token.special = special == true;
  token.normalized = normalized.is_null() ? !token.special : normalized == true;
  // Matched in normalized text, such a token would stand for several raw texts.
  if (token.normalized && (token.content.find(' ') != std::string::npos ||
                           token.content.find("\u2581") != std::string::npos)) {
    return MakeError("added_tokens[{}] ('{}') is 'normalized' and holds a space", idx,
                     token.content);
  }
  return token;
}

Status AddAddedTokens(const json& list, TokenizerFile* file) {
  if (list.is_null()) return {};
  if (!list.is_array()) return MakeError("added_tokens must be a list, but is {}", Show(list));
  Vocabulary seen;
  for (size_t idx = 0; idx < list.size(); ++idx) {
    ASSIGN_OR_RETURN(AddedToken token, ParseAddedToken(list[idx], idx));
    if (Status status = seen.Add(token.content, token.id); !status.ok()) {
      return MakeError("added_tokens[{}]: {}", idx, status.error().message);
    }
    // Gemma lists its added tokens in model.vocab too; others have only this entry.
    if (const auto id = file->vocabulary.Find(token.content)) {
      if (*id != token.id) {
        return MakeError("added_tokens[{}] gives '{}' the id {}, model.vocab gives it {}", idx,
                         token.content, token.id, *id);
      }
    } else if (Status status = file->vocabulary.Add(token.content, token.id); !status.ok()) {
      return MakeError("added_tokens[{}]: {}", idx, status.error().message);
    }
    file->added_tokens.push_back(std::move(token));
  }
  return {};
}

}  // namespace

Result<TokenizerFile> ParseTokenizerJson(std::string_view text) {
  TokenizerFile file;
  TokenizerSax sax(&file.vocabulary, &file.merges);
  if (!json::sax_parse(text, &sax)) return MakeError("{}", sax.error());
  const json& root = sax.rest();
  if (!root.is_object()) return MakeError("the file is not a JSON object");
  RETURN_IF_ERROR(CheckModel(Field(root, "model")));
  RETURN_IF_ERROR(CheckNormalizer(Field(root, "normalizer")));
  RETURN_IF_ERROR(CheckPreTokenizer(Field(root, "pre_tokenizer")));
  RETURN_IF_ERROR(CheckDecoder(Field(root, "decoder")));
  RETURN_IF_ERROR(AddAddedTokens(Field(root, "added_tokens"), &file));
  return file;
}

}  // namespace lapidary
