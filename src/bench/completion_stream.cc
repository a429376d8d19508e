#include "bench/completion_stream.h"

#include "base/json_fields.h"

namespace lapidary::bench {
namespace {

constexpr size_t kMaxMessageBytes = 300;

const Json* Find(const Json& json, const char* name) {
  if (!json.is_object()) return nullptr;
  const auto it = json.find(name);
  return it == json.end() || it->is_null() ? nullptr : &*it;
}

std::string_view Text(const Json& json, const char* name) {
  const Json* text = Find(json, name);
  return text != nullptr && text->is_string()
             ? std::string_view(text->get_ref<const std::string&>())
             : std::string_view();
}

std::optional<int64_t> Count(const Json& json, const char* name) {
  const Json* count = Find(json, name);
  if (count == nullptr || !count->is_number_integer()) return std::nullopt;
  return count->get<int64_t>();
}

// Some servers send the bytes of half a character as they are, which is no JSON. Their tokens count
// all the same: only the text is spoilt.
Result<Json> ParseEvent(std::string_view data) {
  Result<Json> json = ParseJson(data, "an event of the server");
  if (json.ok()) return json;
  std::string ascii(data);
  for (char& c : ascii) {
    if (static_cast<unsigned char>(c) >= 0x80) c = '?';
  }
  Result<Json> repaired = ParseJson(ascii, "an event of the server");
  return repaired.ok() ? repaired : json;
}

// What a choice brings: text of any kind, and whether it is a mere announcement of the role.
struct ChoiceContent {
  std::string text;
  bool has_tool_calls = false;
  bool is_role = false;
};

ChoiceContent ContentOf(const Json& choice) {
  ChoiceContent content;
  content.text = Text(choice, "text");
  const Json* delta = Find(choice, "delta");
  if (delta == nullptr) return content;
  // Servers that send the thought under both names send it twice in one delta.
  const std::string_view reasoning = Text(*delta, "reasoning_content");
  content.text += reasoning.empty() ? Text(*delta, "reasoning") : reasoning;
  content.text += Text(*delta, "content");
  content.has_tool_calls = Find(*delta, "tool_calls") != nullptr;
  content.is_role = Find(*delta, "role") != nullptr;
  return content;
}

}  // namespace

std::string ErrorMessage(std::string_view body) {
  const Result<Json> json = ParseJson(body, "body");
  if (json.ok()) {
    const Json* error = Find(*json, "error");
    if (error != nullptr && error->is_string()) {
      return ShortUtf8(error->get_ref<const std::string&>(), kMaxMessageBytes);
    }
    const std::string_view message = Text(error != nullptr ? *error : *json, "message");
    if (!message.empty()) return ShortUtf8(message, kMaxMessageBytes);
  }
  return ShortUtf8(body, kMaxMessageBytes);
}

void CompletionStream::OnTokens(double now, std::optional<int64_t> num_tokens) {
  if (num_chunks_++ == 0) {
    first_token_at_ = now;
  } else {
    const int64_t count = num_tokens.value_or(1);
    if (count <= 0) return;  // text of tokens that were counted before
    itls_.insert(itls_.end(), count, (now - last_token_at_) / static_cast<double>(count));
  }
  last_token_at_ = now;
}

Status CompletionStream::OnEvent(std::string_view data, double now) {
  if (data == "[DONE]") {
    is_done_ = true;
    return {};
  }
  ASSIGN_OR_RETURN(const Json json, ParseEvent(data));
  if (Find(json, "error") != nullptr) return MakeError("{}", ErrorMessage(data));
  const Json* usage = Find(json, "usage");
  const int64_t counted_before = output_tokens_.value_or(0);
  if (usage != nullptr) {
    if (const auto count = Count(*usage, "prompt_tokens")) prompt_tokens_ = count;
    if (const auto count = Count(*usage, "completion_tokens")) output_tokens_ = count;
  }
  const Json* choices = Find(json, "choices");
  if (choices == nullptr || !choices->is_array() || choices->empty()) return {};
  const Json& choice = choices->front();
  const ChoiceContent content = ContentOf(choice);
  const bool is_end = Find(choice, "finish_reason") != nullptr;
  is_finished_ |= is_end;
  text_ += content.text;
  end_at_ = now;
  if (content.text.empty() && !content.has_tool_calls) {
    if (is_end) empty_end_at_ = now;
    if (is_end || content.is_role) return {};
  }
  if (num_chunks_ == 0) counts_in_chunks_ = usage != nullptr && !is_end;
  std::optional<int64_t> num_tokens;
  if (counts_in_chunks_ && usage != nullptr) num_tokens = *output_tokens_ - counted_before;
  OnTokens(now, num_tokens);
  return {};
}

Status CompletionStream::Finish(RequestRecord* record) const {
  if (!is_done_ && !is_finished_) return MakeError("the stream ended before the answer did");
  if (num_chunks_ == 0 && !empty_end_at_) return MakeError("the answer held no token");
  CompletionStream stream = *this;
  // An end without text is a stop token unless all tokens are accounted for.
  const int64_t num_seen = 1 + static_cast<int64_t>(itls_.size());
  if (empty_end_at_ && (num_chunks_ == 0 || output_tokens_.value_or(0) > num_seen)) {
    stream.OnTokens(*empty_end_at_, std::nullopt);
  }
  record->ttft = stream.first_token_at_;
  record->latency = end_at_;
  record->itls = std::move(stream.itls_);
  record->output_tokens = output_tokens_.value_or(stream.num_chunks_);
  record->prompt_tokens = prompt_tokens_.value_or(record->prompt_tokens);
  record->text = std::move(stream.text_);
  return {};
}

}  // namespace lapidary::bench
