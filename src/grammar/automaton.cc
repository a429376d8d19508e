#include "grammar/automaton.h"

#include <algorithm>
#include <unordered_set>

#include "base/check.h"

namespace lapidary::grammar {
namespace {

using Kind = GrammarNode::Kind;

// Pairs of states beyond which walking the tokens themselves is the cheaper way.
constexpr size_t kMaxPairs = 300;

constexpr uint8_t kVisitsWorthAsking = 100;

// More single tokens than this are kept as a bit mask, which is then smaller.
size_t MaxListedTokens(const TokenVocabulary& vocabulary) { return vocabulary.num_words(); }

}  // namespace

Automaton::Automaton(const Grammar& grammar, const TokenVocabulary& vocabulary)
    : grammar_(grammar), vocabulary_(vocabulary), regex_(grammar.regex), class_of_(256) {
  for (int byte = 0; byte < 256; ++byte) {
    const uint8_t name = regex_.ClassRepresentative(static_cast<uint8_t>(byte));
    if (name == byte) {
      class_of_[byte] = static_cast<uint8_t>(num_classes_++);
      representative_.push_back(name);
    } else {
      class_of_[byte] = class_of_[name];  // names are the least bytes: known by now
    }
  }
  for (const TokenSlice& slice : vocabulary.slices()) {
    max_token_bytes_ = std::max(max_token_bytes_, static_cast<uint32_t>(slice.trie.max_depth));
  }
  frames_.emplace_back();  // kEnd
  seen_slots_.resize(256);
  seen_round_.resize(256, 0);
  states_.emplace_back();  // kDead
  rows_.resize(num_classes_, kDead);
}

Status Automaton::TakeLimitError() {
  const char* limit = limit_error_ != nullptr ? limit_error_ : regex_.limit_error();
  limit_error_ = nullptr;
  regex_.ClearLimitError();
  if (limit == nullptr) return {};
  return MakeError("the grammar needs {} for this text", limit);
}

Automaton::FrameId Automaton::MakeFrame(NodeId node, uint32_t index, FrameId parent) {
  const uint64_t hash = MixHash(MixHash(node, index), parent);
  const uint32_t known = frame_table_.Find(hash, [&](uint32_t id) {
    const Frame& frame = frames_[id];
    return frame.node == node && frame.index == index && frame.parent == parent;
  });
  if (known != InternTable::kNone) return known;
  const uint32_t depth = frames_[parent].depth + 1;
  if (depth > kMaxNesting) limit_error_ = "nesting deeper than 20,000 levels";
  const FrameId id = static_cast<FrameId>(frames_.size());
  frames_.push_back({node, index, parent, depth});
  frame_table_.Insert(hash, id);
  return id;
}

void Automaton::BeginClosure() {
  work_.clear();
  new_meanings_.clear();
  new_tokens_.clear();
  new_accepting_ = false;
  num_seen_ = 0;
  ++round_;
}

void Automaton::AddRegex(RegexId regex, FrameId frame) {
  if (!regex_.FirstBytes(regex).Empty()) new_meanings_.push_back({regex, frame});
  if (regex_.IsNullable(regex)) AddWork(kResume, frame);
}

void Automaton::BeginNode(NodeId id, FrameId frame) {
  const GrammarNode& node = grammar_.nodes[id];
  switch (node.kind) {
    case Kind::kTerminal:
      AddRegex(node.a, frame);
      break;
    case Kind::kToken:
      new_tokens_.push_back({node.a, frame});
      break;
    case Kind::kChoice:
      for (NodeId child : grammar_.ChildrenOf(node)) AddWork(child, frame);
      break;
    case Kind::kSequence:
    case Kind::kRepeat:
      Continue(id, 0, frame);
      break;
  }
}

void Automaton::Continue(NodeId id, uint32_t index, FrameId parent) {
  const GrammarNode& node = grammar_.nodes[id];
  if (node.kind == Kind::kSequence) {
    if (index == node.b) {
      AddWork(kResume, parent);
    } else {
      // The last child needs no frame, so that lists by right recursion do not nest.
      const NodeId child = grammar_.children[node.a + index];
      AddWork(child, index + 1 == node.b ? parent : MakeFrame(id, index + 1, parent));
    }
    return;
  }
  if (index >= node.min) AddWork(kResume, parent);
  if (index < node.max) {
    const uint32_t most = node.max == kUnbounded ? node.min : node.max;
    AddWork(node.a, MakeFrame(id, std::min(index + 1, most), parent));
  }
}

void Automaton::RunWork() {
  size_t num_steps = 0;
  while (!work_.empty()) {
    const Work work = work_.back();
    work_.pop_back();
    // Each piece of work once: ends loops over empty texts.
    const uint64_t key = uint64_t{work.node} << 32 | work.frame;
    if (2 * num_seen_ >= seen_slots_.size()) {
      std::vector<uint64_t> keys;
      for (size_t i = 0; i < seen_slots_.size(); ++i) {
        if (seen_round_[i] == round_) keys.push_back(seen_slots_[i]);
      }
      seen_slots_.assign(seen_slots_.size() * 2, 0);
      seen_round_.assign(seen_slots_.size(), round_ - 1);
      for (uint64_t old : keys) {
        size_t slot = MixHash(0, old) & (seen_slots_.size() - 1);
        while (seen_round_[slot] == round_) slot = (slot + 1) & (seen_slots_.size() - 1);
        seen_slots_[slot] = old;
        seen_round_[slot] = round_;
      }
    }
    size_t slot = MixHash(0, key) & (seen_slots_.size() - 1);
    while (seen_round_[slot] == round_ && seen_slots_[slot] != key) {
      slot = (slot + 1) & (seen_slots_.size() - 1);
    }
    if (seen_round_[slot] == round_) continue;
    seen_slots_[slot] = key;
    seen_round_[slot] = round_;
    ++num_seen_;
    if (++num_steps > kMaxClosureSteps) limit_error_ = "more than 500,000 steps between two bytes";
    if (limit_error_ != nullptr) return;
    if (work.node != kResume) {
      BeginNode(work.node, work.frame);
    } else if (work.frame == kEnd) {
      new_accepting_ = true;
    } else {
      const Frame frame = frames_[work.frame];
      Continue(frame.node, frame.index, frame.parent);
    }
  }
}

StateId Automaton::FinishClosure() {
  RunWork();
  const auto normalize = [](std::vector<Meaning>* meanings) {
    if (meanings->size() < 2) return;
    std::ranges::sort(*meanings);
    meanings->erase(std::unique(meanings->begin(), meanings->end()), meanings->end());
  };
  normalize(&new_meanings_);
  normalize(&new_tokens_);
  if (new_meanings_.size() + new_tokens_.size() > kMaxMeanings) {
    limit_error_ = "more than 20,000 meanings";
  }
  if (num_bytes() > kMaxBytes) limit_error_ = "more than 256 MB of states";
  if (limit_error_ != nullptr || regex_.limit_error() != nullptr) return kDead;
  if (new_meanings_.empty() && new_tokens_.empty() && !new_accepting_) return kDead;
  uint64_t hash = MixHash(new_accepting_, new_meanings_.size());
  for (const auto* list : {&new_meanings_, &new_tokens_}) {
    for (const Meaning& meaning : *list) {
      hash = MixHash(hash, uint64_t{meaning.next} << 32 | meaning.frame);
    }
  }
  const uint32_t known = state_table_.Find(hash, [&](uint32_t id) {
    const State& state = states_[id];
    const Meaning* meanings = meanings_.data() + state.first_meaning;
    return state.accepting == new_accepting_ && state.num_meanings == new_meanings_.size() &&
           state.num_tokens == new_tokens_.size() &&
           std::equal(new_meanings_.begin(), new_meanings_.end(), meanings) &&
           std::equal(new_tokens_.begin(), new_tokens_.end(), meanings + state.num_meanings);
  });
  if (known != InternTable::kNone) return known;
  const StateId id = static_cast<StateId>(states_.size());
  State state;
  state.first_meaning = static_cast<uint32_t>(meanings_.size());
  state.num_meanings = static_cast<uint32_t>(new_meanings_.size());
  state.num_tokens = static_cast<uint32_t>(new_tokens_.size());
  state.accepting = new_accepting_;
  states_.push_back(std::move(state));
  meanings_.insert(meanings_.end(), new_meanings_.begin(), new_meanings_.end());
  meanings_.insert(meanings_.end(), new_tokens_.begin(), new_tokens_.end());
  ByteSet first;
  for (const Meaning& meaning : new_meanings_) first = first | regex_.FirstBytes(meaning.next);
  for (int i = 0; i < num_classes_; ++i) {
    rows_.push_back(first.Has(representative_[i]) ? kUnknown : kDead);
  }
  state_table_.Insert(hash, id);
  return id;
}

StateId Automaton::ComputeNext(StateId state, uint8_t byte_class) {
  const uint8_t byte = representative_[byte_class];
  const uint32_t first = states_[state].first_meaning;
  const uint32_t num_meanings = states_[state].num_meanings;
  StateId next;
  if (num_meanings == 1) {
    const Meaning meaning = meanings_[first];
    const RegexId regex = regex_.Derivative(meaning.next, byte);
    if (!regex_.IsLive(regex)) {
      next = kDead;
    } else if (const auto found = single_.find(uint64_t{regex} << 32 | meaning.frame);
               found != single_.end()) {
      next = found->second;
    } else {
      BeginClosure();
      AddRegex(regex, meaning.frame);
      next = FinishClosure();
      if (next != kDead) single_.emplace(uint64_t{regex} << 32 | meaning.frame, next);
    }
  } else {
    BeginClosure();
    for (uint32_t i = 0; i < num_meanings; ++i) {
      const Meaning meaning = meanings_[first + i];
      const RegexId regex = regex_.Derivative(meaning.next, byte);
      if (regex_.IsLive(regex)) AddRegex(regex, meaning.frame);
    }
    next = FinishClosure();
  }
  if (limit_error_ == nullptr && regex_.limit_error() == nullptr) {
    rows_[size_t{state} * num_classes_ + byte_class] = next;
  }
  return next;
}

Result<StateId> Automaton::Start() {
  if (start_ == kUnknown) {
    BeginClosure();
    AddWork(grammar_.root, kEnd);
    const StateId start = FinishClosure();
    RETURN_IF_ERROR(TakeLimitError());
    start_ = start;
  }
  return start_;
}

Result<StateId> Automaton::AfterBytes(StateId state, std::string_view bytes) {
  for (char byte : bytes) {
    state = Next(state, class_of_[static_cast<uint8_t>(byte)]);
    if (state == kDead) break;
  }
  RETURN_IF_ERROR(TakeLimitError());
  return state;
}

Result<StateId> Automaton::AfterToken(StateId state, int32_t token) {
  CHECK(token >= 0 && token < vocabulary_.num_tokens());
  if (const std::string_view bytes = vocabulary_.BytesOf(token); !bytes.empty()) {
    return AfterBytes(state, bytes);
  }
  const uint64_t key = uint64_t{state} << 32 | static_cast<uint32_t>(token);
  if (const auto found = after_special_.find(key); found != after_special_.end()) {
    return found->second;
  }
  BeginClosure();
  const State& from = states_[state];
  for (uint32_t i = 0; i < from.num_tokens; ++i) {
    const Meaning& meaning = meanings_[from.first_meaning + from.num_meanings + i];
    if (meaning.next == static_cast<uint32_t>(token)) AddWork(kResume, meaning.frame);
  }
  const StateId next = FinishClosure();
  RETURN_IF_ERROR(TakeLimitError());
  after_special_.emplace(key, next);
  return next;
}

bool Automaton::AllowsAll(StateId state, const TokenSlice& slice) {
  if (states_[state].num_meanings == 1) {
    const RegexId regex = meanings_[states_[state].first_meaning].next;
    if (regex_.CountLimit(regex) < static_cast<uint32_t>(slice.max_characters)) return false;
  }
  // Character by character, every pair of a state of ours and one of the slice's.
  struct Pair {
    StateId state;
    int kind_state;
  };
  std::vector<Pair> between = {{state, 0}};
  std::vector<Pair> work;
  std::unordered_set<uint64_t> seen;
  for (int length = 0; length < slice.max_characters && !between.empty(); ++length) {
    if (seen.size() > kMaxPairs) return false;
    work.swap(between);
    between.clear();
    while (!work.empty()) {
      const Pair pair = work.back();
      work.pop_back();
      for (const TokenSlice::Edge& edge : slice.edges[pair.kind_state]) {
        ByteSet done;
        bool is_allowed = true;
        edge.bytes.ForEach([&](uint8_t byte) {
          const uint8_t byte_class = class_of_[byte];
          if (!is_allowed || done.Has(byte_class)) return;
          done.Add(byte_class);
          const StateId next = Next(pair.state, byte_class);
          if (next == kDead) {
            is_allowed = false;
          } else if (seen.insert(uint64_t{next} << 32 | static_cast<uint32_t>(edge.to)).second) {
            (edge.to == 0 ? between : work).push_back({next, edge.to});
          }
        });
        if (!is_allowed) return false;
      }
    }
  }
  return true;
}

bool Automaton::AllowsKind(StateId state, int kind) {
  const uint8_t bit = static_cast<uint8_t>(1u << kind);
  if ((states_[state].kinds_known & bit) == 0) {
    const bool allows = AllowsAll(state, vocabulary_.slices()[vocabulary_.FirstOfKind(kind)]);
    states_[state].kinds_known |= bit;
    if (allows) states_[state].kinds_allowed |= bit;
  }
  return (states_[state].kinds_allowed & bit) != 0;
}

void Automaton::Walk(StateId state, int slice, std::vector<int32_t>* tokens) {
  const TokenTrie& trie = vocabulary_.slices()[slice].trie;
  const int kind = vocabulary_.KindOf(slice);
  const uint8_t bit = static_cast<uint8_t>(1u << kind);
  walk_stack_.resize(trie.max_depth + 1);
  walk_stack_[0] = state;
  const uint32_t num_nodes = static_cast<uint32_t>(trie.nodes.size() - 1);
  for (uint32_t i = 0; i < num_nodes;) {
    const TokenTrie::Node& node = trie.nodes[i];
    const StateId next = Next(walk_stack_[node.depth - 1], class_of_[node.byte]);
    if (next == kDead) {
      i = node.skip;
      continue;
    }
    // A state that comes up often may allow all that follows; then the whole subtree is taken. What
    // follows is of the kind only between characters.
    const bool is_between = (trie.nodes[i + 1].byte & 0xC0) != 0x80 || node.skip == i + 1;
    State& visited = states_[next];
    bool takes_all = is_between && (visited.kinds_allowed & bit) != 0;
    if (is_between && (visited.kinds_known & bit) == 0 &&
        ++visited.num_visits >= kVisitsWorthAsking) {
      visited.num_visits = 0;
      takes_all = AllowsKind(next, kind);
    }
    if (takes_all || node.is_token) {
      const uint32_t end = takes_all ? node.skip : i + 1;
      tokens->insert(tokens->end(), trie.ids.begin() + node.first_id,
                     trie.ids.begin() + trie.nodes[end].first_id);
    }
    walk_stack_[node.depth] = next;
    i = takes_all ? node.skip : i + 1;
  }
}

StateId Automaton::WithoutFarCounts(StateId state) {
  BeginClosure();
  const uint32_t first = states_[state].first_meaning;
  const uint32_t num_meanings = states_[state].num_meanings;
  bool is_same = true;
  for (uint32_t i = 0; i < num_meanings; ++i) {
    const Meaning meaning = meanings_[first + i];
    const RegexId regex = regex_.WithoutFarCounts(meaning.next, max_token_bytes_);
    is_same &= regex == meaning.next;
    new_meanings_.push_back({regex, meaning.frame});
  }
  if (is_same) return state;
  for (uint32_t i = 0; i < states_[state].num_tokens; ++i) {
    new_tokens_.push_back(meanings_[first + num_meanings + i]);
  }
  new_accepting_ = states_[state].accepting;
  const StateId without = FinishClosure();
  return without == kDead ? state : without;
}

Result<const TokenMask*> Automaton::MaskOf(StateId state) {
  if (states_[state].mask != nullptr) return states_[state].mask.get();
  if (const StateId same = WithoutFarCounts(state); same != state) {
    ASSIGN_OR_RETURN(const TokenMask* mask, MaskOf(same));
    states_[state].mask = states_[same].mask;
    return mask;
  }
  auto mask = std::make_shared<TokenMask>();
  const std::span<const TokenSlice> slices = vocabulary_.slices();
  bool allows_longer = false;  // of the same kind
  for (int slice = 0; slice < static_cast<int>(slices.size()); ++slice) {
    const int kind = vocabulary_.KindOf(slice);
    const bool is_first = slice == vocabulary_.FirstOfKind(kind);
    allows_longer =
        is_first ? AllowsKind(state, kind) : allows_longer || AllowsAll(state, slices[slice]);
    if (allows_longer) {
      mask->slices |= 1u << slice;
      mask->num_tokens += slices[slice].num_tokens;
      mask->example = slices[slice].trie.ids[0];
    } else {
      Walk(state, slice, &mask->tokens);
    }
  }
  const State& from = states_[state];
  for (uint32_t i = 0; i < from.num_tokens; ++i) {
    const Meaning& meaning = meanings_[from.first_meaning + from.num_meanings + i];
    if (mask->tokens.empty() || mask->tokens.back() != static_cast<int32_t>(meaning.next)) {
      mask->tokens.push_back(static_cast<int32_t>(meaning.next));
    }
  }
  RETURN_IF_ERROR(TakeLimitError());
  mask->num_tokens += static_cast<int32_t>(mask->tokens.size());
  if (!mask->tokens.empty()) mask->example = mask->tokens[0];
  if (mask->tokens.size() > MaxListedTokens(vocabulary_)) {
    mask->words.resize(vocabulary_.num_words());
    for (int32_t token : mask->tokens) mask->words[token / 32] |= 1u << (token % 32);
    mask->tokens = {};
  }
  mask->tokens.shrink_to_fit();
  mask_bytes_ += sizeof(TokenMask) + (mask->tokens.size() + mask->words.size()) * 4;
  states_[state].mask = std::move(mask);
  return states_[state].mask.get();
}

size_t Automaton::num_bytes() const {
  return regex_.num_bytes() + frames_.size() * sizeof(Frame) + frame_table_.num_bytes() +
         states_.size() * sizeof(State) + meanings_.size() * sizeof(Meaning) +
         state_table_.num_bytes() + rows_.size() * sizeof(StateId) +
         (single_.size() + after_special_.size()) * 48 + mask_bytes_;
}

}  // namespace lapidary::grammar
