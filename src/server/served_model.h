// The text side of what is served: names, tokenizer, chat template, recommended sampling.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "sampling/generation_config.h"
#include "server/generation_request.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace lapidary {

struct PreparedPrompt {
  std::vector<int32_t> ids;
  std::vector<int32_t> cache_points;  // for SequenceSpec
  bool starts_in_thought = false;
};

// Immutable; every method may be called from many threads at once.
class ServedModel {
 public:
  // `names` may be empty: the directory's name then.
  static Result<ServedModel> Load(const std::filesystem::path& directory,
                                  std::vector<std::string> names, int32_t max_model_len);

  const std::string& name() const { return names_[0]; }
  const std::vector<std::string>& names() const { return names_; }
  const Tokenizer& tokenizer() const { return tokenizer_; }
  const GenerationDefaults& defaults() const { return defaults_; }
  int32_t max_model_len() const { return max_model_len_; }
  bool has_chat_template() const { return chat_template_.has_value(); }

  ApiStatus CheckName(const std::string& name) const;
  // Template, then tokens. Neither checks the length.
  ApiStatus Prepare(const ChatInput& input, PreparedPrompt* prompt) const;
  ApiStatus Prepare(const RawPrompt& raw, bool add_bos, PreparedPrompt* prompt) const;
  // The tokens that may follow the prompt: what was asked for, or the rest of the context. `param`
  // is the field the prompt came from.
  ApiStatus CheckLength(const char* param, const PreparedPrompt& prompt,
                        std::optional<int32_t> max_tokens, int32_t* max_new_tokens) const;

  // The text of one token, and its bytes: those differ when it is part of a character.
  std::string TokenText(int32_t id) const;
  std::string TokenBytes(int32_t id) const;

 private:
  ServedModel(Tokenizer tokenizer, GenerationDefaults defaults);
  // Behind the last "<|turn>model\n", where the next prompt of the conversation parts from this
  // one; none in a prompt without it.
  std::vector<int32_t> CachePoints(const std::vector<int32_t>& ids) const;

  std::vector<std::string> names_;
  Tokenizer tokenizer_;
  GenerationDefaults defaults_;
  std::optional<ChatTemplate> chat_template_;
  std::vector<int32_t> model_turn_;  // "<|turn>model\n"
  int32_t max_model_len_ = 0;
};

}  // namespace lapidary
