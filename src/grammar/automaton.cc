#include "grammar/automaton.h"

#include <algorithm>
#include <exception>
#include <new>

#include "base/check.h"

namespace lapidary::grammar {
namespace {

using Kind = GrammarNode::Kind;

}  // namespace

Automaton::Automaton(const Grammar& grammar, const TokenVocabulary& vocabulary,
                     const TextSpeller& spell, GrammarMemory* memory)
    : grammar_(grammar),
      vocabulary_(vocabulary),
      spell_(spell),
      regex_(grammar.regex),
      class_of_(256),
      memory_(memory) {
  for (int byte = 0; byte < 256; ++byte) {
    const uint8_t name = regex_.ClassRepresentative(static_cast<uint8_t>(byte));
    if (name == byte) {
      class_of_[byte] = static_cast<uint8_t>(num_classes_++);
      representative_.push_back(name);
      class_sizes_.push_back(0);
    } else {
      class_of_[byte] = class_of_[name];  // names are the least bytes: known by now
    }
    ++class_sizes_[class_of_[byte]];
  }
  for (const TokenKind& kind : vocabulary.kinds()) {
    std::vector<std::vector<KindEdge>>& states = kind_edges_.emplace_back(kind.edges.size());
    for (size_t state = 0; state < states.size(); ++state) {
      for (const TokenKind::Edge& edge : kind.edges[state]) {
        ByteSet classes;
        edge.bytes.ForEach([&](uint8_t byte) { classes.Add(class_of_[byte]); });
        KindEdge& ours = states[state].emplace_back();
        ours.to = edge.to;
        classes.ForEach([&](uint8_t byte_class) { ours.classes.push_back(byte_class); });
      }
    }
  }
  for (const TokenSlice& slice : vocabulary.slices()) {
    max_token_bytes_ = std::max(max_token_bytes_, static_cast<uint32_t>(slice.trie.max_depth));
  }
  frames_.emplace_back();  // kEnd
  states_.emplace_back();  // kDead
  rows_.resize(num_classes_, kDead);
  memory_.Resize(CountBytes());
}

Automaton::Turn::Turn(Automaton& automaton, Work* work)
    : automaton_(automaton), num_exceptions_(std::uncaught_exceptions()) {
  if (work == nullptr) {
    automaton.mutex_.lock();
  } else if (!work->Lock(automaton.mutex_)) {
    status_ = Error{"others are at work on the grammar", ErrorKind::kBusy};
    return;
  }
  if (automaton.is_broken_) {
    automaton.mutex_.unlock();
    throw std::bad_alloc();
  }
  automaton.regex_.set_work(work);
}

Automaton::Turn::~Turn() {
  if (!status_.ok()) return;
  if (std::uncaught_exceptions() > num_exceptions_) automaton_.is_broken_ = true;
  automaton_.regex_.set_work(nullptr);
  automaton_.memory_.Resize(automaton_.CountBytes());
  automaton_.mutex_.unlock();
}

Status Automaton::TakeLimitError() {
  const char* limit = limit_error_ != nullptr ? limit_error_ : regex_.limit_error();
  const bool is_busy = regex_.is_out_of_work();
  limit_error_ = nullptr;
  regex_.ClearLimitError();
  if (limit == nullptr) return {};
  return Error{fmt::format("the grammar needs {} for this text", limit),
               is_busy ? ErrorKind::kBusy : ErrorKind::kInvalid};
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
  done_.Clear();
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
  while (!work_.empty()) {
    const Task task = work_.back();
    work_.pop_back();
    // Each piece of work once: ends loops over empty texts.
    const uint64_t key = uint64_t{task.node} << 32 | task.frame;
    if (!done_.Insert(key)) continue;
    if (done_.size() > kMaxClosureSteps) limit_error_ = "more than 500,000 steps between two bytes";
    if (limit_error_ != nullptr || !regex_.TakeWork(4)) return;
    if (task.node != kResume) {
      BeginNode(task.node, task.frame);
    } else if (task.frame == kEnd) {
      new_accepting_ = true;
    } else {
      const Frame frame = frames_[task.frame];
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
  if (CountBytes() > kMaxBytes) limit_error_ = "more than 128 MB of states";
  if (memory_.is_exhausted()) limit_error_ = "more memory than the grammars in use leave";
  regex_.TakeWork(4 * std::ssize(new_meanings_));
  if (HasPassedLimit()) return kDead;
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
    for (uint32_t i = 0; i < num_meanings && regex_.TakeWork(4); ++i) {
      const Meaning meaning = meanings_[first + i];
      const RegexId regex = regex_.Derivative(meaning.next, byte);
      if (regex_.IsLive(regex)) AddRegex(regex, meaning.frame);
    }
    next = FinishClosure();
  }
  if (!HasPassedLimit()) {
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

size_t Automaton::CountBytes() const {
  constexpr size_t kHashedBytes = 48;  // as in RegexPool
  return regex_.num_bytes() + frames_.capacity() * sizeof(Frame) + frame_table_.num_bytes() +
         states_.capacity() * sizeof(State) + meanings_.capacity() * sizeof(Meaning) +
         state_table_.num_bytes() + rows_.capacity() * sizeof(StateId) +
         (single_.size() + after_special_.size()) * kHashedBytes + mask_bytes_;
}

}  // namespace lapidary::grammar
