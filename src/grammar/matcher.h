// A constraint as a generation goes through it: which tokens may come next, token after token.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "base/result.h"
#include "grammar/automaton.h"
#include "grammar/grammar.h"
#include "grammar/token_vocabulary.h"

namespace lapidary::grammar {

// How many tokens thoughts may have, all of an answer together; then only their end may come.
struct ThoughtLimit {
  int32_t begin_token = -1;
  int32_t end_token = -1;
  bool is_open = false;     // the answer begins inside a thought
  int32_t max_tokens = -1;  // -1: any number
};

// What holds for an answer's tokens whatever they say. Where a grammar leaves nothing else, it goes
// before the rules: a text that is complete may end, and one that must be said is said.
struct TokenRules {
  int32_t min_tokens = 0;                              // before them none of `late_tokens` comes
  std::vector<int32_t> late_tokens = {};               // those that end the answer
  std::vector<std::vector<int32_t>> banned_runs = {};  // none is empty; none is ever completed

  bool empty() const { return min_tokens == 0 && banned_runs.empty(); }
  auto operator<=>(const TokenRules&) const = default;
};

// A grammar ready for a vocabulary. To its users immutable; any number of threads may hold it and
// match with it at once. What one matcher finds out about the grammar, the others know, so it
// grows.
class CompiledGrammar {
 public:
  // Allowed where the text may end, each of `stop_tokens` ends it. Where a thought's limit is
  // reached, the grammar must allow its end. Without a grammar every token may come at any time,
  // and none of them ends the text.
  // With `spell`, text that must come is known in the tokenizer's tokens before it is sampled
  // (Matcher::LikelyTokens).
  // `memory`, if any, is shared with other grammars.
  CompiledGrammar(std::optional<Grammar> grammar, std::shared_ptr<const TokenVocabulary> vocabulary,
                  std::vector<int32_t> stop_tokens, ThoughtLimit thought_limit = {},
                  TokenRules rules = {}, TextSpeller spell = {},
                  std::shared_ptr<GrammarMemory> memory = {});

  // Whether texts end by themselves, with a stop token.
  bool ends() const { return grammar_.has_value(); }

  const TokenVocabulary& vocabulary() const { return *vocabulary_; }
  std::span<const int32_t> stop_tokens() const { return stop_tokens_; }
  bool IsStopToken(int32_t token) const;
  // What it takes now, its states and masks included. Never waits for a matcher.
  size_t num_bytes() const;

 private:
  friend class Matcher;
  // Bytes of states after which an automaton is full. It stays with the matchers that hold it; new
  // ones begin a new automaton.
  static constexpr size_t kRenewAfterBytes = size_t{32} << 20;
  std::shared_ptr<Automaton> CurrentAutomaton() const;  // null without a grammar

  std::optional<Grammar> grammar_;
  std::shared_ptr<const TokenVocabulary> vocabulary_;
  std::vector<int32_t> stop_tokens_;
  ThoughtLimit thought_limit_;
  TokenRules rules_;
  TextSpeller spell_;
  const std::shared_ptr<GrammarMemory> memory_;
  MemoryShare grammar_bytes_;
  mutable std::mutex mutex_;
  mutable std::shared_ptr<Automaton> automaton_;
};

// The state of one generation. Copies are independent. Not thread-safe, but matchers of one grammar
// may work at the same time.
//
// A call may take long: with `work` it ends when that account is empty, with an error of kind
// kBusy, and the matcher stands where it stood. Other errors are about the grammar and the text: it
// needs more than a limit.
class Matcher {
 public:
  explicit Matcher(std::shared_ptr<const CompiledGrammar> grammar);

  // Whether `token` may come next; if so, the matcher moves on. A stop token terminates.
  Result<bool> Accept(int32_t token, Work* work = nullptr);
  // Takes back the last `num_tokens` accepted tokens.
  void Rollback(int num_tokens);
  int num_accepted() const { return static_cast<int>(places_.size()) - 1; }

  int32_t num_words() const { return grammar_->vocabulary().num_words(); }
  // Bit t % 32 of words[t / 32] is set if and only if Accept(t) would succeed. words: [num_words]
  // of the vocabulary. No bit is set once terminated.
  Status FillMask(std::span<uint32_t> words, Work* work = nullptr);
  // The one token that may come next, if the grammar leaves just one.
  Result<std::optional<int32_t>> OnlyAllowedToken(Work* work = nullptr);
  // A guess at what comes next, at most so many tokens, each allowed behind those before it: text
  // that must come, as answers before said it (Learn) or as the tokenizer spells it, and what they
  // said where there was a choice. The matcher does not move. With an empty account, those that
  // are known.
  std::vector<int32_t> LikelyTokens(int32_t max_tokens, Work* work = nullptr);
  // The token was sampled here: other answers in this form may say the same. It changes what is
  // guessed, never what may come. Before Accept.
  void Learn(int32_t token, Work* work = nullptr);

  // A stop token was accepted.
  bool IsTerminated() const { return places_.back().state == kTerminated; }
  // The text may end here.
  bool CanStop() const;

 private:
  static constexpr StateId kTerminated = ~StateId{0} - 1;
  struct Place {
    StateId state = Automaton::kDead;
    int32_t token = -1;  // that led here
    bool is_in_thought = false;
    int32_t num_thought_tokens = 0;  // without those that begin and end thoughts
  };

  Result<StateId> Current();
  // kDead if the grammar does not allow `token` here.
  Result<StateId> StateAfter(int32_t token, Work* work);
  bool MustEndThought() const;
  Result<Automaton::Guess> GuessToken(Work* work);
  // As FillMask, without the rules.
  Status FillGrammarMask(std::span<uint32_t> words, Work* work);
  // Whether the run is complete with its last token.
  bool IsNextOf(std::span<const int32_t> banned_run) const;
  bool AreTokensLate() const { return num_accepted() < grammar_->rules_.min_tokens; }
  // Whether a rule is against it, whatever else may come.
  bool IsWithheld(int32_t token) const;
  void ApplyRules(std::span<uint32_t> words) const;

  std::shared_ptr<const CompiledGrammar> grammar_;
  std::shared_ptr<Automaton> automaton_;  // null without a grammar
  std::vector<Place> places_;             // before the first token and after each
};

}  // namespace lapidary::grammar
