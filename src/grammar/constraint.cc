#include "grammar/constraint.h"

#include <algorithm>

#include "grammar/ebnf.h"
#include "grammar/json_value.h"
#include "grammar/regex_syntax.h"
#include "grammar/schema_grammar.h"

namespace lapidary::grammar {
namespace {

constexpr size_t kMaxSchemaBytes = size_t{4} << 20;
constexpr size_t kMaxChoices = 10'000;
constexpr size_t kMaxTools = 1'000;
// Of a grammar that nothing was matched with yet: each automaton begins with as much.
constexpr size_t kMaxGrammarBytes = size_t{64} << 20;

// Any text of ordinary tokens.
NodeId FreeText(GrammarBuilder* builder) { return builder->Terminal(RegexPool::kAnything); }

Result<NodeId> AddSchemaText(GrammarBuilder* builder, std::string_view text,
                             const ValueSyntax& syntax) {
  if (text.size() > kMaxSchemaBytes) return MakeError("the schema has more than 4 MiB");
  ASSIGN_OR_RETURN(const JsonValue schema, ParseJson(text, "the schema"));
  return AddSchema(builder, schema, syntax);
}

Result<NodeId> AddCall(GrammarBuilder* builder, const CallableTool& tool,
                       const ControlTokens& control) {
  const bool takes_none = tool.parameters.empty();
  ASSIGN_OR_RETURN(JsonValue parameters,
                   ParseJson(takes_none    ? R"({"additionalProperties": false})"
                             : tool.strict ? std::string_view(tool.parameters)
                                           : "{}",
                             fmt::format("the parameters of the tool \"{}\"", tool.name)));
  // Arguments are an object, whether or not the schema says so.
  if (!parameters.IsObject()) {
    return MakeError("the parameters of the tool \"{}\" must be a schema object", tool.name);
  }
  JsonValue type;
  type.type = JsonValue::Type::kString;
  type.text = "object";
  if (parameters.Find("type") == nullptr) {
    parameters.members.insert(parameters.members.begin(), {"type", type});
  }
  Result<NodeId> object = AddSchema(
      builder, parameters, {.kind = ValueSyntax::kGemmaCall, .quote_token = control.string_quote});
  if (!object.ok()) {
    return MakeError("the parameters of the tool \"{}\": {}", tool.name, object.error().message);
  }
  return builder->Sequence({builder->Text("call:" + tool.name), *object});
}

// A call, from its first token to its last.
Result<NodeId> AddAnyCall(GrammarBuilder* builder, const Constraint& constraint,
                          const ControlTokens& control) {
  if (control.tool_call_begin < 0 || control.tool_call_end < 0 || control.string_quote < 0) {
    return MakeError("the model's vocabulary has no tokens for tool calls");
  }
  if (constraint.tools.empty()) return MakeError("there is no tool that could be called");
  if (constraint.tools.size() > kMaxTools) return MakeError("there are more than 1,000 tools");
  std::vector<NodeId> calls;
  for (const CallableTool& tool : constraint.tools) {
    ASSIGN_OR_RETURN(const NodeId call, AddCall(builder, tool, control));
    calls.push_back(call);
  }
  return builder->Sequence({builder->Token(control.tool_call_begin), builder->Choice(calls),
                            builder->Token(control.tool_call_end)});
}

uint32_t MostCalls(const Constraint& constraint) { return constraint.many_calls ? kUnbounded : 1; }

Result<NodeId> AddToolCalls(GrammarBuilder* builder, const Constraint& constraint,
                            const ControlTokens& control) {
  ASSIGN_OR_RETURN(const NodeId call, AddAnyCall(builder, constraint, control));
  if (constraint.must_call) return builder->Repeat(call, 1, MostCalls(constraint));
  const NodeId text = FreeText(builder);
  return builder->Sequence(
      {text, builder->Repeat(builder->Sequence({call, text}), 0, MostCalls(constraint))});
}

Result<NodeId> AddStructuralTag(GrammarBuilder* builder, std::string_view text) {
  ASSIGN_OR_RETURN(const JsonValue tag, ParseJson(text, "the structural tag"));
  const JsonValue* structures = tag.Find("structures");
  const JsonValue* triggers = tag.Find("triggers");
  if (structures == nullptr || !structures->IsArray() || triggers == nullptr ||
      !triggers->IsArray() || triggers->items.empty()) {
    return MakeError("a structural tag needs the arrays \"structures\" and \"triggers\"");
  }
  RegexPool& regex = builder->regex();
  std::vector<NodeId> passages;
  for (const JsonValue& structure : structures->items) {
    const JsonValue* begin = structure.Find("begin");
    const JsonValue* schema = structure.Find("schema");
    const JsonValue* end = structure.Find("end");
    if (begin == nullptr || !begin->IsString() || schema == nullptr || end == nullptr ||
        !end->IsString()) {
      return MakeError("a structure of a structural tag needs \"begin\", \"schema\" and \"end\"");
    }
    const bool is_triggered = std::ranges::any_of(triggers->items, [&](const JsonValue& trigger) {
      return trigger.IsString() && !trigger.text.empty() && begin->text.starts_with(trigger.text);
    });
    if (!is_triggered) {
      return MakeError("the structure that begins \"{}\" begins with no trigger", begin->text);
    }
    ASSIGN_OR_RETURN(const NodeId value, AddSchema(builder, *schema, {}));
    passages.push_back(
        builder->Sequence({builder->Text(begin->text), value, builder->Text(end->text)}));
  }
  // Free text holds no trigger: one that appears begins a passage.
  std::vector<RegexId> triggered;
  for (const JsonValue& trigger : triggers->items) {
    triggered.push_back(regex.Concat(
        RegexPool::kAnything, regex.Concat(regex.Literal(trigger.text), RegexPool::kAnything)));
  }
  const NodeId free_text = builder->Terminal(regex.Not(regex.Or(triggered)));
  return builder->Sequence(
      {free_text,
       builder->Repeat(builder->Sequence({builder->Choice(passages), free_text}), 0, kUnbounded)});
}

Result<NodeId> AddAnswer(GrammarBuilder* builder, const Constraint& constraint,
                         const ControlTokens& control) {
  switch (constraint.kind) {
    case Constraint::Kind::kJsonObject:
      return AddSchemaText(builder, R"({"type": "object"})", {});
    case Constraint::Kind::kJsonSchema:
      return AddSchemaText(builder, constraint.text, {});
    case Constraint::Kind::kRegex: {
      ASSIGN_OR_RETURN(const RegexId regex, ParseRegex(&builder->regex(), constraint.text,
                                                       RegexScope::kWhole, TextEncoding::kUtf8));
      return builder->Terminal(regex);
    }
    case Constraint::Kind::kChoice: {
      if (constraint.choices.empty()) return MakeError("there is nothing to choose from");
      if (constraint.choices.size() > kMaxChoices) {
        return MakeError("there are more than 10,000 choices");
      }
      std::vector<RegexId> texts;
      for (const std::string& choice : constraint.choices) {
        texts.push_back(builder->regex().Literal(choice));
      }
      return builder->Terminal(builder->regex().Or(texts));
    }
    case Constraint::Kind::kGrammar:
      return AddEbnf(builder, constraint.text);
    case Constraint::Kind::kStructuralTag:
      return AddStructuralTag(builder, constraint.text);
    case Constraint::Kind::kToolCalls:
      return AddToolCalls(builder, constraint, control);
    case Constraint::Kind::kAnything:
      break;  // needs no grammar
  }
  return MakeError("an unknown kind of constraint");
}

TokenRules RulesFor(const TokenVocabulary& vocabulary, TokenRules rules) {
  const auto is_unknown = [&](int32_t token) {
    return token < 0 || token >= vocabulary.num_tokens();
  };
  std::erase_if(rules.late_tokens, is_unknown);
  std::erase_if(rules.banned_runs, [&](const std::vector<int32_t>& run) {
    return run.empty() || std::ranges::any_of(run, is_unknown);
  });
  return rules;
}

// The grammar of the whole answer, thoughts included.
Result<Grammar> MakeGrammar(const Constraint& constraint, const ControlTokens& control,
                            bool has_thoughts, Work* work) {
  GrammarBuilder builder;
  builder.regex().set_work(work);
  ASSIGN_OR_RETURN(NodeId root, AddAnswer(&builder, constraint, control));
  if (constraint.kind != Constraint::Kind::kToolCalls && !constraint.tools.empty()) {
    ASSIGN_OR_RETURN(const NodeId call, AddAnyCall(&builder, constraint, control));
    root = builder.Choice({root, builder.Repeat(call, 1, MostCalls(constraint))});
  }
  if (constraint.thought != Constraint::Thought::kNone && has_thoughts) {
    NodeId thought = builder.Sequence({FreeText(&builder), builder.Token(control.thought_end)});
    if (constraint.thought == Constraint::Thought::kMayOpen) {
      thought = builder.Optional(builder.Sequence({builder.Token(control.thought_begin), thought}));
    }
    root = builder.Sequence({thought, root});
  }
  ASSIGN_OR_RETURN(Grammar grammar, std::move(builder).Finish(root));
  grammar.regex.set_work(nullptr);
  if (grammar.num_bytes() > kMaxGrammarBytes) {
    return MakeError("the grammar needs more than 64 MB");
  }
  return grammar;
}

}  // namespace

Result<std::shared_ptr<const CompiledGrammar>> Compile(const Constraint& constraint,
                                                       const CompileContext& context, Work* work) {
  const ControlTokens& control = context.control;
  const bool has_thoughts = control.thought_begin >= 0 && control.thought_end >= 0;
  ThoughtLimit limit;
  if (has_thoughts) {
    limit = {.begin_token = control.thought_begin,
             .end_token = control.thought_end,
             .is_open = constraint.thought == Constraint::Thought::kIsOpen,
             .max_tokens = constraint.max_thought_tokens};
  }
  std::optional<Grammar> grammar;
  if (constraint.kind != Constraint::Kind::kAnything) {
    Result<Grammar> made = MakeGrammar(constraint, control, has_thoughts, work);
    if (!made.ok() && work != nullptr && work->is_empty()) {
      return Error{"compiling the form of the answer takes longer", ErrorKind::kBusy};
    }
    if (!made.ok()) return made.error();
    grammar = std::move(*made);
  }
  return std::make_shared<const CompiledGrammar>(
      std::move(grammar), context.vocabulary, context.stop_tokens, limit,
      RulesFor(*context.vocabulary, constraint.rules), context.spell, context.memory);
}

}  // namespace lapidary::grammar
