#include "session/constraint_compiler.h"

#include <string>
#include <utility>
#include <vector>

#include "base/release_pages.h"

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

// What is kept of a constraint itself.
size_t KeyBytes(const grammar::Constraint& constraint) {
  size_t num_bytes = sizeof(constraint) + constraint.text.size();
  for (const std::string& choice : constraint.choices) num_bytes += sizeof(choice) + choice.size();
  for (const grammar::CallableTool& tool : constraint.tools) {
    num_bytes += sizeof(tool) + tool.name.size() + tool.parameters.size();
  }
  // A compiled grammar has the rules once more.
  for (const std::vector<int32_t>& run : constraint.rules.banned_runs) {
    num_bytes += 2 * (sizeof(run) + run.size() * sizeof(run[0]));
  }
  return num_bytes + 2 * constraint.rules.late_tokens.size() * sizeof(int32_t);
}

}  // namespace

ConstraintCompiler::ConstraintCompiler(std::shared_ptr<const TextModel> text, int32_t vocab_size,
                                       size_t max_bytes)
    : text_(std::move(text)),
      vocab_size_(vocab_size),
      max_bytes_(max_bytes),
      memory_(std::make_shared<grammar::GrammarMemory>()) {
  memory_->max_bytes = 2 * max_bytes;
}

Result<grammar::CompileContext> ConstraintCompiler::Context() {
  if (!text_->tokenizer.ok()) return text_->tokenizer.error();
  const Tokenizer& tokenizer = *text_->tokenizer;
  grammar::CompileContext context;
  context.memory = memory_;
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
  context.spell = [text = text_](std::string_view forced) {
    return text->tokenizer->Encode(forced, SpecialTokens::kPlain);
  };
  return context;
}

void ConstraintCompiler::Evict() {
  for (auto use = by_use_.end(); memory_->num_bytes > max_bytes_ && use != by_use_.begin();) {
    --use;
    const auto place = kept_.find(**use);
    if (place->second.grammar.use_count() > 1) continue;
    num_evicted_bytes_ += place->second.grammar->num_bytes();
    kept_.erase(place);
    use = by_use_.erase(use);
    ++num_evictions_;
  }
}

std::shared_ptr<const grammar::CompiledGrammar> ConstraintCompiler::Find(
    const grammar::Constraint& constraint) {
  const std::lock_guard lock(mutex_);
  Evict();  // They grow as they are used.
  const auto found = kept_.find(constraint);
  if (found == kept_.end()) return nullptr;
  by_use_.splice(by_use_.begin(), by_use_, found->second.use);
  ++num_hits_;
  return found->second.grammar;
}

void ConstraintCompiler::ReleaseEvicted() {
  constexpr size_t kWorthBytes = size_t{32} << 20;
  {
    const std::lock_guard lock(mutex_);
    if (num_evicted_bytes_ < kWorthBytes) return;
    num_evicted_bytes_ = 0;
  }
  ReleaseFreeHeap();
}

Result<std::shared_ptr<const grammar::CompiledGrammar>> ConstraintCompiler::Compile(
    const grammar::Constraint& constraint, grammar::Work* work) {
  if (auto found = Find(constraint)) return found;
  ReleaseEvicted();
  if (memory_->num_bytes > max_bytes_) {
    return Error{
        "the forms of the answers under way take all the memory there is for them; try "
        "again later",
        ErrorKind::kBusy};
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
  ASSIGN_OR_RETURN(const auto compiled, grammar::Compile(constraint, context, work));
  const std::lock_guard lock(mutex_);
  // All that takes memory first: what is kept is whole.
  std::list<const grammar::Constraint*> use(1);
  auto share = std::make_unique<grammar::MemoryShare>(memory_.get());
  const auto [place, is_new] =
      kept_.try_emplace(constraint, Kept{compiled, use.begin(), std::move(share)});
  if (is_new) {
    use.front() = &place->first;
    by_use_.splice(by_use_.begin(), use);
    place->second.key_bytes->Resize(KeyBytes(constraint));
    ++num_misses_;
    Evict();
  }
  return place->second.grammar;
}

GrammarStats ConstraintCompiler::stats() {
  const std::lock_guard lock(mutex_);
  Evict();
  return {kept_.size(), memory_->num_bytes, num_hits_, num_misses_, num_evictions_};
}

}  // namespace lapidary
