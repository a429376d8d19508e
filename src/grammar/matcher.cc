#include "grammar/matcher.h"

#include <algorithm>

#include "base/check.h"

namespace lapidary::grammar {

CompiledGrammar::CompiledGrammar(std::optional<Grammar> grammar,
                                 std::shared_ptr<const TokenVocabulary> vocabulary,
                                 std::vector<int32_t> stop_tokens, ThoughtLimit thought_limit,
                                 TokenRules rules, TextSpeller spell,
                                 std::shared_ptr<GrammarMemory> memory)
    : grammar_(std::move(grammar)),
      vocabulary_(std::move(vocabulary)),
      stop_tokens_(std::move(stop_tokens)),
      thought_limit_(thought_limit),
      rules_(std::move(rules)),
      spell_(std::move(spell)),
      memory_(std::move(memory)),
      grammar_bytes_(memory_.get()) {
  const auto check = [&](int32_t token) {
    CHECK(token >= 0 && token < vocabulary_->num_tokens()) << "token " << token;
  };
  for (const int32_t token : rules_.late_tokens) check(token);
  for (const std::vector<int32_t>& run : rules_.banned_runs) {
    CHECK(!run.empty());
    for (const int32_t token : run) check(token);
  }
  for (const int32_t token : stop_tokens_) check(token);
  if (thought_limit_.max_tokens >= 0) {
    CHECK(thought_limit_.end_token >= 0 && thought_limit_.end_token < vocabulary_->num_tokens());
  }
  if (!grammar_) return;
  grammar_bytes_.Resize(grammar_->num_bytes());
  automaton_ = std::make_shared<Automaton>(*grammar_, *vocabulary_, spell_, memory_.get());
}

bool CompiledGrammar::IsStopToken(int32_t token) const {
  return std::ranges::find(stop_tokens_, token) != stop_tokens_.end();
}

std::shared_ptr<Automaton> CompiledGrammar::CurrentAutomaton() const {
  if (!grammar_) return nullptr;
  const std::lock_guard lock(mutex_);
  const bool is_full = automaton_->num_bytes() > grammar_bytes_.num_bytes() + kRenewAfterBytes;
  if (is_full || automaton_->is_broken()) {
    automaton_ = std::make_shared<Automaton>(*grammar_, *vocabulary_, spell_, memory_.get());
  }
  return automaton_;
}

size_t CompiledGrammar::num_bytes() const {
  if (!grammar_) return 0;
  const std::lock_guard lock(mutex_);
  return grammar_bytes_.num_bytes() + automaton_->num_bytes();
}

Matcher::Matcher(std::shared_ptr<const CompiledGrammar> grammar)
    : grammar_(std::move(grammar)), automaton_(grammar_->CurrentAutomaton()), places_(1) {
  places_[0].is_in_thought = grammar_->thought_limit_.is_open;
}

Result<StateId> Matcher::Current() {
  if (places_.size() == 1 && places_[0].state == Automaton::kDead) {
    ASSIGN_OR_RETURN(places_[0].state, automaton_->Start());
  }
  return places_.back().state;
}

bool Matcher::MustEndThought() const {
  const int32_t max_tokens = grammar_->thought_limit_.max_tokens;
  const Place& place = places_.back();
  return max_tokens >= 0 && place.is_in_thought && place.num_thought_tokens >= max_tokens;
}

Result<Automaton::Guess> Matcher::GuessToken(Work* work) {
  if (IsTerminated()) return Automaton::Guess{};
  if (MustEndThought()) return Automaton::Guess{grammar_->thought_limit_.end_token, true};
  if (automaton_ == nullptr) return Automaton::Guess{};
  const Automaton::Turn turn(*automaton_, work);
  RETURN_IF_ERROR(turn.status());
  ASSIGN_OR_RETURN(const StateId current, Current());
  return automaton_->GuessToken(current);
}

Result<StateId> Matcher::StateAfter(int32_t token, Work* work) {
  const Automaton::Turn turn(*automaton_, work);
  RETURN_IF_ERROR(turn.status());
  ASSIGN_OR_RETURN(const StateId current, Current());
  ASSIGN_OR_RETURN(const StateId next, automaton_->AfterToken(current, token));
  if (next != Automaton::kDead) return next;
  return automaton_->IsAccepting(current) && grammar_->IsStopToken(token) ? kTerminated
                                                                          : Automaton::kDead;
}

Result<bool> Matcher::Accept(int32_t token, Work* work) {
  if (IsTerminated() || token < 0 || token >= grammar_->vocabulary().num_tokens()) return false;
  const ThoughtLimit& limit = grammar_->thought_limit_;
  if (MustEndThought() && token != limit.end_token) return false;
  if (IsWithheld(token) && !MustEndThought()) {
    std::vector<uint32_t> words(num_words());
    RETURN_IF_ERROR(FillMask(words, work));
    if ((words[token / 32] >> (token % 32) & 1) == 0) return false;
  }
  Place next = places_.back();
  if (automaton_ != nullptr) {
    ASSIGN_OR_RETURN(next.state, StateAfter(token, work));
    if (next.state == Automaton::kDead) return false;
  }
  if (next.is_in_thought) {
    next.is_in_thought = token != limit.end_token;
    next.num_thought_tokens += next.is_in_thought ? 1 : 0;
  } else {
    next.is_in_thought = token == limit.begin_token;
  }
  next.token = token;
  places_.push_back(next);
  return true;
}

void Matcher::Rollback(int num_tokens) {
  CHECK(num_tokens >= 0 && num_tokens <= num_accepted());
  places_.resize(places_.size() - num_tokens);
}

bool Matcher::IsNextOf(std::span<const int32_t> banned_run) const {
  const size_t num_before = banned_run.size() - 1;
  if (num_before >= places_.size()) return false;
  return std::ranges::equal(banned_run.first(num_before), std::span(places_).last(num_before), {},
                            {}, &Place::token);
}

bool Matcher::IsWithheld(int32_t token) const {
  const TokenRules& rules = grammar_->rules_;
  if (AreTokensLate() && std::ranges::find(rules.late_tokens, token) != rules.late_tokens.end()) {
    return true;
  }
  return std::ranges::any_of(rules.banned_runs, [&](const std::vector<int32_t>& run) {
    return run.back() == token && IsNextOf(run);
  });
}

void Matcher::ApplyRules(std::span<uint32_t> words) const {
  const TokenRules& rules = grammar_->rules_;
  // Takes tokens out, unless nothing would be left.
  const auto withhold = [&](std::span<const int32_t> tokens) {
    std::vector<int32_t> taken;
    for (const int32_t token : tokens) {
      uint32_t& word = words[token / 32];
      const uint32_t bit = 1u << (token % 32);
      if ((word & bit) != 0) taken.push_back(token);
      word &= ~bit;
    }
    if (std::ranges::any_of(words, [](uint32_t word) { return word != 0; })) return;
    for (const int32_t token : taken) words[token / 32] |= 1u << (token % 32);
  };
  std::vector<int32_t> completing;
  for (const std::vector<int32_t>& run : rules.banned_runs) {
    if (IsNextOf(run)) completing.push_back(run.back());
  }
  if (!completing.empty()) withhold(completing);
  if (AreTokensLate()) withhold(rules.late_tokens);
}

Status Matcher::FillMask(std::span<uint32_t> words, Work* work) {
  RETURN_IF_ERROR(FillGrammarMask(words, work));
  if (!IsTerminated() && !MustEndThought()) ApplyRules(words);
  return {};
}

Status Matcher::FillGrammarMask(std::span<uint32_t> words, Work* work) {
  CHECK_EQ(static_cast<int32_t>(words.size()), grammar_->vocabulary().num_words());
  const auto allow = [&](int32_t token) { words[token / 32] |= 1u << (token % 32); };
  if (IsTerminated() || MustEndThought()) {
    std::ranges::fill(words, 0);
    if (!IsTerminated()) allow(grammar_->thought_limit_.end_token);
    return {};
  }
  if (automaton_ == nullptr) {
    std::ranges::fill(words, ~0u);
    const int32_t num_left = grammar_->vocabulary().num_tokens() % 32;
    if (num_left > 0) words.back() = (1u << num_left) - 1;
    return {};
  }
  const TokenMask* mask = nullptr;
  bool can_stop = false;
  {
    const Automaton::Turn turn(*automaton_, work);
    RETURN_IF_ERROR(turn.status());
    ASSIGN_OR_RETURN(const StateId current, Current());
    ASSIGN_OR_RETURN(mask, automaton_->MaskOf(current));
    can_stop = automaton_->IsAccepting(current);
  }
  // Masks stay as they are: matchers of one grammar copy them at the same time.
  automaton_->CopyMask(*mask, words);
  if (can_stop) {
    for (int32_t token : grammar_->stop_tokens()) allow(token);
  }
  return {};
}

Result<std::optional<int32_t>> Matcher::OnlyAllowedToken(Work* work) {
  if (IsTerminated()) return std::optional<int32_t>();
  if (MustEndThought()) return std::optional<int32_t>(grammar_->thought_limit_.end_token);
  if (automaton_ == nullptr) return std::optional<int32_t>();
  const Automaton::Turn turn(*automaton_, work);
  RETURN_IF_ERROR(turn.status());
  ASSIGN_OR_RETURN(const StateId current, Current());
  ASSIGN_OR_RETURN(const TokenMask* mask, automaton_->MaskOf(current));
  if (!automaton_->IsAccepting(current)) {
    if (mask->num_tokens == 1) return std::optional<int32_t>(mask->example);
  } else if (mask->num_tokens == 0 && grammar_->stop_tokens().size() == 1) {
    return std::optional<int32_t>(grammar_->stop_tokens()[0]);
  }
  return std::optional<int32_t>();
}

std::vector<int32_t> Matcher::LikelyTokens(int32_t max_tokens, Work* work) {
  std::vector<int32_t> tokens;
  std::vector<StateId> chosen_at;
  while (std::ssize(tokens) < max_tokens) {
    const Result<Automaton::Guess> guess = GuessToken(work);
    if (!guess.ok() || guess->token < 0) break;
    if (!guess->is_forced) {
      // What may be repeated would be guessed for ever.
      const StateId state = places_.back().state;
      if (std::ranges::find(chosen_at, state) != chosen_at.end()) break;
      chosen_at.push_back(state);
    }
    const Result<bool> is_accepted = Accept(guess->token, work);
    if (!is_accepted.ok() || !*is_accepted) break;
    tokens.push_back(guess->token);
  }
  Rollback(static_cast<int>(tokens.size()));
  return tokens;
}

void Matcher::Learn(int32_t token, Work* work) {
  if (automaton_ == nullptr || IsTerminated() || MustEndThought()) return;
  const Automaton::Turn turn(*automaton_, work);
  if (!turn.status().ok()) return;
  if (const Result<StateId> current = Current(); current.ok()) automaton_->Learn(*current, token);
}

bool Matcher::CanStop() const {
  if (IsTerminated() || MustEndThought()) return false;
  if (automaton_ == nullptr) return true;
  const Automaton::Turn turn(*automaton_, /*work=*/nullptr);
  return automaton_->IsAccepting(places_.back().state);
}

}  // namespace lapidary::grammar
