// The text side of what is served: names, tokenizer, chat template, recommended sampling.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "adapter/adapter_table.h"
#include "front/prompt.h"
#include "front/text_model.h"
#include "server/generation_request.h"

namespace lapidary {

// Immutable; every method may be called from many threads at once.
class ServedModel {
 public:
  // What the server says about requests, whatever they say.
  struct Rules {
    bool strict_tools = false;    // every call fits its tool's schema
    bool takes_priority = false;  // requests may say how early they are served
    bool takes_any_name = false;  // of a model, and answers with the one that is served
  };

  // An error without a tokenizer. `names`: one or more.
  static Result<ServedModel> Make(std::shared_ptr<const TextModel> text,
                                  std::vector<std::string> names, int32_t max_model_len,
                                  Rules rules);
  static Result<ServedModel> Make(std::shared_ptr<const TextModel> text,
                                  std::vector<std::string> names, int32_t max_model_len) {
    return Make(std::move(text), std::move(names), max_model_len, Rules());
  }

  const std::string& name() const { return names_[0]; }
  const std::vector<std::string>& names() const { return names_; }
  const Tokenizer& tokenizer() const { return *text_->tokenizer; }
  const GenerationDefaults& defaults() const { return text_->defaults; }
  int32_t max_model_len() const { return max_model_len_; }
  const Rules& rules() const { return rules_; }
  bool has_chat_template() const { return text_->chat_template.ok(); }

  // LoRA adapters, whose names requests may give for the model's; null: there are none. Before it
  // is shared.
  void set_adapters(std::shared_ptr<AdapterTable> adapters) { adapters_ = std::move(adapters); }
  AdapterTable* adapters() const { return adapters_.get(); }

  ApiStatus CheckName(const std::string& name) const;
  // The adapter that a request's `model` names; none where it names the model itself.
  ApiStatus FindAdapter(const std::string& name, AdapterTable::Use* use) const;
  // What an answer says that it is of: an adapter's name, or the model's own.
  const std::string& AnswerName(const std::string& name) const;
  // Template, then tokens. Neither checks the length.
  ApiStatus Prepare(const ChatInput& input, ChatPrompt* prompt) const;
  ApiStatus Prepare(const RawPrompt& raw, bool add_bos, ChatPrompt* prompt) const;

  // The text of one token, and its bytes: those differ when it is part of a character.
  std::string TokenText(int32_t id) const;
  std::string TokenBytes(int32_t id) const;

 private:
  explicit ServedModel(std::shared_ptr<const TextModel> text) : text_(std::move(text)) {}

  // Refuses, before the template runs, what cannot fit the context whatever it renders to.
  ApiStatus CheckSize(const ChatInput& input) const;

  bool IsOwnName(const std::string& name) const;

  std::vector<std::string> names_;
  std::shared_ptr<AdapterTable> adapters_;
  std::shared_ptr<const TextModel> text_;  // its tokenizer is there
  int32_t max_model_len_ = 0;
  Rules rules_;
  size_t longest_token_bytes_ = 1;
};

}  // namespace lapidary
