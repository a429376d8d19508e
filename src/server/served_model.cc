#include "server/served_model.h"

#include <spdlog/spdlog.h>

#include <algorithm>

namespace lapidary {

ServedModel::ServedModel(Tokenizer tokenizer, GenerationDefaults defaults)
    : tokenizer_(std::move(tokenizer)), defaults_(std::move(defaults)) {
  model_turn_ = tokenizer_.Encode("<|turn>model\n", SpecialTokens::kParse);
}

Result<ServedModel> ServedModel::Load(const std::filesystem::path& directory,
                                      std::vector<std::string> names, int32_t max_model_len) {
  ASSIGN_OR_RETURN(Tokenizer tokenizer, Tokenizer::Load(directory / "tokenizer.json"));
  RETURN_IF_ERROR(tokenizer.CheckGemma4Specials());
  ASSIGN_OR_RETURN(GenerationDefaults defaults, GenerationDefaults::Load(directory));
  ServedModel model(std::move(tokenizer), std::move(defaults));
  if (auto chat = ChatTemplate::FromModelDir(directory); chat.ok()) {
    model.chat_template_ = std::move(*chat);
  } else {
    spdlog::warn("no chat completions: {}", chat.error().message);
  }
  if (names.empty()) {
    const std::filesystem::path clean = std::filesystem::weakly_canonical(directory);
    names.push_back(clean.filename().string());
  }
  model.names_ = std::move(names);
  model.max_model_len_ = max_model_len;
  return model;
}

ApiStatus ServedModel::CheckName(const std::string& name) const {
  if (name.empty() || std::find(names_.begin(), names_.end(), name) != names_.end()) return {};
  ApiError error{404, fmt::format("the model '{}' does not exist", name), "model"};
  error.code = "model_not_found";
  return error;
}

ApiStatus ServedModel::Prepare(const ChatInput& input, PreparedPrompt* prompt) const {
  if (!chat_template_) {
    return BadRequest("messages", "this model has no chat template; use /v1/completions");
  }
  const auto segments = chat_template_->RenderPrompt(input);
  if (!segments.ok()) return BadRequest("messages", "{}", segments.error().message);
  prompt->ids = tokenizer_.Encode(*segments);
  prompt->starts_in_thought = EndsInsideThought(*segments);
  prompt->cache_points = CachePoints(prompt->ids);
  return {};
}

ApiStatus ServedModel::Prepare(const RawPrompt& raw, bool add_bos, PreparedPrompt* prompt) const {
  if (const auto* ids = std::get_if<std::vector<int32_t>>(&raw)) {
    for (const int32_t id : *ids) {
      if (id < 0 || id >= tokenizer_.vocab_size()) {
        return BadRequest("prompt", "token id {} is outside the vocabulary [0, {})", id,
                          tokenizer_.vocab_size());
      }
    }
    prompt->ids = *ids;
  } else {
    // Whoever writes raw prompts writes control tokens too.
    prompt->ids = tokenizer_.Encode(std::get<std::string>(raw), SpecialTokens::kParse);
    const bool has_bos = !prompt->ids.empty() && prompt->ids[0] == tokenizer_.bos_id();
    if (add_bos && !has_bos && tokenizer_.bos_id() >= 0) {
      prompt->ids.insert(prompt->ids.begin(), tokenizer_.bos_id());
    }
  }
  if (prompt->ids.empty()) return BadRequest("prompt", "the prompt has no tokens");
  prompt->cache_points = CachePoints(prompt->ids);
  return {};
}

std::vector<int32_t> ServedModel::CachePoints(const std::vector<int32_t>& ids) const {
  const auto turn = std::find_end(ids.begin(), ids.end(), model_turn_.begin(), model_turn_.end());
  if (turn == ids.end()) return {};
  const int32_t behind = static_cast<int32_t>(turn - ids.begin() + model_turn_.size());
  // The last token is always computed, so a point lies before it.
  const int32_t point = std::min(behind, static_cast<int32_t>(ids.size()) - 1);
  return point > 0 ? std::vector<int32_t>{point} : std::vector<int32_t>{};
}

ApiStatus ServedModel::CheckLength(const char* param, const PreparedPrompt& prompt,
                                   std::optional<int32_t> max_tokens,
                                   int32_t* max_new_tokens) const {
  const int64_t prompt_len = static_cast<int64_t>(prompt.ids.size());
  const int64_t room = max_model_len_ - prompt_len;
  const int64_t wanted = max_tokens.value_or(std::max<int64_t>(room, 1));
  *max_new_tokens = static_cast<int32_t>(wanted);
  if (wanted <= room) return {};
  ApiError error =
      BadRequest(param, "the context holds {} tokens; the prompt has {} and {} more were asked for",
                 max_model_len_, prompt_len, wanted);
  error.code = "context_length_exceeded";
  return error;
}

std::string ServedModel::TokenText(int32_t id) const {
  // Ids beyond the tokenizer's, which padded vocabularies have, are without text.
  auto text = tokenizer_.Decode(std::span(&id, 1), /*skip_special=*/false);
  return text.ok() ? std::move(*text) : std::string();
}

std::string ServedModel::TokenBytes(int32_t id) const {
  if (const auto byte = tokenizer_.IdToByte(id)) return std::string(1, static_cast<char>(*byte));
  return TokenText(id);
}

}  // namespace lapidary
