#include "server/constraint_request.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

namespace lapidary {
namespace {

using grammar::Constraint;
using Kind = Constraint::Kind;

class Reader {
 public:
  Reader(RequestFields* fields, std::optional<Constraint>* constraint, std::string* field)
      : fields_(*fields), constraint_(*constraint), field_(*field) {}

  void ReadAll() {
    ReadResponseFormat();
    if (const OrderedJson* outputs = fields_.Find("structured_outputs")) {
      if (!outputs->is_object()) {
        fields_.Fail(BadRequest("structured_outputs", "'structured_outputs' must be an object"));
        return;
      }
      RequestFields inner(*outputs, "structured_outputs.");
      ReadForms(&inner, "structured_outputs.", "");
      if (inner.Bool("json_object", false)) Set("structured_outputs", {.kind = Kind::kJsonObject});
      if (const OrderedJson* tag = inner.Find("structural_tag")) {
        Set("structured_outputs", {.kind = Kind::kStructuralTag, .text = TextOf(*tag)});
      }
      inner.Accept({"disable_fallback", "disable_any_whitespace", "disable_additional_properties"});
      if (inner.status()) fields_.Fail(*inner.status());
      if (const std::string unknown = inner.UnknownFields(); !unknown.empty()) {
        fields_.Fail(BadRequest("structured_outputs",
                                "'structured_outputs' has fields that are not supported: {}",
                                unknown));
      }
    }
    ReadForms(&fields_, "", "guided_");
    if (const OrderedJson* schema = fields_.Find("json_schema")) {
      Set("json_schema", {.kind = Kind::kJsonSchema, .text = TextOf(*schema)});
    }
    if (const OrderedJson* grammar = fields_.Find("grammar")) {
      SetText("grammar", *grammar, Kind::kGrammar);
    }
  }

 private:
  // A JSON text that may also come as a string.
  static std::string TextOf(const OrderedJson& json) {
    return json.is_string() ? json.get<std::string>() : DumpJson(json);
  }

  void Set(const std::string& name, Constraint constraint) {
    if (constraint_) {
      fields_.Fail(BadRequest(name, "'{}' and another field constrain the answer: give one", name));
      return;
    }
    constraint_ = std::move(constraint);
    field_ = name;
  }

  void SetText(const std::string& name, const OrderedJson& json, Kind kind) {
    if (!json.is_string()) {
      fields_.Fail(BadRequest(name, "'{}' must be a string", name));
      return;
    }
    Set(name, {.kind = kind, .text = json.get<std::string>()});
  }

  // json, regex, choice and grammar, under names that begin with `prefix`.
  void ReadForms(RequestFields* fields, const std::string& where, const std::string& prefix) {
    if (const OrderedJson* schema = fields->Find(prefix + "json")) {
      Set(where + prefix + "json", {.kind = Kind::kJsonSchema, .text = TextOf(*schema)});
    }
    if (const OrderedJson* regex = fields->Find(prefix + "regex")) {
      SetText(where + prefix + "regex", *regex, Kind::kRegex);
    }
    if (const OrderedJson* grammar = fields->Find(prefix + "grammar")) {
      SetText(where + prefix + "grammar", *grammar, Kind::kGrammar);
    }
    if (const OrderedJson* choices = fields->Find(prefix + "choice")) {
      Constraint constraint{.kind = Kind::kChoice};
      const bool are_texts =
          choices->is_array() && !choices->empty() &&
          std::all_of(choices->begin(), choices->end(),
                      [](const OrderedJson& choice) { return choice.is_string(); });
      if (!are_texts) {
        const std::string name = where + prefix + "choice";
        fields_.Fail(BadRequest(name, "'{}' must be a list of strings", name));
        return;
      }
      for (const OrderedJson& choice : *choices) {
        constraint.choices.push_back(choice.get<std::string>());
      }
      Set(where + prefix + "choice", std::move(constraint));
    }
  }

  void ReadResponseFormat() {
    const OrderedJson* format = fields_.Find("response_format");
    if (format == nullptr) return;
    const auto fail = [&](const char* message) {
      fields_.Fail(BadRequest("response_format", "{}", message));
    };
    if (!format->is_object() || !format->contains("type") || !(*format)["type"].is_string()) {
      return fail("'response_format' must be an object with a type");
    }
    const std::string type = (*format)["type"].get<std::string>();
    if (type == "text") return;
    if (type == "json_object") {
      // llama.cpp's form carries a schema here.
      if (format->contains("schema")) {
        return Set("response_format",
                   {.kind = Kind::kJsonSchema, .text = TextOf((*format)["schema"])});
      }
      return Set("response_format", {.kind = Kind::kJsonObject});
    }
    if (type == "structural_tag") {
      return Set("response_format", {.kind = Kind::kStructuralTag, .text = DumpJson(*format)});
    }
    if (type != "json_schema") {
      return fail(
          "'response_format.type' must be \"text\", \"json_object\", \"json_schema\" or "
          "\"structural_tag\"");
    }
    if (!format->contains("json_schema") || !(*format)["json_schema"].is_object() ||
        !(*format)["json_schema"].contains("schema")) {
      return fail("'response_format.json_schema' must be an object with a \"schema\"");
    }
    Set("response_format",
        {.kind = Kind::kJsonSchema, .text = TextOf((*format)["json_schema"]["schema"])});
  }

  RequestFields& fields_;
  std::optional<Constraint>& constraint_;
  std::string& field_;
};

// The name in {"type": "function", "function": {"name": ...}}; empty if it is none.
std::string FunctionName(const OrderedJson& json) {
  if (!json.is_object() || !json.contains("function") || !json["function"].is_object() ||
      !json["function"].contains("name") || !json["function"]["name"].is_string()) {
    return "";
  }
  return json["function"]["name"].get<std::string>();
}

}  // namespace

void ReadConstraint(RequestFields* fields, std::optional<Constraint>* constraint,
                    std::string* field) {
  Reader(fields, constraint, field).ReadAll();
}

void ReadThinkingBudget(RequestFields* fields, int32_t* thinking_token_budget) {
  int64_t budget = fields->Int("thinking_token_budget", -1, -1, INT32_MAX);
  const auto read_other = [&](const char* object, const char* name) {
    const OrderedJson* holder = fields->Find(object);
    if (budget >= 0 || holder == nullptr || !holder->is_object()) return;
    RequestFields inner(*holder, std::string(object) + ".");
    budget = inner.Int(name, -1, 0, INT32_MAX);
    if (inner.status()) fields->Fail(*inner.status());
  };
  read_other("thinking", "budget_tokens");
  read_other("reasoning", "max_tokens");
  *thinking_token_budget = static_cast<int32_t>(budget);
}

void ReadToolChoice(RequestFields* fields, const ToolRules& rules,
                    std::optional<OrderedJson>* tools, ToolCallRules* read) {
  const OrderedJson* choice = fields->Find("tool_choice");
  const auto fail = [&](const std::string& message) {
    fields->Fail(BadRequest("tool_choice", "{}", message));
  };
  ToolCallRules calls;
  calls.many_calls = !rules.single_call;
  std::vector<std::string> names;  // empty: all
  if (choice == nullptr || *choice == "auto") {
  } else if (*choice == "none") {
    tools->reset();
    return;
  } else if (*choice == "required") {
    calls.must_call = true;
  } else if (choice->is_object() && choice->contains("type") && (*choice)["type"] == "function") {
    calls.must_call = true;
    calls.many_calls = false;
    names.push_back(FunctionName(*choice));
  } else if (choice->is_object() && choice->contains("type") &&
             (*choice)["type"] == "allowed_tools" && choice->contains("allowed_tools") &&
             (*choice)["allowed_tools"].is_object()) {
    const OrderedJson& allowed = (*choice)["allowed_tools"];
    calls.must_call = allowed.contains("mode") && allowed["mode"] == "required";
    if (!allowed.contains("tools") || !allowed["tools"].is_array() || allowed["tools"].empty()) {
      return fail("'tool_choice.allowed_tools' needs a list of tools");
    }
    for (const OrderedJson& tool : allowed["tools"]) names.push_back(FunctionName(tool));
  } else {
    return fail(
        "'tool_choice' must be \"auto\", \"none\", \"required\", a function or allowed_tools");
  }
  if (!*tools) {
    if (calls.must_call) fail("'tool_choice' demands a call, but there are no 'tools'");
    return;
  }
  bool is_any_strict = rules.all_strict;
  for (const OrderedJson& tool : **tools) {
    const OrderedJson& function = tool["function"];
    const std::string name = function["name"].get<std::string>();
    if (!names.empty() && std::find(names.begin(), names.end(), name) == names.end()) continue;
    const bool is_strict =
        rules.all_strict || (function.contains("strict") && function["strict"] == true);
    is_any_strict |= is_strict;
    const bool has_parameters =
        function.contains("parameters") && function["parameters"].is_object();
    calls.tools.push_back({.name = name,
                           .parameters = has_parameters ? DumpJson(function["parameters"]) : "",
                           .strict = is_strict || calls.must_call});
  }
  for (const std::string& name : names) {
    const bool is_there = std::any_of(calls.tools.begin(), calls.tools.end(),
                                      [&](const auto& tool) { return tool.name == name; });
    if (!is_there) return fail("'tool_choice' names a function that is not in 'tools'");
  }
  calls.has_form = is_any_strict || !names.empty();
  *read = std::move(calls);
}

}  // namespace lapidary
