#include "grammar/grammar.h"

#include <algorithm>

namespace lapidary::grammar {
namespace {

using Kind = GrammarNode::Kind;

// Which nodes have a property that spreads from children to parents: a terminal by `leaf`, a
// sequence when all children have it, a choice when one has, a repetition when it may be left out
// or its child has it.
template <typename Leaf>
std::vector<bool> Spread(const Grammar& grammar, Leaf leaf) {
  const size_t num_nodes = grammar.nodes.size();
  std::vector<uint32_t> missing(num_nodes, 1);
  std::vector<uint32_t> parent_begin(num_nodes + 1, 0);
  const auto for_each_child = [&](const GrammarNode& node, auto visit) {
    if (node.kind == Kind::kRepeat) visit(node.a);
    if (node.kind == Kind::kSequence || node.kind == Kind::kChoice) {
      for (NodeId child : grammar.ChildrenOf(node)) visit(child);
    }
  };
  for (const GrammarNode& node : grammar.nodes) {
    for_each_child(node, [&](NodeId child) { ++parent_begin[child + 1]; });
  }
  for (size_t i = 0; i < num_nodes; ++i) parent_begin[i + 1] += parent_begin[i];
  std::vector<NodeId> parents(parent_begin.back());
  std::vector<uint32_t> next(parent_begin.begin(), parent_begin.end() - 1);
  std::vector<NodeId> work;
  std::vector<bool> has(num_nodes, false);
  const auto mark = [&](NodeId id) {
    if (has[id]) return;
    has[id] = true;
    work.push_back(id);
  };
  for (NodeId id = 0; id < num_nodes; ++id) {
    const GrammarNode& node = grammar.nodes[id];
    for_each_child(node, [&](NodeId child) { parents[next[child]++] = id; });
    if (node.kind == Kind::kSequence) missing[id] = node.b;
    const bool is_leaf = node.kind == Kind::kTerminal || node.kind == Kind::kToken;
    if (is_leaf ? leaf(node) : node.kind == Kind::kRepeat ? node.min == 0 : missing[id] == 0) {
      mark(id);
    }
  }
  while (!work.empty()) {
    const NodeId id = work.back();
    work.pop_back();
    for (uint32_t i = parent_begin[id]; i < parent_begin[id + 1]; ++i) {
      if (--missing[parents[i]] == 0) mark(parents[i]);
    }
  }
  return has;
}

// Removes what cannot be completed; children that stay keep their order.
void Prune(Grammar* grammar, const std::vector<bool>& productive) {
  for (GrammarNode& node : grammar->nodes) {
    if (node.kind == Kind::kChoice) {
      uint32_t num_kept = 0;
      for (uint32_t i = 0; i < node.b; ++i) {
        const NodeId child = grammar->children[node.a + i];
        if (productive[child]) grammar->children[node.a + num_kept++] = child;
      }
      node.b = num_kept;
    } else if (node.kind == Kind::kRepeat && !productive[node.a]) {
      node = {.kind = Kind::kSequence};
    }
  }
}

// A node that reaches itself before any byte or token, or none (then num_nodes).
NodeId FindLeftRecursion(const Grammar& grammar, const std::vector<bool>& nullable) {
  enum : uint8_t { kNew, kOpen, kDone };
  std::vector<uint8_t> state(grammar.nodes.size(), kNew);
  struct Visit {
    NodeId id;
    uint32_t next;
  };
  std::vector<Visit> path;
  for (NodeId start = 0; start < grammar.nodes.size(); ++start) {
    if (state[start] != kNew) continue;
    path.push_back({start, 0});
    state[start] = kOpen;
    while (!path.empty()) {
      auto& [id, next] = path.back();
      const GrammarNode& node = grammar.nodes[id];
      NodeId child = 0;
      bool has_child = false;
      if (node.kind == Kind::kRepeat && next == 0) {
        child = node.a;
        has_child = true;
      } else if (node.kind == Kind::kChoice && next < node.b) {
        child = grammar.children[node.a + next];
        has_child = true;
      } else if (node.kind == Kind::kSequence && next < node.b &&
                 (next == 0 || nullable[grammar.children[node.a + next - 1]])) {
        child = grammar.children[node.a + next];
        has_child = true;
      }
      if (!has_child) {
        state[id] = kDone;
        path.pop_back();
        continue;
      }
      ++next;
      if (state[child] == kOpen) return child;
      if (state[child] == kNew) {
        state[child] = kOpen;
        path.push_back({child, 0});
      }
    }
  }
  return static_cast<NodeId>(grammar.nodes.size());
}

}  // namespace

NodeId GrammarBuilder::Add(GrammarNode node) {
  if (nodes_.size() > kMaxNodes) return 0;  // Finish() fails
  nodes_.push_back(node);
  return static_cast<NodeId>(nodes_.size() - 1);
}

NodeId GrammarBuilder::Terminal(RegexId regex) {
  return Add({.kind = Kind::kTerminal, .a = regex});
}

NodeId GrammarBuilder::Token(int32_t token) {
  return Add({.kind = Kind::kToken, .a = static_cast<uint32_t>(token)});
}

NodeId GrammarBuilder::Sequence(std::span<const NodeId> parts) {
  if (parts.size() == 1) return parts[0];
  const uint32_t begin = static_cast<uint32_t>(children_.size());
  children_.insert(children_.end(), parts.begin(), parts.end());
  return Add({.kind = Kind::kSequence, .a = begin, .b = static_cast<uint32_t>(parts.size())});
}

NodeId GrammarBuilder::Choice(std::span<const NodeId> parts) {
  if (parts.size() == 1) return parts[0];
  const uint32_t begin = static_cast<uint32_t>(children_.size());
  children_.insert(children_.end(), parts.begin(), parts.end());
  return Add({.kind = Kind::kChoice, .a = begin, .b = static_cast<uint32_t>(parts.size())});
}

NodeId GrammarBuilder::Repeat(NodeId part, uint32_t min, uint32_t max) {
  if (min > max) return Choice(std::span<const NodeId>());  // no text
  if (max == 0) return Empty();
  if (min == 1 && max == 1) return part;
  return Add({.kind = Kind::kRepeat, .a = part, .min = min, .max = max});
}

NodeId GrammarBuilder::Forward(std::string name) {
  const NodeId id = Add({.kind = Kind::kChoice});
  if (!name.empty()) names_.emplace_back(id, std::move(name));
  return id;
}

void GrammarBuilder::Resolve(NodeId forward, NodeId meaning) {
  CHECK(nodes_[forward].kind == Kind::kChoice && nodes_[forward].b == 0);
  nodes_[forward].a = static_cast<uint32_t>(children_.size());
  nodes_[forward].b = 1;
  children_.push_back(meaning);
}

std::string GrammarBuilder::NameOf(NodeId id) const {
  const auto found = std::ranges::find(names_, id, &std::pair<NodeId, std::string>::first);
  return found == names_.end() ? "a rule" : fmt::format("rule \"{}\"", found->second);
}

Result<Grammar> GrammarBuilder::Finish(NodeId root) && {
  if (nodes_.size() > kMaxNodes) return MakeError("the grammar has more than 2,000,000 nodes");
  Grammar grammar;
  grammar.regex = std::move(regex_);
  grammar.nodes = std::move(nodes_);
  grammar.children = std::move(children_);
  grammar.root = root;
  RegexPool& regex = grammar.regex;
  const std::vector<bool> productive = Spread(grammar, [&](const GrammarNode& node) {
    return node.kind == Kind::kToken || regex.IsLive(node.a);
  });
  if (regex.limit_error() != nullptr) return MakeError("the grammar needs {}", regex.limit_error());
  if (!productive[root]) return MakeError("no text at all fits the grammar");
  Prune(&grammar, productive);
  const std::vector<bool> nullable = Spread(grammar, [&](const GrammarNode& node) {
    return node.kind == Kind::kTerminal && regex.IsNullable(node.a);
  });
  for (GrammarNode& node : grammar.nodes) {
    if (node.kind == Kind::kRepeat && nullable[node.a]) node.min = 0;
  }
  const NodeId recursive = FindLeftRecursion(grammar, nullable);
  if (recursive != grammar.nodes.size()) {
    return MakeError("{} of the grammar is left-recursive: it begins with itself",
                     NameOf(recursive));
  }
  return grammar;
}

}  // namespace lapidary::grammar
