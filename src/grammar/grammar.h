// A context-free grammar over regular languages of bytes and over special tokens, as a graph.
//
//   GrammarBuilder builder;
//   NodeId digit = builder.Terminal(builder.regex().Bytes(ByteSet::Range('0', '9')));
//   NodeId list = builder.Sequence({digit, builder.Repeat(builder.Sequence({comma, digit}), 0,
//   kUnbounded)}); ASSIGN_OR_RETURN(Grammar grammar, std::move(builder).Finish(list));
//
// Nodes may refer to each other in cycles (Forward, then Resolve). Counted repetitions are one
// node, whatever the counts.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "grammar/regex_pool.h"

namespace lapidary::grammar {

using NodeId = uint32_t;

inline constexpr uint32_t kUnbounded = RegexPool::kUnbounded;

struct GrammarNode {
  enum class Kind : uint8_t {
    kTerminal,  // a text of regex `a`
    kToken,     // the special token `a`, which no text can stand for
    kSequence,  // children[a, a + b), one after another
    kChoice,    // one of children[a, a + b)
    kRepeat,    // child `a`, min to max times
  };
  Kind kind;
  uint32_t a = 0;
  uint32_t b = 0;
  uint32_t min = 0;
  uint32_t max = 0;
};

// Immutable. Every node reachable from the root can be completed to some text, and no node comes
// back to itself without a byte or a token in between (no left recursion).
struct Grammar {
  RegexPool regex;
  std::vector<GrammarNode> nodes;
  std::vector<NodeId> children;
  NodeId root = 0;

  std::span<const NodeId> ChildrenOf(const GrammarNode& node) const {
    return {children.data() + node.a, node.b};
  }
  size_t num_bytes() const {
    return regex.num_bytes() + nodes.capacity() * sizeof(GrammarNode) +
           children.capacity() * sizeof(NodeId);
  }
};

class GrammarBuilder {
 public:
  static constexpr size_t kMaxNodes = 2'000'000;

  RegexPool& regex() { return regex_; }

  NodeId Terminal(RegexId regex);
  NodeId Text(std::string_view text) { return Terminal(regex_.Literal(text)); }
  NodeId Token(int32_t token);
  NodeId Sequence(std::span<const NodeId> parts);
  NodeId Sequence(std::initializer_list<NodeId> parts) {
    return Sequence(std::span(parts.begin(), parts.size()));
  }
  NodeId Choice(std::span<const NodeId> parts);
  NodeId Choice(std::initializer_list<NodeId> parts) {
    return Choice(std::span(parts.begin(), parts.size()));
  }
  NodeId Repeat(NodeId part, uint32_t min, uint32_t max);
  NodeId Optional(NodeId part) { return Choice({part, Empty()}); }
  NodeId Empty() { return Sequence(std::span<const NodeId>()); }

  // A node whose meaning Resolve() gives later, once. `name` is for messages about recursion.
  NodeId Forward(std::string name = "");
  void Resolve(NodeId forward, NodeId meaning);

  size_t num_nodes() const { return nodes_.size(); }

  // Fails when the grammar allows no text at all, is left-recursive, or passed a limit.
  Result<Grammar> Finish(NodeId root) &&;

 private:
  NodeId Add(GrammarNode node);
  std::string NameOf(NodeId id) const;

  RegexPool regex_;
  std::vector<GrammarNode> nodes_;
  std::vector<NodeId> children_;
  std::vector<std::pair<NodeId, std::string>> names_;
};

}  // namespace lapidary::grammar
