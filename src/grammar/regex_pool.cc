#include "grammar/regex_pool.h"

#include <algorithm>
#include <functional>
#include <unordered_set>

#include "base/check.h"

namespace lapidary::grammar {
namespace {

const ByteSet kDigits = ByteSet::Range('0', '9');

// Texts longer than this are no use as guesses.
constexpr uint32_t kMaxGuess = 4096;

// An entry of an unordered_map with what the allocator and the buckets add.
constexpr size_t kHashedBytes = 48;

uint32_t SaturatingAdd(uint32_t a, uint32_t b) { return std::min(a + b, 2 * kMaxGuess); }

// A letter where there is one: it most likely passes other conditions too.
uint8_t LikelyByte(const ByteSet& bytes) {
  for (const char byte : {'a', 'A', '0', ' '}) {
    if (bytes.Has(static_cast<uint8_t>(byte))) return static_cast<uint8_t>(byte);
  }
  int likely = -1;
  bytes.ForEach([&](uint8_t byte) {
    if (likely < 0x20) likely = byte;
  });
  return static_cast<uint8_t>(likely);
}

}  // namespace

const char RegexPool::kOutOfWork[] = "more time";

RegexPool::RegexPool() {
  CHECK_EQ(Intern({.kind = Kind::kNothing}), kNothing);
  CHECK_EQ(Intern({.kind = Kind::kEmpty, .nullable = true}), kEmpty);
  CHECK_EQ(Intern({.kind = Kind::kRepeat,
                   .nullable = true,
                   .depth = 2,
                   .a = kAnything + 1,
                   .max = kUnbounded,
                   .first = ByteSet::All()}),
           kAnything);
  CHECK_EQ(Bytes(ByteSet::All()), kAnything + 1);
}

RegexId RegexPool::Intern(const Node& node) {
  if (!TakeWork(2)) return kNothing;
  uint64_t hash = MixHash(static_cast<uint64_t>(node.kind), uint64_t{node.a} << 32 | node.b);
  if (node.kind == Kind::kBytes) {
    for (uint64_t word : node.first.words()) hash = MixHash(hash, word);
  } else {
    hash = MixHash(hash, uint64_t{node.min} << 32 | node.max);
  }
  const RegexId known = table_.Find(hash, [&](uint32_t id) {
    const Node& other = nodes_[id];
    return other.kind == node.kind && other.a == node.a && other.b == node.b &&
           other.min == node.min && other.max == node.max &&
           (node.kind != Kind::kBytes || other.first == node.first);
  });
  if (known != InternTable::kNone) return known;
  if (node.depth > kMaxDepth) {
    limit_error_ = "a regular expression nested deeper than 400 operators";
    return kNothing;
  }
  if (nodes_.size() >= kMaxNodes) {
    limit_error_ = "regular expressions of more than 1,000,000 states";
    return kNothing;
  }
  const RegexId id = static_cast<RegexId>(nodes_.size());
  nodes_.push_back(node);
  table_.Insert(hash, id);
  return id;
}

void RegexPool::SplitClasses(const ByteSet& bytes) {
  // A class that is cut keeps its representative for the part that holds it.
  std::array<int, 256> other_half;
  other_half.fill(-1);
  for (int byte = 0; byte < 256; ++byte) {
    const uint8_t name = representatives_[byte];
    if (bytes.Has(static_cast<uint8_t>(byte)) == bytes.Has(name)) continue;
    if (other_half[name] < 0) other_half[name] = byte;
    representatives_[byte] = static_cast<uint8_t>(other_half[name]);
  }
}

RegexId RegexPool::Bytes(const ByteSet& bytes) {
  if (bytes.Empty()) return kNothing;
  const size_t num_before = nodes_.size();
  const RegexId id =
      Intern({.kind = Kind::kBytes, .depth = 1, .min_length = 1, .reach = 1, .first = bytes});
  if (nodes_.size() != num_before) SplitClasses(bytes);
  return id;
}

RegexId RegexPool::Literal(std::string_view text) {
  if (text.empty()) return kEmpty;
  if (text.size() == 1) return Byte(static_cast<uint8_t>(text[0]));
  const uint64_t hash = std::hash<std::string_view>()(text);
  const RegexId known = literals_.Find(hash, [&](uint32_t id) {
    return std::string_view(texts_).substr(nodes_[id].a, nodes_[id].b) == text;
  });
  if (known != InternTable::kNone) return known;
  if (!TakeWork(10 * std::ssize(text))) return kNothing;
  for (char byte : text) SplitClasses(ByteSet::Of(static_cast<uint8_t>(byte)));
  const uint32_t begin = static_cast<uint32_t>(texts_.size());
  texts_ += text;
  const RegexId id =
      Intern({.kind = Kind::kLiteral,
              .depth = 1,
              .a = begin,
              .b = static_cast<uint32_t>(text.size()),
              .min_length = SaturatingAdd(static_cast<uint32_t>(text.size()), 0),
              .reach = static_cast<uint32_t>(std::min<size_t>(text.size(), kNoReach)),
              .first = ByteSet::Of(static_cast<uint8_t>(text[0]))});
  if (id != kNothing) literals_.Insert(hash, id);
  return id;
}

RegexId RegexPool::Concat(RegexId first, RegexId second) {
  if (first == kNothing || second == kNothing) return kNothing;
  if (first == kEmpty) return second;
  if (second == kEmpty) return first;
  if (first == kAnything && second == kAnything) return kAnything;
  if (nodes_[first].kind == Kind::kConcat) {  // heads are never concatenations themselves
    std::vector<RegexId> heads;
    while (nodes_[first].kind == Kind::kConcat) {
      heads.push_back(nodes_[first].a);
      first = nodes_[first].b;
    }
    second = Concat(first, second);
    for (size_t i = heads.size(); i-- > 0;) second = Concat(heads[i], second);
    return second;
  }
  const Node& a = nodes_[first];
  const Node& b = nodes_[second];
  // The depth counts operators around operands; a chain of concatenations is one level.
  const uint16_t tail_depth = b.kind == Kind::kConcat ? b.depth : b.depth + 1;
  return Intern({.kind = Kind::kConcat,
                 .nullable = a.nullable && b.nullable,
                 .searched = a.searched || b.searched,
                 .depth = std::max<uint16_t>(a.depth + 1, tail_depth),
                 .a = first,
                 .b = second,
                 .min_length = SaturatingAdd(a.min_length, b.min_length),
                 .reach = std::min(a.reach + b.reach, kNoReach),
                 .first = a.nullable ? a.first | b.first : a.first});
}

RegexId RegexPool::Concat(std::span<const RegexId> parts) {
  RegexId all = kEmpty;
  for (size_t i = parts.size(); i-- > 0;) all = Concat(parts[i], all);
  return all;
}

void RegexPool::Flatten(Kind kind, std::span<const RegexId> parts,
                        std::vector<RegexId>* flat) const {
  for (RegexId part : parts) {
    if (nodes_[part].kind == kind) {
      const std::span<const RegexId> inner = Operands(nodes_[part]);
      flat->insert(flat->end(), inner.begin(), inner.end());
    } else {
      flat->push_back(part);
    }
  }
}

RegexId RegexPool::InternOperands(Kind kind, std::span<const RegexId> operands) {
  uint64_t hash = MixHash(static_cast<uint64_t>(kind) + 100, operands.size());
  for (RegexId operand : operands) hash = MixHash(hash, operand);
  const RegexId known = table_.Find(hash, [&](uint32_t id) {
    return nodes_[id].kind == kind && std::ranges::equal(Operands(nodes_[id]), operands);
  });
  if (known != InternTable::kNone) return known;
  if (nodes_.size() >= kMaxNodes || operands_.size() + operands.size() > 16 * kMaxNodes) {
    limit_error_ = "regular expressions of more than 1,000,000 states";
    return kNothing;
  }
  const bool is_or = kind == Kind::kOr;
  Node node{.kind = kind,
            .nullable = !is_or,
            .searched = !is_or,
            .a = static_cast<uint32_t>(operands_.size()),
            .b = static_cast<uint32_t>(operands.size()),
            .min_length = is_or ? 2 * kMaxGuess : 0,
            .reach = is_or ? 0 : kNoReach,
            .first = is_or ? ByteSet() : ByteSet::All()};
  for (RegexId operand : operands) {
    const Node& inner = nodes_[operand];
    node.nullable = is_or ? node.nullable || inner.nullable : node.nullable && inner.nullable;
    node.searched |= inner.searched;
    node.min_length = is_or ? std::min(node.min_length, inner.min_length)
                            : std::max(node.min_length, inner.min_length);
    node.reach = std::max(node.reach, inner.reach);
    node.depth = std::max<uint16_t>(node.depth, inner.depth + 1);
    node.first = is_or ? node.first | inner.first : node.first & inner.first;
  }
  if (node.depth > kMaxDepth) {
    limit_error_ = "a regular expression nested deeper than 400 operators";
    return kNothing;
  }
  operands_.insert(operands_.end(), operands.begin(), operands.end());
  const RegexId id = static_cast<RegexId>(nodes_.size());
  nodes_.push_back(node);
  table_.Insert(hash, id);
  return id;
}

RegexId RegexPool::Or(std::span<const RegexId> parts) {
  std::vector<RegexId> flat;
  Flatten(Kind::kOr, parts, &flat);
  if (!TakeWork(4 * std::ssize(flat))) return kNothing;
  std::ranges::sort(flat);
  flat.erase(std::unique(flat.begin(), flat.end()), flat.end());
  ByteSet bytes;
  size_t num_sets = 0;
  bool has_nullable = false;
  for (RegexId part : flat) {
    if (part == kAnything) return kAnything;
    if (nodes_[part].kind == Kind::kBytes) {
      bytes = bytes | nodes_[part].first;
      ++num_sets;
    }
    has_nullable |= part != kEmpty && nodes_[part].nullable;
  }
  if (num_sets > 1) {
    std::erase_if(flat, [&](RegexId part) { return nodes_[part].kind == Kind::kBytes; });
    flat.insert(std::ranges::lower_bound(flat, Bytes(bytes)), Bytes(bytes));
  }
  std::erase_if(flat,
                [&](RegexId part) { return part == kNothing || (part == kEmpty && has_nullable); });
  if (flat.empty()) return kNothing;
  if (flat.size() == 1) return flat[0];
  return InternOperands(Kind::kOr, flat);
}

RegexId RegexPool::And(std::span<const RegexId> parts) {
  std::vector<RegexId> flat;
  Flatten(Kind::kAnd, parts, &flat);
  if (!TakeWork(4 * std::ssize(flat))) return kNothing;
  std::ranges::sort(flat);
  flat.erase(std::unique(flat.begin(), flat.end()), flat.end());
  std::erase(flat, kAnything);
  if (flat.empty()) return kAnything;
  if (flat.size() == 1) return flat[0];
  bool all_nullable = true;
  ByteSet first = ByteSet::All();
  for (RegexId part : flat) {
    if (part == kNothing) return kNothing;
    all_nullable &= nodes_[part].nullable;
    first = first & nodes_[part].first;
  }
  if (first.Empty()) return all_nullable ? kEmpty : kNothing;
  return InternOperands(Kind::kAnd, flat);
}

RegexId RegexPool::Not(RegexId part) {
  if (part == kNothing) return kAnything;
  if (part == kAnything) return kNothing;
  const Node& inner = nodes_[part];
  if (inner.kind == Kind::kNot) return inner.a;
  return Intern({.kind = Kind::kNot,
                 .nullable = !inner.nullable,
                 .searched = true,
                 .depth = static_cast<uint16_t>(inner.depth + 1),
                 .a = part,
                 .reach = kNoReach,
                 .first = ByteSet::All()});
}

RegexId RegexPool::Repeat(RegexId part, uint32_t min, uint32_t max) {
  if (max == 0 || part == kEmpty) return kEmpty;
  if (part == kNothing) return min == 0 ? kEmpty : kNothing;
  if (min > max) return kNothing;
  if (part == kAnything) return kAnything;
  if (min == 1 && max == 1) return part;
  const Node& inner = nodes_[part];
  if (inner.nullable) min = 0;
  if (inner.kind == Kind::kRepeat && inner.min == 0 && inner.max == kUnbounded) return part;
  return Intern({.kind = Kind::kRepeat,
                 .nullable = min == 0,
                 .searched = inner.searched,
                 .depth = static_cast<uint16_t>(inner.depth + 1),
                 .a = part,
                 .min = min,
                 .max = max,
                 .min_length = static_cast<uint32_t>(
                     std::min<uint64_t>(uint64_t{min} * inner.min_length, 2 * kMaxGuess)),
                 .reach = static_cast<uint32_t>(
                     std::min<uint64_t>(uint64_t{min} * inner.min_length + inner.reach, kNoReach)),
                 .first = inner.first});
}

RegexId RegexPool::Multiple(uint32_t divisor, uint32_t remainder) {
  for (uint8_t digit = '0'; digit <= '9'; ++digit) {
    if (representatives_[digit] != digit) SplitClasses(ByteSet::Of(digit));
  }
  return Intern({.kind = Kind::kMultiple,
                 .nullable = remainder == 0,
                 .depth = 1,
                 .a = divisor,
                 .b = remainder,
                 .reach = kNoReach,
                 .first = kDigits});
}

RegexId RegexPool::Derivative(RegexId id, uint8_t byte) {
  if (!nodes_[id].first.Has(byte)) return kNothing;
  switch (nodes_[id].kind) {
    case Kind::kBytes:
      return kEmpty;
    case Kind::kLiteral: {
      const Node node = nodes_[id];
      if (node.b == 1) return kEmpty;
      return Intern({.kind = Kind::kLiteral,
                     .depth = 1,
                     .a = node.a + 1,
                     .b = node.b - 1,
                     .min_length = SaturatingAdd(node.b - 1, 0),
                     .reach = std::min(node.b - 1, kNoReach),
                     .first = ByteSet::Of(static_cast<uint8_t>(texts_[node.a + 1]))});
    }
    default:
      break;
  }
  const uint64_t key = uint64_t{id} * 256 + byte;
  if (const auto found = derivatives_.find(key); found != derivatives_.end()) return found->second;
  if (!TakeWork(8)) return kNothing;
  const RegexId derivative = ComputeDerivative(id, byte);
  if (limit_error_ != nullptr) return kNothing;
  derivatives_.emplace(key, derivative);
  if (derivatives_.size() > kMaxDerivatives) {
    limit_error_ = "more than 4,000,000 steps between states of regular expressions";
  }
  return derivative;
}

RegexId RegexPool::ConcatDerivative(RegexId id, uint8_t byte) {
  // Walks the chain while its heads may be empty; a loop, for chains may be long.
  std::vector<RegexId> alternatives;
  while (TakeWork(4)) {
    const Node node = nodes_[id];
    if (node.kind != Kind::kConcat) {
      alternatives.push_back(Derivative(id, byte));
      break;
    }
    alternatives.push_back(Concat(Derivative(node.a, byte), node.b));
    if (!nodes_[node.a].nullable) break;
    id = node.b;
  }
  return Or(alternatives);
}

RegexId RegexPool::ComputeDerivative(RegexId id, uint8_t byte) {
  const Node node = nodes_[id];
  switch (node.kind) {
    case Kind::kConcat:
      return ConcatDerivative(id, byte);
    case Kind::kOr:
    case Kind::kAnd: {
      std::vector<RegexId> parts(Operands(node).begin(), Operands(node).end());
      for (RegexId& part : parts) {
        if (!TakeWork(2)) return kNothing;
        part = Derivative(part, byte);
      }
      return node.kind == Kind::kOr ? Or(parts) : And(parts);
    }
    case Kind::kNot:
      return Not(Derivative(node.a, byte));
    case Kind::kRepeat: {
      const uint32_t min = node.min == 0 ? 0 : node.min - 1;
      const uint32_t max = node.max == kUnbounded ? kUnbounded : node.max - 1;
      return Concat(Derivative(node.a, byte), Repeat(node.a, min, max));
    }
    case Kind::kMultiple:
      return Multiple(node.a,
                      static_cast<uint32_t>((uint64_t{node.b} * 10 + (byte - '0')) % node.a));
    default:
      return kNothing;
  }
}

RegexId RegexPool::WithoutFarCounts(RegexId id, uint32_t horizon) {
  if (const auto found = without_counts_.find(id); found != without_counts_.end()) {
    return found->second;
  }
  const Node node = nodes_[id];
  RegexId without = id;
  switch (node.kind) {
    case Kind::kRepeat:
      if (node.max != kUnbounded && node.max > horizon) {
        without = Repeat(node.a, node.min, kUnbounded);
      }
      break;
    case Kind::kConcat: {
      // What follows is reached in this horizon only behind a few heads.
      constexpr size_t kMaxHeads = 8;
      std::vector<RegexId> parts;
      RegexId rest = id;
      while (nodes_[rest].kind == Kind::kConcat && parts.size() < kMaxHeads) {
        parts.push_back(WithoutFarCounts(nodes_[rest].a, horizon));
        rest = nodes_[rest].b;
      }
      parts.push_back(nodes_[rest].kind == Kind::kConcat ? rest : WithoutFarCounts(rest, horizon));
      without = Concat(parts);
      break;
    }
    case Kind::kAnd: {
      // A pattern and a length: the length never matters if after `horizon` more bytes it still has
      // room for whatever completes the pattern. Characters are at most as many as bytes.
      if (node.b != 2) break;
      for (const bool swapped : {false, true}) {
        const RegexId length = operands_[node.a + (swapped ? 1 : 0)];
        const RegexId pattern = operands_[node.a + (swapped ? 0 : 1)];
        const RegexId count = nodes_[length].kind == Kind::kConcat ? nodes_[length].b : length;
        const Node& counted = nodes_[count];
        const uint32_t reach = nodes_[pattern].reach;
        if (counted.kind == Kind::kRepeat && counted.min == 0 && counted.max != kUnbounded &&
            reach < kNoReach && counted.max > horizon + reach) {
          const RegexId free = Repeat(counted.a, 0, kUnbounded);
          without = And(count == length ? free : Concat(nodes_[length].a, free), pattern);
          break;
        }
      }
      break;
    }
    default:
      break;
  }
  if (limit_error_ == nullptr) without_counts_.emplace(id, without);
  return without;
}

uint32_t RegexPool::CountLimit(RegexId id) const {
  if (nodes_[id].kind == Kind::kConcat) id = nodes_[id].a;
  const Node& node = nodes_[id];
  if (node.kind == Kind::kRepeat) return node.max;
  uint32_t limit = kUnbounded;
  if (node.kind == Kind::kAnd) {
    for (RegexId operand : Operands(node)) {
      if (nodes_[operand].kind == Kind::kRepeat) limit = std::min(limit, nodes_[operand].max);
    }
  }
  return limit;
}

bool RegexPool::AppendGuess(RegexId id, std::string* text) const {
  while (true) {
    const Node& node = nodes_[id];
    if (text->size() + node.min_length > kMaxGuess) return false;
    switch (node.kind) {
      case Kind::kNothing:
        return false;
      case Kind::kEmpty:
      case Kind::kNot:
        return true;
      case Kind::kBytes:
        *text += static_cast<char>(LikelyByte(node.first));
        return true;
      case Kind::kLiteral:
        *text += std::string_view(texts_).substr(node.a, node.b);
        return true;
      case Kind::kConcat:
        if (!AppendGuess(node.a, text)) return false;
        id = node.b;
        continue;
      case Kind::kOr:
        id = *std::ranges::min_element(Operands(node), {},
                                       [&](RegexId operand) { return nodes_[operand].min_length; });
        continue;
      case Kind::kAnd:
        id = *std::ranges::max_element(Operands(node), {},
                                       [&](RegexId operand) { return nodes_[operand].min_length; });
        continue;
      case Kind::kRepeat:
        for (uint32_t i = 0; i < node.min; ++i) {
          if (!AppendGuess(node.a, text)) return false;
        }
        return true;
      case Kind::kMultiple:
        if (!node.nullable) *text += std::to_string((node.a - node.b * 10 % node.a) % node.a);
        return true;
    }
  }
}

bool RegexPool::IsLiveByGuess(RegexId id) {
  std::string guess;
  if (!AppendGuess(id, &guess)) return false;
  std::vector<RegexId> path = {id};
  for (char byte : guess) {
    if (!TakeWork(2)) return false;
    path.push_back(Derivative(path.back(), representatives_[static_cast<uint8_t>(byte)]));
    if (path.back() == kNothing || nodes_[path.back()].life == Life::kDead) return false;
  }
  if (!nodes_[path.back()].nullable) return false;
  for (RegexId live : path) nodes_[live].life = Life::kLive;
  return true;
}

bool RegexPool::IsLive(RegexId id) {
  if (!nodes_[id].searched) return id != kNothing;
  if (nodes_[id].life != Life::kUnknown) return nodes_[id].life == Life::kLive;
  if (nodes_[id].nullable || IsLiveByGuess(id)) {
    nodes_[id].life = Life::kLive;
    return true;
  }
  if (limit_error_ != nullptr) return false;
  // Depth first over derivatives, until one is known to have a text.
  struct Step {
    RegexId id;
    std::vector<RegexId> next;
  };
  std::vector<Step> path;
  std::vector<RegexId> seen_ids;
  std::unordered_set<RegexId> seen;
  const auto enter = [&](RegexId entered) {
    Step step{entered, {}};
    ByteSet done;
    const ByteSet first = nodes_[entered].first;
    first.ForEach([&](uint8_t byte) {
      const uint8_t name = representatives_[byte];
      if (done.Has(name) || !TakeWork(2)) return;
      done.Add(name);
      const RegexId derivative = Derivative(entered, name);
      if (derivative == kNothing || nodes_[derivative].life == Life::kDead) return;
      if (seen.contains(derivative)) return;
      step.next.push_back(derivative);
    });
    // Taken from the back: the shortest way to an end first.
    std::ranges::sort(step.next, std::greater(),
                      [&](RegexId next) { return nodes_[next].min_length; });
    path.push_back(std::move(step));
  };
  seen.insert(id);
  seen_ids.push_back(id);
  enter(id);
  while (!path.empty()) {
    if (limit_error_ != nullptr) return false;
    if (seen_ids.size() > kMaxLiveSteps) {
      limit_error_ = "an intersection of regular expressions with more than 200,000 states";
      return false;
    }
    if (path.back().next.empty()) {
      path.pop_back();
      continue;
    }
    const RegexId next = path.back().next.back();
    path.back().next.pop_back();
    if (!seen.insert(next).second) continue;
    seen_ids.push_back(next);
    const Node& node = nodes_[next];
    if (node.life == Life::kDead) continue;
    if (node.nullable || node.life == Life::kLive || !node.searched || IsLiveByGuess(next)) {
      nodes_[next].life = Life::kLive;
      for (const Step& step : path) nodes_[step.id].life = Life::kLive;
      return true;
    }
    enter(next);
  }
  for (RegexId dead : seen_ids) nodes_[dead].life = Life::kDead;
  return false;
}

bool RegexPool::Matches(RegexId id, std::string_view text) {
  for (char byte : text) {
    id = Derivative(id, representatives_[static_cast<uint8_t>(byte)]);
  }
  return nodes_[id].nullable;
}

size_t RegexPool::num_bytes() const {
  return nodes_.capacity() * sizeof(Node) + operands_.capacity() * sizeof(RegexId) +
         texts_.capacity() + table_.num_bytes() + literals_.num_bytes() +
         (derivatives_.size() + without_counts_.size()) * kHashedBytes;
}

}  // namespace lapidary::grammar
