#include "lapidary/session.h"

#include "library/session_core.h"
#include "library/stream_impl.h"
#include "server/constraint_request.h"
#include "server/generation_request.h"
#include "server/request_media.h"

namespace lapidary::v0 {
namespace {

void ThrowIfRefused(const ApiStatus& status) {
  if (status) throw InvalidInput(status->message);
}

struct ParsedConversation {
  ChatInput input;
  RequestMedia media;       // behind the input's placeholders
  int max_soft_tokens = 0;  // 0: what the checkpoint says
  ToolCallRules calls;
  bool single_call = false;
};

ParsedConversation ParseConversation(std::string_view text) {
  OrderedJson json;
  ThrowIfRefused(ParseRequestJson(text, &json));
  ParsedConversation parsed;
  RequestFields fields(json);
  ReadChatInput(&fields, &parsed.input, &parsed.media);
  ReadSoftTokenBudget(&fields, &parsed.max_soft_tokens);
  parsed.single_call = !fields.Bool("parallel_tool_calls", true);
  if (!fields.status()) {
    ReadToolChoice(&fields, {.single_call = parsed.single_call}, &parsed.input.tools,
                   &parsed.calls);
  }
  ThrowIfRefused(fields.status());
  if (const std::string unknown = fields.UnknownFields(); !unknown.empty()) {
    throw InvalidInput("the conversation has fields that are not known: " + unknown);
  }
  return parsed;
}

}  // namespace

Session::Session(const std::string& model, const SessionOptions& options)
    : core_(std::make_shared<SessionCore>(model, options)) {}

Session::~Session() { Close(); }

void Session::Close() { core_->Close(); }

const std::string& Session::model() const { return core_->model(); }

std::string Session::device() const { return core_->device() == DeviceKind::kCpu ? "cpu" : "cuda"; }

int32_t Session::vocab_size() const { return core_->session().plan().vocab_size; }

int32_t Session::max_model_len() const { return core_->session().max_model_len(); }

std::vector<int32_t> Session::stop_token_ids() const { return core_->text().defaults.stop_ids; }

int32_t Session::bos_token_id() const { return core_->tokenizer().bos_id(); }

std::vector<int32_t> Session::Encode(std::string_view text, bool add_special_tokens) const {
  if (const Status valid = CheckUtf8(text, "the text"); !valid.ok()) Throw(valid.error());
  return add_special_tokens ? EncodeRawPrompt(core_->tokenizer(), text)
                            : core_->tokenizer().Encode(text, SpecialTokens::kParse);
}

std::string Session::Decode(const std::vector<int32_t>& ids, bool skip_special_tokens) const {
  return ValueOrThrow(core_->tokenizer().Decode(ids, skip_special_tokens));
}

Prompt Session::EncodePrompt(std::string_view text) const {
  if (const Status valid = CheckUtf8(text, "the text"); !valid.ok()) Throw(valid.error());
  ChatPrompt prompt = ValueOrThrow(EncodeTextPrompt(core_->tokenizer(), text));
  return {.ids = std::move(prompt.ids), .cache_points = std::move(prompt.cache_points)};
}

Prompt Session::AddMedia(Prompt prompt, std::string_view media) const {
  if (prompt.chat != nullptr) {
    throw InvalidInput("images and audio of a conversation are parts of its messages");
  }
  OrderedJson json;
  ThrowIfRefused(ParseRequestJson(media, &json));
  RequestFields fields(json);
  const OrderedJson* parts = fields.Find("parts");
  if (parts == nullptr || !parts->is_array()) throw InvalidInput("'parts' must be a list");
  RequestMedia read;
  for (size_t idx = 0; idx < parts->size(); ++idx) {
    const OrderedJson& part = (*parts)[idx];
    const std::string where = fmt::format("parts[{}]", idx);
    const OrderedJson* type = part.is_object() ? FindPartField(part, "type") : nullptr;
    if (type == nullptr || !type->is_string() || !IsMediaPart(type->get<std::string>())) {
      throw InvalidInput(where + " is no image and no audio");
    }
    OrderedJson placeholder;
    ThrowIfRefused(ReadMediaPart(part, where, &read, &placeholder));
  }
  if (!read.video_texts.empty()) {
    throw InvalidInput("a video belongs in a message: its frames come with their times there");
  }
  int max_soft_tokens = 0;
  ReadSoftTokenBudget(&fields, &max_soft_tokens);
  ThrowIfRefused(fields.status());
  ChatPrompt placed;
  placed.ids = std::move(prompt.ids);
  auto details = std::make_shared<ChatDetails>();
  ThrowIfRefused(EncodeAndPlaceMedia(core_->session(), std::move(read), max_soft_tokens, &placed,
                                     &details->media));
  prompt.ids = std::move(placed.ids);
  prompt.cache_points = std::move(placed.cache_points);
  prompt.chat = std::move(details);
  return prompt;
}

Prompt Session::EncodeChat(std::string_view conversation) const {
  ParsedConversation parsed = ParseConversation(conversation);
  auto details = std::make_shared<ChatDetails>();
  details->rules = MakeChatRules(parsed.input, std::move(parsed.calls), parsed.single_call);
  ChatPrompt encoded = ValueOrThrow(EncodeChatPrompt(core_->text(), std::move(parsed.input)));
  ThrowIfRefused(EncodeAndPlaceMedia(core_->session(), std::move(parsed.media),
                                     parsed.max_soft_tokens, &encoded, &details->media));
  details->starts_in_thought = encoded.starts_in_thought;
  return {std::move(encoded.ids), std::move(encoded.cache_points), std::move(details)};
}

std::string Session::Render(std::string_view conversation) const {
  ParsedConversation parsed = ParseConversation(conversation);
  const Result<ChatTemplate>& chat_template = core_->text().chat_template;
  if (!chat_template.ok()) Throw(chat_template.error());
  return JoinSegments(ValueOrThrow(chat_template->RenderPrompt(std::move(parsed.input))));
}

Stream Session::Open() { return Stream(std::make_unique<Stream::Impl>(core_)); }

}  // namespace lapidary::v0
