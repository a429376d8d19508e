// An answer as a row of items, each complete before the next one begins: thoughts, text, calls.
// What the APIs with typed output share.
#pragma once

#include <optional>
#include <string>

#include "server/choice_stream.h"

namespace lapidary {

class ItemStream {
 public:
  enum class Kind { kNone, kReasoning, kText, kToolCall };

  struct Item {
    Kind kind = Kind::kNone;
    int index = -1;
    std::string id;
    std::string text;  // so far; of a call, its arguments
    std::string call_id;
    std::string call_name;
  };

  virtual ~ItemStream() = default;

  // An item before the first was cut within this call, which is an item of its own here.
  void CutCall(const ChoiceDelta::ToolCall& call);
  void Push(const ChoiceDelta& delta);
  // Ends the open item.
  void Finish();

  int num_items() const { return item_.index + 1; }

 protected:
  virtual std::string MakeId(Kind kind) = 0;
  virtual void OnBegin(const Item& item) = 0;
  virtual void OnText(const Item& item, const std::string& text) = 0;
  virtual void OnEnd(const Item& item) = 0;

 private:
  // The open item if it is of this kind, else a new one.
  void Open(Kind kind);
  void OpenCall(const ChoiceDelta::ToolCall& call);
  void Add(const std::string& text);

  Item item_;
  std::optional<ChoiceDelta::ToolCall> cut_call_;
};

}  // namespace lapidary
