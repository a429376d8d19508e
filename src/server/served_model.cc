#include "server/served_model.h"

#include <fmt/ranges.h>
#include <spdlog/spdlog.h>

#include <algorithm>

#include "base/excerpt.h"

namespace lapidary {

Result<ServedModel> ServedModel::Make(std::shared_ptr<const TextModel> text,
                                      std::vector<std::string> names, int32_t max_model_len,
                                      Rules rules) {
  if (!text->tokenizer.ok()) return text->tokenizer.error();
  if (!text->chat_template.ok()) {
    spdlog::warn("no chat completions: {}", text->chat_template.error().message);
  }
  ServedModel model(std::move(text));
  CHECK(!names.empty());
  model.names_ = std::move(names);
  model.max_model_len_ = max_model_len;
  model.rules_ = rules;
  const Tokenizer& tokenizer = model.tokenizer();
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
    model.longest_token_bytes_ =
        std::max(model.longest_token_bytes_, tokenizer.IdToPiece(id).value_or("").size());
  }
  return model;
}

ApiStatus ServedModel::CheckName(const std::string& name) const {
  if (rules_.takes_any_name || IsOwnName(name)) return {};
  std::vector<std::string> names = names_;
  if (adapters_ != nullptr) {
    if (adapters_->Has(name)) return {};
    for (const AdapterTable::Entry& entry : adapters_->List()) names.push_back(entry.name);
  }
  ApiError error{404,
                 fmt::format("the model '{}' does not exist; this server has '{}'", Excerpt(name),
                             fmt::join(names, "', '")),
                 "model"};
  error.code = "model_not_found";
  return error;
}

bool ServedModel::IsOwnName(const std::string& name) const {
  return name.empty() || std::ranges::find(names_, name) != names_.end();
}

ApiStatus ServedModel::FindAdapter(const std::string& name, AdapterTable::Use* use) const {
  if (adapters_ == nullptr || IsOwnName(name)) return {};
  *use = adapters_->Begin(name);
  if (use->adapter() != nullptr || rules_.takes_any_name) return {};
  return CheckName(name);  // It was there when the request was parsed.
}

const std::string& ServedModel::AnswerName(const std::string& name) const {
  return adapters_ != nullptr && !IsOwnName(name) && adapters_->Has(name) ? name : names_[0];
}

ApiStatus ServedModel::CheckSize(const ChatInput& input) const {
  // A turn, a call or a result is at least two special tokens and a name or a role between them.
  constexpr size_t kTokensPerMessage = 3;
  size_t num_parts = 0;
  size_t num_bytes = 0;
  const auto add_text = [&](const OrderedJson& text) {
    if (text.is_string()) num_bytes += text.get_ref<const std::string&>().size();
  };
  for (const OrderedJson& message : input.messages) {
    // Assistant's messages may share a turn, or be empty.
    num_parts += message.at("role") != "assistant";
    const auto calls = message.find("tool_calls");
    if (calls != message.end()) num_parts += calls->size();
    const auto content = message.find("content");
    if (content == message.end()) continue;
    add_text(*content);
    if (!content->is_array()) continue;
    for (const OrderedJson& part : *content) {
      if (part.contains("text")) add_text(part["text"]);  // Pictures and sounds have none.
    }
  }
  const size_t max_tokens = static_cast<size_t>(max_model_len_);
  const bool has_too_many = num_parts * kTokensPerMessage > max_tokens;
  if (!has_too_many && num_bytes / longest_token_bytes_ <= max_tokens) return {};
  ApiError error =
      has_too_many
          ? BadRequest("messages",
                       "too many messages: {} of them, calls counted, cannot fit a context of {} "
                       "tokens",
                       num_parts, max_model_len_)
          : BadRequest("messages", "{} bytes of text cannot fit a context of {} tokens", num_bytes,
                       max_model_len_);
  error.code = "context_length_exceeded";
  return error;
}

ApiStatus ServedModel::Prepare(const ChatInput& input, ChatPrompt* prompt) const {
  if (!has_chat_template()) {
    return BadRequest("messages", "this model has no chat template; use /v1/completions");
  }
  RETURN_IF_API_ERROR(CheckSize(input));
  auto encoded = EncodeChatPrompt(*text_, input);
  if (!encoded.ok()) {
    // Rendering many messages may take more than is allowed: by far the likeliest reason.
    constexpr size_t kMany = 1000;
    const std::string& problem = encoded.error().message;
    if (input.messages.size() < kMany) return BadRequest("messages", "{}", problem);
    return BadRequest("messages", "too many messages: {} of them cannot be rendered: {}",
                      input.messages.size(), problem);
  }
  *prompt = std::move(*encoded);
  return {};
}

ApiStatus ServedModel::Prepare(const RawPrompt& raw, bool add_bos, ChatPrompt* prompt) const {
  if (const auto* ids = std::get_if<std::vector<int32_t>>(&raw)) {
    for (const int32_t id : *ids) {
      if (id < 0 || id >= tokenizer().vocab_size()) {
        return BadRequest("prompt", "token id {} is outside the vocabulary [0, {})", id,
                          tokenizer().vocab_size());
      }
    }
    if (ids->empty()) return BadRequest("prompt", "the prompt has no tokens");
    prompt->ids = *ids;
    prompt->cache_points = ChatCachePoints(tokenizer(), prompt->ids);
    return {};
  }
  // Whoever writes raw prompts writes control tokens too.
  auto encoded = EncodeTextPrompt(tokenizer(), std::get<std::string>(raw), add_bos);
  if (!encoded.ok()) return BadRequest("prompt", "{}", encoded.error().message);
  *prompt = std::move(*encoded);
  return {};
}

std::string ServedModel::TokenText(int32_t id) const {
  // Ids beyond the tokenizer's, which padded vocabularies have, are without text.
  auto text = tokenizer().Decode(std::span(&id, 1), /*skip_special=*/false);
  return text.ok() ? std::move(*text) : std::string();
}

std::string ServedModel::TokenBytes(int32_t id) const {
  if (const auto byte = tokenizer().IdToByte(id)) return std::string(1, static_cast<char>(*byte));
  return TokenText(id);
}

}  // namespace lapidary
