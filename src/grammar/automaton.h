// A grammar as an automaton over bytes and special tokens, made only as far as it is walked.
//
// A state is the set of everything the text so far may mean: pairs of a regex under way and of what
// comes behind it, a stack of frames. Equal stacks are the same frame and equal sets the same
// state, so a state alone decides what may follow. Transitions and masks are therefore remembered
// by state, and going back is remembering older states. No text is ever parsed twice and no
// ambiguity is resolved early: a text is allowed if and only if some reading of it can be
// completed.
//
// Not thread-safe: a caller holds a Turn, which locks it and says how much work the calls may do.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/result.h"
#include "grammar/grammar.h"
#include "grammar/grammar_memory.h"
#include "grammar/round_set.h"
#include "grammar/token_vocabulary.h"
#include "grammar/work.h"

namespace lapidary::grammar {

using StateId = uint32_t;

// A text's tokens, as the tokenizer has them. May be called from any thread.
using TextSpeller = std::function<std::vector<int32_t>(std::string_view)>;

// The tokens that may come next, as ready slices of the vocabulary but for some tokens, and others.
struct TokenMask {
  uint32_t slices = 0;            // a bit for each slice that is allowed, all or most of it
  std::vector<int32_t> excepted;  // of these slices, what is not allowed
  std::vector<int32_t> tokens;    // of other slices, what is allowed
  std::vector<uint32_t> words;    // the whole mask, where those lists would be longer; else empty
  int32_t num_tokens = 0;         // all that are allowed
  int32_t example = -1;           // one of them
};

class Automaton {
 public:
  static constexpr StateId kDead = 0;

  // What a hostile grammar may cost before it is refused.
  static constexpr size_t kMaxBytes = size_t{128} << 20;
  static constexpr size_t kMaxMeanings = 20'000;  // of one text
  static constexpr uint32_t kMaxNesting = 20'000;
  static constexpr size_t kMaxClosureSteps = 500'000;

  // `spell` may be empty; then no text is guessed before it was said. `memory` may be null. All
  // must outlive the automaton.
  Automaton(const Grammar& grammar, const TokenVocabulary& vocabulary, const TextSpeller& spell,
            GrammarMemory* memory = nullptr);

  Result<StateId> Start();
  // kDead when the token may not come next. Not for tokens that end the text.
  Result<StateId> AfterToken(StateId state, int32_t token);
  Result<StateId> AfterBytes(StateId state, std::string_view bytes);
  // Whether the text may end here.
  bool IsAccepting(StateId state) const { return states_[state].accepting; }
  // Valid until the automaton goes; tokens that end the text are not in it.
  Result<const TokenMask*> MaskOf(StateId state);
  // Needs no lock. words: [num_words] of the vocabulary.
  void CopyMask(const TokenMask& mask, std::span<uint32_t> words) const;
  // A guess at what comes next.
  struct Guess {
    int32_t token = -1;      // -1: there is none
    bool is_forced = false;  // only its spelling is guessed, for its text must come
  };
  // What was said here lately, or the first token of the text that must come, as the tokenizer
  // spells it; the special token that must.
  Result<Guess> GuessToken(StateId state);
  // `token` came here in an answer. Not for tokens that no answer needs any more.
  void Learn(StateId state, int32_t token);

  size_t num_states() const { return states_.size(); }
  // As of the last turn that ended; needs no turn.
  size_t num_bytes() const { return memory_.num_bytes(); }

  // Memory ran out while something was found out, which may be half written: no turn can be had any
  // more, who wants one gets std::bad_alloc.
  bool is_broken() const { return is_broken_; }

  // Holds the automaton, from its construction on; null work: however long it takes.
  class Turn {
   public:
    Turn(Automaton& automaton, Work* work);
    ~Turn();
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;
    // An error of kind kBusy: others hold it, and the work's account ran out. Then nothing is held.
    const Status& status() const { return status_; }

   private:
    Automaton& automaton_;
    const int num_exceptions_;
    Status status_;
  };

 private:
  using FrameId = uint32_t;
  static constexpr FrameId kEnd = 0;
  static constexpr StateId kUnknown = ~uint32_t{0};
  static constexpr int32_t kNotSpelledYet = -2;

  // What comes behind a node that is under way: of a sequence the children from `index` on, of a
  // repetition its next round after `index` rounds (never more than it must count).
  struct Frame {
    NodeId node = 0;
    uint32_t index = 0;
    FrameId parent = 0;
    uint32_t depth = 0;
  };
  // A regex under way, or a special token that may come; then the frame.
  struct Meaning {
    uint32_t next;
    FrameId frame;
    auto operator<=>(const Meaning&) const = default;
  };
  static constexpr uint16_t kAnyLength = ~uint16_t{0};
  static constexpr std::array<uint16_t, TokenVocabulary::kMaxKinds> NothingRefused() {
    std::array<uint16_t, TokenVocabulary::kMaxKinds> lengths{};
    lengths.fill(kAnyLength);
    return lengths;
  }
  struct State {
    uint32_t first_meaning = 0;
    uint32_t num_meanings = 0;  // regexes,
    uint32_t num_tokens = 0;    // then special tokens
    bool accepting = false;
    uint8_t num_visits = 0;  // by walks, while asking for whole kinds may be worth it
    // By kind of token, what is known so far: all texts of up to `allowed` characters may come; of
    // `refused` characters some may not, or finding out took too long.
    std::array<uint16_t, TokenVocabulary::kMaxKinds> allowed{};
    std::array<uint16_t, TokenVocabulary::kMaxKinds> refused = NothingRefused();
    std::shared_ptr<const TokenMask> mask;
    int32_t spelled = kNotSpelledYet;  // first token of the text that must come; -1: a choice
    int32_t said = -1;                 // in answers, lately;
    uint8_t trust = 0;                 // up to kMostTrust: how often, against other tokens
  };
  struct Task {
    NodeId node;  // to be begun before `frame`; or kResume: only `frame` goes on
    FrameId frame;
  };
  static constexpr NodeId kResume = ~NodeId{0};

  FrameId MakeFrame(NodeId node, uint32_t index, FrameId parent);
  // The closure under construction: Begin, Add... any number of times, then Finish.
  void BeginClosure();
  void AddWork(NodeId node, FrameId frame) { work_.push_back({node, frame}); }
  void AddRegex(RegexId regex, FrameId frame);
  StateId FinishClosure();
  void RunWork();
  void BeginNode(NodeId id, FrameId frame);
  void Continue(NodeId id, uint32_t index, FrameId parent);

  StateId Next(StateId state, uint8_t byte_class) {
    const StateId next = rows_[size_t{state} * num_classes_ + byte_class];
    return next != kUnknown ? next : ComputeNext(state, byte_class);
  }
  StateId ComputeNext(StateId state, uint8_t byte_class);
  // Whether every text of the kind of up to so many characters is allowed. May say no where finding
  // out takes long.
  bool AllowsAll(StateId state, int kind, int num_characters);
  bool TryAllTexts(StateId state, int kind, int num_characters);
  void SetAllowed(StateId state, int kind, uint16_t num_characters);
  void SetRefused(StateId state, int kind, uint16_t num_characters);
  // A state with the same mask: counts that no token can use up are left out.
  StateId WithoutFarCounts(StateId state);
  // Which tokens of the slice are allowed, in `walk_ranges_`; returns how many.
  int32_t Walk(StateId state, const TokenSlice& slice);
  void AddSlice(StateId state, int slice, TokenMask* mask);
  void UseWordsIfSmaller(TokenMask* mask) const;
  // The one byte, or the one special token, that may come next; -1: there is none, or a choice.
  int OnlyByte(StateId state);
  int32_t OnlySpecial(StateId state);
  // Sets `spelled` of the state, and of those that its text leads through.
  Status SpellForcedText(StateId state);
  // The limit passed since the last call, as an error; of kind kBusy where only the account of the
  // work is empty.
  Status TakeLimitError();
  bool HasPassedLimit() const { return limit_error_ != nullptr || regex_.limit_error() != nullptr; }
  size_t CountBytes() const;

  const Grammar& grammar_;
  const TokenVocabulary& vocabulary_;
  const TextSpeller& spell_;
  RegexPool regex_;
  int num_classes_ = 0;
  std::vector<uint8_t> class_of_;        // [256]
  std::vector<uint8_t> representative_;  // [num_classes]
  std::vector<uint16_t> class_sizes_;    // [num_classes], bytes
  // The automata of the vocabulary's kinds, by our classes of bytes: [kind][state].
  struct KindEdge {
    std::vector<uint8_t> classes;
    int to;
  };
  std::vector<std::vector<std::vector<KindEdge>>> kind_edges_;

  std::vector<Frame> frames_;
  InternTable frame_table_;
  std::vector<State> states_;
  std::vector<Meaning> meanings_;
  InternTable state_table_;
  std::vector<StateId> rows_;                            // [num_states, num_classes]
  std::unordered_map<uint64_t, StateId> single_;         // after one regex of one frame
  std::unordered_map<uint64_t, StateId> after_special_;  // by state and token
  StateId start_ = kUnknown;
  uint32_t max_token_bytes_ = 0;
  size_t mask_bytes_ = 0;

  std::vector<Task> work_;
  std::vector<Meaning> new_meanings_;
  std::vector<Meaning> new_tokens_;
  RoundSet done_;  // work of this closure
  bool new_accepting_ = false;

  // While a mask is made.
  struct KindPair {
    StateId state;
    int kind_state;
  };
  RoundSet pairs_seen_;
  std::vector<KindPair> pairs_between_;
  std::vector<KindPair> pairs_inside_;
  std::vector<StateId> closed_states_;
  struct IdRange {  // of a trie's ids
    uint32_t begin;
    uint32_t end;
  };
  std::vector<StateId> walk_stack_;
  std::vector<IdRange> walk_ranges_;
  const char* limit_error_ = nullptr;

  std::mutex mutex_;
  std::atomic<bool> is_broken_{false};
  MemoryShare memory_;
};

}  // namespace lapidary::grammar
