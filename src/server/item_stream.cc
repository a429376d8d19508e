#include "server/item_stream.h"

#include <utility>

namespace lapidary {

void ItemStream::Finish() {
  if (item_.kind == Kind::kNone) return;
  OnEnd(item_);
  item_.kind = Kind::kNone;
}

void ItemStream::Open(Kind kind) {
  if (item_.kind == kind && kind != Kind::kToolCall) return;
  Finish();
  const int index = item_.index + 1;
  item_ = {};
  item_.kind = kind;
  item_.index = index;
  item_.id = MakeId(kind);
}

void ItemStream::Add(const std::string& text) {
  item_.text += text;
  OnText(item_, text);
}

void ItemStream::OpenCall(const ChoiceDelta::ToolCall& call) {
  Open(Kind::kToolCall);
  item_.call_id = call.id;
  item_.call_name = call.name;
  OnBegin(item_);
}

void ItemStream::CutCall(const ChoiceDelta::ToolCall& call) { cut_call_ = call; }

void ItemStream::Push(const ChoiceDelta& delta) {
  const auto add_text = [&](Kind kind, const std::string& text) {
    if (text.empty()) return;
    const bool is_new = item_.kind != kind;
    Open(kind);
    if (is_new) OnBegin(item_);
    Add(text);
  };
  // What goes on with an open call was written before anything else.
  for (const ChoiceDelta::ToolCall& call : delta.tool_calls) {
    if (call.is_begin()) continue;
    if (cut_call_) OpenCall(*std::exchange(cut_call_, std::nullopt));
    Add(call.arguments);
  }
  add_text(Kind::kReasoning, delta.reasoning);
  add_text(Kind::kText, delta.content);
  for (const ChoiceDelta::ToolCall& call : delta.tool_calls) {
    if (!call.is_begin()) continue;
    OpenCall(call);
    if (!call.arguments.empty()) Add(call.arguments);
  }
}

}  // namespace lapidary
