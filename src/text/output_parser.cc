#include "text/output_parser.h"

#include <algorithm>

namespace lapidary {
namespace {

using Json = nlohmann::ordered_json;
using Kind = OutputEvent::Kind;

constexpr std::string_view kLabelText = "thought\n";
constexpr std::string_view kCallPrefix = "call:";
constexpr size_t kMaxNameBytes = 256;

bool IsBlank(char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; }

}  // namespace

OutputParser::OutputParser(OutputParserOptions options)
    : options_(std::move(options)), state_(State::kContent) {
  if (options_.starts_in_thought) {
    state_ = State::kThought;
  } else if (options_.accept_bare_thought) {
    state_ = State::kStart;
  }
}

void OutputParser::Emit(Kind kind, std::string_view text, int call_index) {
  const bool is_text = kind == Kind::kContent || kind == Kind::kReasoning;
  if (is_text && text.empty()) return;
  const bool joins = is_text || kind == Kind::kToolCallArguments;
  if (joins && !events_->empty() && events_->back().kind == kind) {
    events_->back().text += text;
  } else {
    events_->push_back({kind, std::string(text), call_index});
  }
}

// Holds one trailing newline back: the template writes its own before <channel|>.
void OutputParser::EmitReasoning(std::string_view text) {
  if (text.empty()) return;
  if (held_newline_) Emit(Kind::kReasoning, "\n");
  held_newline_ = text.back() == '\n';
  if (held_newline_) text.remove_suffix(1);
  Emit(Kind::kReasoning, text);
}

bool OutputParser::IsSpecial(int id) const {
  const OutputTokenIds& ids = options_.ids;
  return id == ids.channel_open || id == ids.channel_close || id == ids.tool_call_open ||
         id == ids.tool_call_close || id == ids.tool_response || id == ids.quote ||
         id == ids.turn_end || id == ids.eos;
}

void OutputParser::Push(int token_id, std::string_view text, std::vector<OutputEvent>* events) {
  events_ = events;
  if (IsSpecial(token_id)) {
    PushSpecial(token_id);
  } else {
    PushText(text);
  }
  events_ = nullptr;
}

void OutputParser::Finish(std::vector<OutputEvent>* events) {
  events_ = events;
  CloseThought();
  CloseCall();
  events_ = nullptr;
}

void OutputParser::PushSpecial(int token_id) {
  const OutputTokenIds& ids = options_.ids;
  if (token_id == ids.quote) {
    if (state_ == State::kCallObject) {
      call_.quotes.push_back(call_.text.size());
      PushArguments(writer_->PushQuote(&arguments_));
    } else if (state_ == State::kCallHead) {
      call_.quotes.push_back(call_.text.size());
      BreakCall();
    } else {
      PushText("\"");
    }
    return;
  }
  if (token_id == ids.tool_call_close) {
    CloseCall();  // A stray one is dropped.
    return;
  }
  CloseCall();
  if (token_id == ids.channel_open) {
    OpenThought();
  } else if (token_id == ids.tool_call_open) {
    CloseThought();
    OpenCall();
  } else {
    CloseThought();  // <channel|>, a stop token, or one that makes no sense here.
  }
}

void OutputParser::OpenThought() {
  if (state_ == State::kStart) CloseThought();
  // A doubled <|channel> counts once; another label may follow either.
  if (state_ == State::kLabel) EmitReasoning(std::exchange(held_, {}));
  state_ = State::kLabel;
}

// Ends whatever thought is open, and settles text held back for a label.
void OutputParser::CloseThought() {
  if (state_ == State::kStart) {
    Emit(Kind::kContent, std::exchange(held_, {}));
  } else if (state_ == State::kLabel) {
    const std::string held = std::exchange(held_, {});
    if (held != kLabelText.substr(0, kLabelText.size() - 1)) EmitReasoning(held);
  }
  if (state_ == State::kStart || state_ == State::kLabel || state_ == State::kThought) {
    state_ = State::kContent;
  }
  held_newline_ = false;
}

void OutputParser::PushText(std::string_view text) {
  for (size_t offset = 0; offset < text.size();) {
    switch (state_) {
      case State::kStart:
      case State::kLabel:
        PushLabel(text.substr(offset, 1));
        ++offset;
        break;
      case State::kThought:
        EmitReasoning(text.substr(offset));
        return;
      case State::kContent:
      case State::kBrokenCall:
        Emit(Kind::kContent, text.substr(offset));
        return;
      case State::kCallHead:
        PushCallHead(text[offset++]);
        break;
      case State::kCallObject:
        PushCallObject(text[offset++]);
        break;
      case State::kCallTail:  // Blanks go, anything else is content behind the call.
        if (!IsBlank(text[offset])) {
          CloseCall();
        } else {
          ++offset;
        }
        break;
    }
  }
}

void OutputParser::PushLabel(std::string_view text) {
  held_ += text;
  if (held_ == kLabelText) {
    held_.clear();
    state_ = State::kThought;
  } else if (!kLabelText.starts_with(held_)) {
    const std::string held = std::exchange(held_, {});
    const bool in_thought = state_ == State::kLabel;
    state_ = in_thought ? State::kThought : State::kContent;
    in_thought ? EmitReasoning(held) : Emit(Kind::kContent, held);
  }
}

void OutputParser::OpenCall() {
  call_.Clear();
  call_announced_ = false;
  arguments_.clear();
  state_ = State::kCallHead;
}

void OutputParser::PushCallHead(char c) {
  if (c != '{') {
    call_.text.push_back(c);
    const size_t common = std::min(call_.text.size(), kCallPrefix.size());
    const bool starts_well = call_.text.compare(0, common, kCallPrefix.substr(0, common)) == 0;
    if (!starts_well || call_.text.size() > kMaxNameBytes + kCallPrefix.size()) BreakCall();
    return;
  }
  std::string_view name = call_.text;
  name.remove_prefix(std::min(name.size(), kCallPrefix.size()));
  while (!name.empty() && IsBlank(name.front())) name.remove_prefix(1);
  while (!name.empty() && IsBlank(name.back())) name.remove_suffix(1);
  const bool is_name = !name.empty() && std::none_of(name.begin(), name.end(), [](char n) {
    return IsBlank(n) || n == '}' || n == ',' || n == '"';
  });
  if (!is_name) {
    call_.text.push_back(c);
    BreakCall();
    return;
  }
  Emit(Kind::kToolCallBegin, name, num_calls_);
  writer_.emplace(FindToolSchema(options_.tools, name));
  call_announced_ = true;
  state_ = State::kCallObject;
  PushCallObject(c);
}

void OutputParser::PushCallObject(char c) {
  call_.text.push_back(c);
  if (call_.text.size() > options_.max_call_bytes) return BreakCall();
  PushArguments(writer_->Push(c, &arguments_));
}

void OutputParser::PushArguments(bool is_well_formed) {
  const bool is_done = is_well_formed && writer_->is_done();
  if ((is_done || options_.stream_arguments) && !arguments_.empty()) {
    Emit(Kind::kToolCallArguments, std::exchange(arguments_, {}), num_calls_);
  }
  if (!is_well_formed) return BreakCall();
  if (!is_done) return;
  Emit(Kind::kToolCallEnd, "", num_calls_++);
  call_announced_ = false;
  state_ = State::kCallTail;
}

// Gives the text of the call back as content, unless parts of it are out as a call.
void OutputParser::BreakCall() {
  if (call_announced_ && options_.stream_arguments) {
    Emit(Kind::kToolCallEnd, "", num_calls_++);
    call_announced_ = false;
    call_.Clear();
    state_ = State::kContent;
    return;
  }
  if (call_announced_) Emit(Kind::kToolCallCancel, "", num_calls_++);
  call_announced_ = false;
  Emit(Kind::kContent, call_.Readable());
  call_.Clear();
  state_ = State::kBrokenCall;
}

void OutputParser::CloseCall() {
  if (state_ == State::kCallHead || state_ == State::kCallObject) BreakCall();
  if (state_ == State::kCallTail || state_ == State::kBrokenCall) state_ = State::kContent;
}

void ParsedOutput::Add(const OutputEvent& event) {
  switch (event.kind) {
    case Kind::kReasoning:
      reasoning += event.text;
      break;
    case Kind::kContent:
      content += event.text;
      break;
    case Kind::kToolCallBegin:
      tool_calls.push_back({event.text, {}});
      break;
    case Kind::kToolCallArguments:
      tool_calls.back().arguments = Json::parse(event.text);
      break;
    case Kind::kToolCallEnd:
      break;
    case Kind::kToolCallCancel:
      tool_calls.pop_back();
      break;
  }
}

ParsedOutput ParseAll(const std::vector<std::pair<int, std::string>>& tokens,
                      OutputParserOptions options) {
  options.stream_arguments = false;
  const OutputTokenIds& ids = options.ids;
  const auto is = [](int id) { return [id](const auto& token) { return token.first == id; }; };
  const auto close = std::find_if(tokens.begin(), tokens.end(), is(ids.channel_close));
  const bool never_opened = std::none_of(tokens.begin(), tokens.end(), is(ids.channel_open));
  const bool goes_on = std::any_of(close, tokens.end(), [&](const auto& token) {
    const bool stops = token.first == ids.channel_close || token.first == ids.turn_end ||
                       token.first == ids.eos || token.first == ids.tool_response;
    return !stops && !token.second.empty();
  });
  const bool call_before_close = std::any_of(tokens.begin(), close, is(ids.tool_call_open));

  std::vector<OutputEvent> events;
  OutputParser parser(options);
  if (never_opened && goes_on && !options.starts_in_thought && !call_before_close) {
    parser.Push(ids.channel_open, "", &events);
  }
  for (const auto& [id, text] : tokens) parser.Push(id, text, &events);
  parser.Finish(&events);

  ParsedOutput output;
  for (const OutputEvent& event : events) output.Add(event);
  return output;
}

}  // namespace lapidary
