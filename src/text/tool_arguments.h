// The arguments of a tool call in Gemma's notation: {key:<|"|>text<|"|>,n:1,list:[true,null]}.
#pragma once

#include <cstddef>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lapidary {

// The text of a call with its quote tokens as marks between bytes, since quotes are tokens: the
// same characters in plain text are not one.
struct ToolCallText {
  std::string text;            // Without quotes.
  std::vector<size_t> quotes;  // Offsets in `text`, ascending.
  size_t object_begin = 0;     // Where the arguments start.
  std::string name;

  void Clear() { *this = {}; }
  // As the model wrote it, quote tokens spelled out.
  std::string Spelled() const;
};

inline constexpr int kMaxArgumentDepth = 64;

// Parses the object from object_begin on. `schema` is the JSON schema of the parameters, or null.
// Unquoted values are JSON literals where they parse and the schema does not ask for text, else
// text. Nothing when the text is not an object of this notation.
std::optional<nlohmann::ordered_json> ParseToolArguments(const ToolCallText& call,
                                                         const nlohmann::ordered_json* schema);

// The parameter schema of the tool with this name in an OpenAI-style list; null if there is none.
const nlohmann::ordered_json* FindToolSchema(const nlohmann::ordered_json& tools,
                                             std::string_view name);

}  // namespace lapidary
