// Parses and renders arbitrary templates over a fixed conversation. Small limits keep each run
// short; none of them may be the reason for a crash.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "text/jinja/template.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using lapidary::jinja::Template;
  lapidary::jinja::Limits limits;
  limits.steps = 200'000;
  limits.output_bytes = 1 << 16;
  limits.made_bytes = 4 << 20;
  limits.eval_depth = 300;
  limits.range_length = 1000;
  const auto parsed = Template::Parse({reinterpret_cast<const char*>(data), size}, limits);
  if (!parsed.ok()) {
    CHECK(!parsed.error().message.empty());
    return 0;
  }
  static const auto& variables = *new std::vector<lapidary::jinja::Variable>{
      {"messages",
       nlohmann::ordered_json::parse(
           R"([{"role":"system","content":"Bé brief."},{"role":"user","content":[{"type":"text","text":" Hi "}]},
               {"role":"assistant","content":null,"tool_calls":[{"id":"a","function":{"name":"f","arguments":
               {"x":[1,2.5,"s",null,true,{"y":{}}]}}}]},{"role":"tool","tool_call_id":"a","content":"ok"}])")},
      {"tools",
       nlohmann::ordered_json::parse(
           R"([{"type":"function","function":{"name":"f","description":"d","parameters":{"type":"object",
                        "properties":{"x":{"type":"array","items":{"type":"string"}}},"required":["x"]}}}])")},
      {"add_generation_prompt", true},
      {"bos_token", "<bos>", /*trusted=*/true}};
  const auto rendered = parsed->Render(variables);
  if (!rendered.ok()) CHECK(!rendered.error().message.empty());
  return 0;
}
