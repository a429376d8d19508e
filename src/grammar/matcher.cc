#include "grammar/matcher.h"

#include <algorithm>

#include "base/check.h"

namespace lapidary::grammar {

CompiledGrammar::CompiledGrammar(Grammar grammar, std::shared_ptr<const TokenVocabulary> vocabulary,
                                 std::vector<int32_t> stop_tokens)
    : grammar_(std::move(grammar)),
      vocabulary_(std::move(vocabulary)),
      stop_tokens_(std::move(stop_tokens)) {
  for (int32_t token : stop_tokens_) {
    CHECK(token >= 0 && token < vocabulary_->num_tokens()) << "stop token " << token;
  }
}

bool CompiledGrammar::IsStopToken(int32_t token) const {
  return std::ranges::find(stop_tokens_, token) != stop_tokens_.end();
}

std::shared_ptr<Automaton> CompiledGrammar::CurrentAutomaton() const {
  const std::lock_guard lock(mutex_);
  if (automaton_ != nullptr) {
    const std::lock_guard automaton_lock(automaton_->mutex);
    if (automaton_->num_bytes() < kRenewAtBytes) return automaton_;
  }
  automaton_ = std::make_shared<Automaton>(grammar_, *vocabulary_);
  return automaton_;
}

size_t CompiledGrammar::num_bytes() const {
  const std::lock_guard lock(mutex_);
  size_t num_bytes = grammar_.nodes.size() * sizeof(GrammarNode) +
                     grammar_.children.size() * sizeof(NodeId) + grammar_.regex.num_bytes();
  if (automaton_ != nullptr) {
    const std::lock_guard automaton_lock(automaton_->mutex);
    num_bytes += automaton_->num_bytes();
  }
  return num_bytes;
}

Matcher::Matcher(std::shared_ptr<const CompiledGrammar> grammar)
    : grammar_(std::move(grammar)), automaton_(grammar_->CurrentAutomaton()) {
  const std::lock_guard lock(automaton_->mutex);
  // A start that passes a limit is reported by the first call that needs it.
  const Result<StateId> start = automaton_->Start();
  states_.push_back(start.ok() ? *start : Automaton::kDead);
}

Result<StateId> Matcher::Current() {
  if (states_.size() == 1 && states_[0] == Automaton::kDead) {
    ASSIGN_OR_RETURN(states_[0], automaton_->Start());
  }
  return states_.back();
}

Result<bool> Matcher::Accept(int32_t token) {
  if (IsTerminated() || token < 0 || token >= grammar_->vocabulary().num_tokens()) return false;
  const std::lock_guard lock(automaton_->mutex);
  ASSIGN_OR_RETURN(const StateId current, Current());
  ASSIGN_OR_RETURN(const StateId next, automaton_->AfterToken(current, token));
  if (next != Automaton::kDead) {
    states_.push_back(next);
    return true;
  }
  if (!automaton_->IsAccepting(current) || !grammar_->IsStopToken(token)) return false;
  states_.push_back(kTerminated);
  return true;
}

void Matcher::Rollback(int num_tokens) {
  CHECK(num_tokens >= 0 && num_tokens <= num_accepted());
  states_.resize(states_.size() - num_tokens);
}

Status Matcher::FillMask(std::span<uint32_t> words) {
  CHECK_EQ(static_cast<int32_t>(words.size()), grammar_->vocabulary().num_words());
  if (IsTerminated()) {
    std::ranges::fill(words, 0);
    return {};
  }
  const std::lock_guard lock(automaton_->mutex);
  ASSIGN_OR_RETURN(const StateId current, Current());
  ASSIGN_OR_RETURN(const TokenMask* mask, automaton_->MaskOf(current));
  grammar_->vocabulary().CopySlices(mask->slices, words);
  if (!mask->words.empty()) {
    for (size_t i = 0; i < words.size(); ++i) words[i] |= mask->words[i];
  }
  for (int32_t token : mask->tokens) words[token / 32] |= 1u << (token % 32);
  if (automaton_->IsAccepting(current)) {
    for (int32_t token : grammar_->stop_tokens()) words[token / 32] |= 1u << (token % 32);
  }
  return {};
}

Result<std::optional<int32_t>> Matcher::OnlyAllowedToken() {
  if (IsTerminated()) return std::optional<int32_t>();
  const std::lock_guard lock(automaton_->mutex);
  ASSIGN_OR_RETURN(const StateId current, Current());
  ASSIGN_OR_RETURN(const TokenMask* mask, automaton_->MaskOf(current));
  if (!automaton_->IsAccepting(current)) {
    if (mask->num_tokens == 1) return std::optional<int32_t>(mask->example);
  } else if (mask->num_tokens == 0 && grammar_->stop_tokens().size() == 1) {
    return std::optional<int32_t>(grammar_->stop_tokens()[0]);
  }
  return std::optional<int32_t>();
}

bool Matcher::CanStop() const {
  if (IsTerminated()) return false;
  const std::lock_guard lock(automaton_->mutex);
  return automaton_->IsAccepting(states_.back());
}

}  // namespace lapidary::grammar
