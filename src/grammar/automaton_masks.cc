// Which tokens a state allows.
#include <algorithm>

#include "grammar/automaton.h"

namespace lapidary::grammar {
namespace {

// Pairs of states beyond which walking the tokens themselves is the cheaper way.
constexpr size_t kMaxPairs = 300;

constexpr uint8_t kVisitsWorthAsking = 100;

}  // namespace

// What holds for a kind of texts holds for the narrower kinds.
void Automaton::SetAllowed(StateId state, int kind, uint16_t num_characters) {
  const bool narrower_too = vocabulary_.kinds()[kind].holds_narrower;
  for (int each = narrower_too ? 0 : kind; each <= kind; ++each) {
    uint16_t& allowed = states_[state].allowed[each];
    allowed = std::max(allowed, num_characters);
  }
}

// What a kind of texts breaks the wider kinds break.
void Automaton::SetRefused(StateId state, int kind, uint16_t num_characters) {
  const std::span<const TokenKind> kinds = vocabulary_.kinds();
  for (int each = kind; each < std::ssize(kinds); ++each) {
    if (each > kind && !kinds[each].holds_narrower) continue;
    uint16_t& refused = states_[state].refused[each];
    refused = std::min(refused, num_characters);
  }
}

bool Automaton::AllowsAll(StateId state, int kind, int num_characters) {
  if (states_[state].allowed[kind] >= num_characters) return true;
  if (states_[state].refused[kind] <= num_characters) return false;
  bool allows = true;
  if (states_[state].num_meanings == 1) {
    const RegexId regex = meanings_[states_[state].first_meaning].next;
    allows = regex_.CountLimit(regex) >= static_cast<uint32_t>(num_characters);
  }
  allows = allows && TryAllTexts(state, kind, num_characters);
  if (HasPassedLimit()) return false;
  if (allows) {
    SetAllowed(state, kind, static_cast<uint16_t>(num_characters));
  } else {
    SetRefused(state, kind, static_cast<uint16_t>(num_characters));
  }
  return allows;
}

// Character by character, every pair of a state of ours and one of the kind's.
bool Automaton::TryAllTexts(StateId start, int kind, int num_characters) {
  const std::vector<std::vector<KindEdge>>& edges = kind_edges_[kind];
  pairs_seen_.Clear();
  pairs_between_ = {{start, 0}};
  closed_states_ = {start};
  bool is_closed = true;  // what was seen so far leads nowhere else, whatever is read
  int num_left = num_characters;
  for (; num_left > 0 && !pairs_between_.empty(); --num_left) {
    if (pairs_seen_.size() > kMaxPairs) return false;
    pairs_inside_.swap(pairs_between_);
    pairs_between_.clear();
    while (!pairs_inside_.empty()) {
      const KindPair pair = pairs_inside_.back();
      pairs_inside_.pop_back();
      for (const KindEdge& edge : edges[pair.kind_state]) {
        if (!regex_.TakeWork(std::ssize(edge.classes))) return false;
        for (const uint8_t byte_class : edge.classes) {
          const StateId next = Next(pair.state, byte_class);
          if (next == kDead) return false;
          if (!pairs_seen_.Insert(uint64_t{next} << 32 | static_cast<uint32_t>(edge.to))) continue;
          if (edge.to != 0) {
            pairs_inside_.push_back({next, edge.to});
            continue;
          }
          if (states_[next].refused[kind] < num_left) return false;
          if (states_[next].allowed[kind] >= num_left - 1) {
            is_closed &= states_[next].allowed[kind] == kAnyLength;
            continue;
          }
          pairs_between_.push_back({next, 0});
          closed_states_.push_back(next);
        }
      }
    }
  }
  if (is_closed && pairs_between_.empty()) {
    for (const StateId state : closed_states_) SetAllowed(state, kind, kAnyLength);
  }
  return true;
}

int32_t Automaton::Walk(StateId state, const TokenSlice& slice) {
  const TokenTrie& trie = slice.trie;
  const TokenKind& kind = vocabulary_.kinds()[slice.kind];
  const int max_characters = vocabulary_.slices()[kind.first_slice].max_characters;
  walk_ranges_.clear();
  walk_stack_.resize(trie.max_depth + 1);
  walk_stack_[0] = state;
  int32_t num_allowed = 0;
  const uint32_t num_nodes = static_cast<uint32_t>(trie.nodes.size() - 1);
  for (uint32_t i = 0; i < num_nodes && regex_.TakeWork(1);) {
    const TokenTrie::Node& node = trie.nodes[i];
    const StateId next = Next(walk_stack_[node.depth - 1], class_of_[node.byte]);
    if (next == kDead) {
      if (HasPassedLimit()) break;
      i = node.skip;
      continue;
    }
    // A state that comes up often may allow all that follows; then the whole subtree is taken. What
    // follows is of the kind only between characters.
    const bool is_between = (trie.nodes[i + 1].byte & 0xC0) != 0x80 || node.skip == i + 1;
    State& visited = states_[next];
    bool takes_all = is_between && visited.allowed[slice.kind] >= max_characters;
    if (is_between && !takes_all && visited.refused[slice.kind] > max_characters &&
        ++visited.num_visits >= kVisitsWorthAsking) {
      visited.num_visits = 0;
      takes_all = AllowsAll(next, slice.kind, max_characters);
    }
    if (takes_all || node.is_token) {
      const uint32_t begin = node.first_id;
      const uint32_t end = trie.nodes[takes_all ? node.skip : i + 1].first_id;
      if (!walk_ranges_.empty() && walk_ranges_.back().end == begin) {
        walk_ranges_.back().end = end;
      } else {
        walk_ranges_.push_back({begin, end});
      }
      num_allowed += static_cast<int32_t>(end - begin);
    }
    walk_stack_[node.depth] = next;
    i = takes_all ? node.skip : i + 1;
  }
  return num_allowed;
}

void Automaton::AddSlice(StateId state, int index, TokenMask* mask) {
  const TokenSlice& slice = vocabulary_.slices()[index];
  const int32_t num_allowed = Walk(state, slice);
  if (num_allowed == 0) return;
  const std::vector<int32_t>& ids = slice.trie.ids;
  const auto append = [&](uint32_t begin, uint32_t end, std::vector<int32_t>* list) {
    list->insert(list->end(), ids.begin() + begin, ids.begin() + end);
  };
  mask->num_tokens += num_allowed;
  mask->example = ids[walk_ranges_[0].begin];
  if (2 * num_allowed <= slice.num_tokens) {
    for (const IdRange& range : walk_ranges_) append(range.begin, range.end, &mask->tokens);
    return;
  }
  mask->slices |= 1u << index;
  uint32_t end = 0;
  for (const IdRange& range : walk_ranges_) {
    append(end, range.begin, &mask->excepted);
    end = range.end;
  }
  append(end, static_cast<uint32_t>(ids.size()), &mask->excepted);
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

void Automaton::CopyMask(const TokenMask& mask, std::span<uint32_t> words) const {
  if (!mask.words.empty()) {
    std::ranges::copy(mask.words, words.begin());
    return;
  }
  vocabulary_.CopySlices(mask.slices, words);
  for (int32_t token : mask.excepted) words[token / 32] &= ~(1u << (token % 32));
  for (int32_t token : mask.tokens) words[token / 32] |= 1u << (token % 32);
}

void Automaton::UseWordsIfSmaller(TokenMask* mask) const {
  if (mask->tokens.size() + mask->excepted.size() > vocabulary_.num_words()) {
    std::vector<uint32_t> words(vocabulary_.num_words());
    CopyMask(*mask, words);
    mask->words = std::move(words);
    mask->tokens = {};
    mask->excepted = {};
  }
  mask->tokens.shrink_to_fit();
  mask->excepted.shrink_to_fit();
}

Result<const TokenMask*> Automaton::MaskOf(StateId state) {
  if (states_[state].mask != nullptr) return states_[state].mask.get();
  if (const StateId same = WithoutFarCounts(state); same != state) {
    ASSIGN_OR_RETURN(const TokenMask* mask, MaskOf(same));
    states_[state].mask = states_[same].mask;
    return mask;
  }
  RETURN_IF_ERROR(TakeLimitError());
  auto mask = std::make_shared<TokenMask>();
  const std::span<const TokenKind> kinds = vocabulary_.kinds();
  const std::span<const TokenSlice> slices = vocabulary_.slices();
  // The widest kind that allows all its texts answers for the narrower ones; the narrowest that
  // does not, for the wider ones.
  for (int kind = static_cast<int>(kinds.size()); kind-- > 0;) {
    const auto allows = [&](int slice) {
      return AllowsAll(state, kind, slices[slice].max_characters);
    };
    const int first = kinds[kind].first_slice;
    int first_whole = kinds[kind].end_slice;
    if (allows(first)) {
      first_whole = first;
    } else {
      while (first_whole > first + 1 && allows(first_whole - 1)) --first_whole;
    }
    for (int slice = first; slice < kinds[kind].end_slice; ++slice) {
      RETURN_IF_ERROR(TakeLimitError());
      if (slice < first_whole) {
        AddSlice(state, slice, mask.get());
        continue;
      }
      mask->slices |= 1u << slice;
      mask->num_tokens += slices[slice].num_tokens;
      mask->example = slices[slice].trie.ids[0];
    }
  }
  const State& from = states_[state];
  int32_t last_special = -1;  // they are sorted, and may come with several meanings
  for (uint32_t i = 0; i < from.num_tokens; ++i) {
    const Meaning& meaning = meanings_[from.first_meaning + from.num_meanings + i];
    const int32_t token = static_cast<int32_t>(meaning.next);
    if (token == last_special) continue;
    mask->tokens.push_back(token);
    mask->example = token;
    ++mask->num_tokens;
    last_special = token;
  }
  RETURN_IF_ERROR(TakeLimitError());
  UseWordsIfSmaller(mask.get());
  mask_bytes_ +=
      sizeof(TokenMask) + (mask->tokens.size() + mask->excepted.size() + mask->words.size()) * 4;
  states_[state].mask = std::move(mask);
  return states_[state].mask.get();
}

}  // namespace lapidary::grammar
