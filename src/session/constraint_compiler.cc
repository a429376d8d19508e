#include "session/constraint_compiler.h"

#include <string>
#include <utility>
#include <vector>

namespace lapidary {
namespace {

constexpr std::string_view kSpace = "\xE2\x96\x81";  // U+2581, a blank in pieces

// The bytes by which each token counts as text; none for special tokens and holes.
std::shared_ptr<const grammar::TokenVocabulary> MakeVocabulary(const Tokenizer& tokenizer,
                                                               int32_t vocab_size) {
  std::vector<std::string> token_bytes(vocab_size);
  for (int32_t id = 0; id < std::min(vocab_size, tokenizer.vocab_size()); ++id) {
    if (tokenizer.IsSpecial(id)) continue;
    if (const std::optional<uint8_t> byte = tokenizer.IdToByte(id)) {
      token_bytes[id] = std::string(1, static_cast<char>(*byte));
      continue;
    }
    const std::optional<std::string_view> piece = tokenizer.IdToPiece(id);
    if (!piece) continue;
    std::string bytes(*piece);
    for (size_t at = bytes.find(kSpace); at != std::string::npos; at = bytes.find(kSpace, at)) {
      bytes.replace(at, kSpace.size(), " ");
    }
    token_bytes[id] = std::move(bytes);
  }
  return std::make_shared<const grammar::TokenVocabulary>(std::move(token_bytes));
}

}  // namespace

ConstraintCompiler::ConstraintCompiler(std::shared_ptr<const TextModel> text, int32_t vocab_size,
                                       bool jump_forward)
    : text_(std::move(text)), vocab_size_(vocab_size), jump_forward_(jump_forward) {}

Result<grammar::CompileContext> ConstraintCompiler::Context() {
  if (!text_->tokenizer.ok()) return text_->tokenizer.error();
  const Tokenizer& tokenizer = *text_->tokenizer;
  grammar::CompileContext context;
  {
    const std::lock_guard lock(vocabulary_mutex_);
    if (vocabulary_ == nullptr) vocabulary_ = MakeVocabulary(tokenizer, vocab_size_);
    context.vocabulary = vocabulary_;
  }
  const auto id_of = [&](std::string_view piece) {
    const int32_t id = tokenizer.TokenToId(piece).value_or(-1);
    return id < vocab_size_ ? id : -1;
  };
  context.control = {.tool_call_begin = id_of("<|tool_call>"),
                     .tool_call_end = id_of("<tool_call|>"),
                     .string_quote = id_of("<|\"|>"),
                     .thought_begin = id_of("<|channel>"),
                     .thought_end = id_of("<channel|>")};
  for (const int32_t id : text_->defaults.stop_ids) {
    if (id >= 0 && id < vocab_size_) context.stop_tokens.push_back(id);
  }
  if (jump_forward_) {
    context.spell = [text = text_](std::string_view forced) {
      return text->tokenizer->Encode(forced, SpecialTokens::kPlain);
    };
  }
  return context;
}

Result<std::shared_ptr<const grammar::CompiledGrammar>> ConstraintCompiler::Compile(
    const grammar::Constraint& constraint) {
  {
    const std::lock_guard lock(mutex_);
    if (const auto found = kept_.find(constraint); found != kept_.end()) {
      by_use_.splice(by_use_.begin(), by_use_, found->second.use);
      return found->second.grammar;
    }
  }
  ASSIGN_OR_RETURN(grammar::CompileContext context, Context());
  if (context.stop_tokens.empty() && constraint.kind != grammar::Constraint::Kind::kAnything) {
    return MakeError("structured output needs a model that names its stop tokens");
  }
  // Only behind tool calls may an answer end by asking for their results.
  if (constraint.tools.empty()) {
    const auto response = text_->tokenizer->TokenToId("<|tool_response>");
    std::erase_if(context.stop_tokens, [&](int32_t id) { return id == response; });
  }
  ASSIGN_OR_RETURN(const auto compiled, grammar::Compile(constraint, context));
  const std::lock_guard lock(mutex_);
  const auto [place, is_new] = kept_.try_emplace(constraint);
  if (is_new) {
    by_use_.push_front(&place->first);
    place->second = {compiled, by_use_.begin()};
    if (kept_.size() > kMaxKept) {
      kept_.erase(*by_use_.back());
      by_use_.pop_back();
    }
  }
  return place->second.grammar;
}

}  // namespace lapidary
