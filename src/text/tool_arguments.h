// The arguments of a tool call in Gemma's notation, {key:<|"|>text<|"|>,n:1,list:[true,null]}, to
// JSON while they are written.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"

namespace lapidary {

// The text of a call with its quote tokens as marks between bytes, since quotes are tokens: the
// same characters in plain text are not one.
struct ToolCallText {
  std::string text;            // Without quotes.
  std::vector<size_t> quotes;  // Offsets in `text`, ascending.

  void Clear() { *this = {}; }
  // With plain quotes for quote tokens.
  std::string Readable() const;
};

inline constexpr int kMaxArgumentDepth = 64;

// One object of arguments, from its first brace to the one that closes it. Unquoted values are JSON
// literals where they parse and the schema does not ask for text, else text.
class ToolArgumentWriter {
 public:
  // `schema` is the JSON schema of the parameters, or null; it must outlive this.
  explicit ToolArgumentWriter(const nlohmann::ordered_json* schema) : value_schema_(schema) {}

  // The next character, or a quote token: appends the JSON that is certain now. All of it together
  // is one object, without blanks. False if the text is not of this notation; then nothing more may
  // be pushed. Nor may anything behind the object.
  bool Push(char c, std::string* json);
  bool PushQuote(std::string* json);

  bool is_done() const { return state_ == State::kDone; }

 private:
  enum class State {
    kRoot,
    kFirstKey,  // or the end of the object
    kKey,
    kBareKey,
    kQuotedKey,
    kColon,
    kFirstItem,  // or the end of the array
    kValue,
    kBareValue,
    kQuotedValue,
    kNext,  // a comma or the end
    kDone,
  };
  struct Container {
    bool is_object = false;
    const nlohmann::ordered_json* schema = nullptr;
  };

  bool Open(bool is_object, std::string* json);
  bool Close(bool is_object, std::string* json);
  bool PushValue(char c, std::string* json);
  void WriteKey(const std::string& key, std::string* json);
  // False if there is none.
  bool WriteBareKey(std::string* json);
  bool WriteBareValue(std::string* json);

  State state_ = State::kRoot;
  std::vector<Container> open_;
  const nlohmann::ordered_json* value_schema_;  // of the value that is next
  std::string held_;                            // a key or an unquoted value so far
};

// The parameter schema of the tool with this name in an OpenAI-style list; null if there is none.
const nlohmann::ordered_json* FindToolSchema(const nlohmann::ordered_json& tools,
                                             std::string_view name);

}  // namespace lapidary
