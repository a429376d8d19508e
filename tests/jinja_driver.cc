// Renders a batch of templates: one JSON object {"template", "variables"} per line in, one
// {"output"} or {"error"} per line out. tools/template_fuzz.py compares it with Python's jinja2.
#include <iostream>
#include <string>

#include "base/json.h"
#include "text/chat_template.h"
#include "text/jinja/template.h"

int main() {
  using Json = nlohmann::ordered_json;
  std::ios::sync_with_stdio(false);
  for (std::string line; std::getline(std::cin, line);) {
    const Json request = Json::parse(line);
    std::vector<lapidary::jinja::Variable> variables;
    for (const auto& [name, value] : request["variables"].items())
      variables.push_back({name, value});
    Json reply;
    const auto parsed = lapidary::jinja::Template::Parse(request["template"].get<std::string>());
    if (!parsed.ok()) {
      reply["error"] = parsed.error().message;
    } else if (const auto rendered = parsed->Render(variables); rendered.ok()) {
      reply["output"] = lapidary::JoinSegments(*rendered);
    } else {
      reply["error"] = rendered.error().message;
    }
    std::cout << reply.dump() << '\n';
  }
}
