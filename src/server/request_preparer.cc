#include "server/request_preparer.h"

#include <algorithm>
#include <utility>

#include "base/excerpt.h"
#include "server/completion_format.h"
#include "server/generate_request.h"
#include "server/messages_format.h"
#include "server/messages_request.h"
#include "server/ollama_format.h"
#include "server/ollama_models.h"
#include "server/prompt_echo.h"
#include "server/request_media.h"
#include "server/responses_format.h"
#include "server/transcription_request.h"

namespace lapidary {
namespace {

// Of responses that can be gone on from.
constexpr size_t kMaxStoredResponses = 10'000;
constexpr size_t kMaxStoredBytes = size_t{64} << 20;

ApiError ToApiError(const FieldError& bad, const char* prompt_field) {
  ApiError error = BadRequest(bad.field.empty() ? prompt_field : bad.field, "{}", bad.message);
  if (bad.exceeds_context) error.code = "context_length_exceeded";
  return error;
}

}  // namespace

RequestPreparer::RequestPreparer(Session& session, const ServedModel& model)
    : session_(session),
      model_(model),
      responses_(std::make_shared<ResponseStore>(kMaxStoredResponses, kMaxStoredBytes)) {}

RequestContext RequestPreparer::context() const {
  return {.text = session_.text(),
          .vocab_size = session_.plan().vocab_size,
          .max_model_len = model_.max_model_len()};
}

ApiStatus RequestPreparer::CheckGeneration(const GenerationRequest& request) const {
  RETURN_IF_API_ERROR(model_.CheckName(request.model));
  if (const auto bad = CheckAnswerRequest(context(), request)) return ToApiError(*bad, "");
  if (request.priority != 0 && !model_.rules().takes_priority) {
    return BadRequest("priority",
                      "requests are served in order of arrival here; 'priority' needs a server "
                      "started with --scheduling-policy priority");
  }
  return {};
}

ApiStatus RequestPreparer::FillJob(GenerationRequest request, const ChatRules* chat,
                                   std::vector<PreparedPrompt> prompts, const char* prompt_field,
                                   GenerationJob* job) const {
  PreparedRequest prepared;
  if (const auto bad = PrepareRequest(context(), request, chat, std::move(prompts), &prepared)) {
    return ToApiError(*bad, prompt_field);
  }
  for (Request& each : prepared.requests) {
    if (request.echo) {  // Its logprobs are the prompt's.
      each.num_prompt_logprobs =
          std::max(request.num_prompt_logprobs, request.sampling.num_logprobs);
    }
    job->prompts.push_back({.request = std::move(each)});
  }
  // Tokens that are there already are read where grammars are compiled.
  if (prepared.form && request.generated.empty()) {
    job->grammar = session_.FindConstraint(*prepared.form);
  }
  if (job->grammar == nullptr) job->form = std::move(prepared.form);
  job->form_field = std::move(prepared.form_field);
  job->reader = std::move(prepared.reader);
  if (job->reader.parser) job->reader.parser->stream_arguments = request.stream;
  job->request = std::move(request);
  return {};
}

ApiStatus RequestPreparer::PrepareChat(const OrderedJson& body, PendingRequest* pending,
                                       Limit limit) const {
  const auto request = std::make_shared<ChatRequest>();
  request->strict_tools = model_.rules().strict_tools;
  RETURN_IF_API_ERROR(ParseChatRequest(body, model_.defaults().sampling, request.get()));
  RETURN_IF_API_ERROR(CheckGeneration(request->generation));
  request->generation.clamps_max_tokens = limit == Limit::kClamped;
  const auto prompt = std::make_shared<ChatPrompt>();
  RETURN_IF_API_ERROR(model_.Prepare(request->input, prompt.get()));
  request->input.messages = nullptr;  // It may wait for its media: what is done goes.
  pending->media = std::move(request->media);
  pending->max_soft_tokens = request->max_soft_tokens;
  pending->rest.push_back([this, request, prompt](PendingRequest* then) {
    return FinishChat(*request, *prompt, then);
  });
  return {};
}

ApiStatus RequestPreparer::FinishChat(ChatRequest& request, ChatPrompt& prepared,
                                      PendingRequest* pending) const {
  GenerationJob* const job = &pending->job;
  PreparedPrompt prompt;
  prompt.text = std::move(prepared);
  for (const EncodedMedium& medium : pending->encoded) pending->audio_seconds += medium.seconds;
  RETURN_IF_API_ERROR(PlaceRequestMedia(session_, pending->media, std::move(pending->encoded),
                                        &prompt.text, &prompt.media));
  const ChatRules chat =
      MakeChatRules(request.input, std::move(request.calls), request.single_call);
  job->format = std::make_unique<CompletionFormat>(ApiKind::kChat, model_, request.generation);
  return FillJob(std::move(request.generation), &chat, {std::move(prompt)}, "messages", job);
}

ApiStatus RequestPreparer::TranslateResponse(const OrderedJson& body,
                                             const std::shared_ptr<ByteLease>& memory,
                                             OrderedJson* chat, size_t* num_instructions,
                                             ResponsesExtras* extras) const {
  RETURN_IF_API_ERROR(ResponsesToChat(body, chat, num_instructions, extras));
  if (extras->previous_response_id.empty()) return {};
  const auto stored = responses_->Get(extras->previous_response_id);
  if (stored == nullptr) {
    ApiError error{404,
                   fmt::format("the response '{}' is not stored here (any more)",
                               Excerpt(extras->previous_response_id)),
                   "previous_response_id"};
    error.code = "previous_response_not_found";
    return error;
  }
  const size_t num_bytes = 2 * stored->messages.size();
  if (memory != nullptr && !memory->Grow(num_bytes)) return memory->Refusal(num_bytes);
  const OrderedJson previous = OrderedJson::parse(stored->messages);
  OrderedJson& messages = (*chat)["messages"];
  messages.insert(messages.begin() + static_cast<ptrdiff_t>(*num_instructions), previous.begin(),
                  previous.end());
  return {};
}

ApiStatus RequestPreparer::PrepareResponse(const OrderedJson& body,
                                           const std::shared_ptr<ByteLease>& memory,
                                           PendingRequest* pending) const {
  OrderedJson chat;
  size_t num_instructions = 0;
  ResponsesExtras extras;
  RETURN_IF_API_ERROR(TranslateResponse(body, memory, &chat, &num_instructions, &extras));
  RETURN_IF_API_ERROR(PrepareChat(chat, pending));
  StoredResponse stored;
  if (extras.store) {
    OrderedJson& messages = chat["messages"];
    messages.erase(messages.begin(), messages.begin() + static_cast<ptrdiff_t>(num_instructions));
    stored.messages = DumpJson(messages);
    stored.messages.pop_back();  // The list goes on with the answer.
    if (!messages.empty()) stored.messages += ',';
    stored.input_items = ResponseInputItems(body);
  }
  pending->rest.push_back(
      [this, memory, stored = std::move(stored), store = extras.store,
       echoed = std::move(extras.echoed)](PendingRequest* then) mutable -> ApiStatus {
        if (then->job.request.num_choices > 1) return NotSupportedYet("n");
        const GenerationRequest& request = then->job.request;
        if (!request.has_seed) echoed["seed"] = request.sampling.seed;
        ResponsesFormat::OutputSink on_output;
        // One that goes on with another has only the end of what would be stored.
        if (store && request.generated.empty()) {
          then->job.num_stored_bytes = stored.num_bytes();
          on_output = [responses = responses_, stored = std::move(stored), memory](
                          const std::string& id, const OrderedJson& response) {
            StoredResponse complete = stored;
            complete.messages += DumpJson(OutputToMessage(response["output"]));
            complete.messages += ']';
            complete.response = DumpJson(response);
            responses->Put(id, std::move(complete));
          };
        }
        then->job.format = std::make_unique<ResponsesFormat>(
            model_.AnswerName(request.model), std::move(echoed), std::move(on_output));
        return {};
      });
  return {};
}

ApiStatus RequestPreparer::CountChat(const OrderedJson& chat, size_t* num_tokens) const {
  ChatRequest request;
  RETURN_IF_API_ERROR(ParseChatRequest(chat, model_.defaults().sampling, &request));
  RETURN_IF_API_ERROR(model_.CheckName(request.generation.model));
  ChatPrompt prompt;
  RETURN_IF_API_ERROR(model_.Prepare(request.input, &prompt));
  *num_tokens = prompt.ids.size();
  return {};
}

ApiStatus RequestPreparer::CountResponse(const OrderedJson& body,
                                         const std::shared_ptr<ByteLease>& memory,
                                         size_t* num_tokens) const {
  OrderedJson chat;
  size_t num_instructions = 0;
  ResponsesExtras extras;
  RETURN_IF_API_ERROR(TranslateResponse(body, memory, &chat, &num_instructions, &extras));
  return CountChat(chat, num_tokens);
}

ApiStatus RequestPreparer::CountMessage(const OrderedJson& body, size_t* num_tokens) const {
  OrderedJson chat;
  RETURN_IF_API_ERROR(MessagesToChat(body, /*needs_limit=*/false, &chat));
  return CountChat(chat, num_tokens);
}

ApiStatus RequestPreparer::PrepareMessage(const OrderedJson& body, PendingRequest* pending) const {
  OrderedJson chat;
  RETURN_IF_API_ERROR(MessagesToChat(body, /*needs_limit=*/true, &chat));
  RETURN_IF_API_ERROR(PrepareChat(chat, pending, Limit::kClamped));
  pending->rest.push_back([this](PendingRequest* then) -> ApiStatus {
    if (then->job.request.num_choices > 1) return NotSupportedYet("n");
    then->job.format = std::make_unique<MessagesFormat>(model_.AnswerName(then->job.request.model));
    return {};
  });
  return {};
}

ApiStatus RequestPreparer::PrepareOllama(OllamaKind kind, const OrderedJson& body,
                                         PendingRequest* pending) const {
  OrderedJson chat;
  RETURN_IF_API_ERROR(OllamaToChat(kind, body, &chat));
  const std::string name = ServedOllamaName(model_, chat["model"]);
  if (IsOllamaLoad(kind, body)) {
    RETURN_IF_API_ERROR(model_.CheckName(name));
    pending->ready = JsonResponse(OllamaLoaded(kind, model_.name()));
    return {};
  }
  chat["model"] = name;
  RETURN_IF_API_ERROR(PrepareChat(chat, pending, Limit::kClamped));
  pending->rest.push_back([this, kind](PendingRequest* then) -> ApiStatus {
    then->job.format =
        std::make_unique<OllamaFormat>(kind, model_.AnswerName(then->job.request.model));
    return {};
  });
  return {};
}

ApiStatus RequestPreparer::PrepareTranscription(const OrderedJson& body,
                                                PendingRequest* pending) const {
  RETURN_IF_API_ERROR(PrepareChat(body["chat"], pending));
  pending->rest.push_back(
      [kind = TranscriptionKindOf(body),
       language = body["language"].get<std::string>()](PendingRequest* then) -> ApiStatus {
        // Nobody says more in a second; a model that cannot stop is stopped.
        constexpr double kMaxTokensPerSecond = 25.0;
        constexpr int32_t kLeastTokens = 32;
        const auto most =
            kLeastTokens + static_cast<int32_t>(kMaxTokensPerSecond * then->audio_seconds);
        std::optional<int32_t>& max_new_tokens = then->job.prompts[0].request.max_new_tokens;
        max_new_tokens = std::min(*max_new_tokens, most);
        then->job.format = std::make_unique<TranscriptionFormat>(TranscriptionFormat::Options{
            .kind = kind, .language = language, .seconds = then->audio_seconds});
        return {};
      });
  return {};
}

ApiStatus RequestPreparer::PrepareCompletion(const OrderedJson& body,
                                             PendingRequest* pending) const {
  CompletionRequest request;
  RETURN_IF_API_ERROR(ParseCompletionRequest(body, model_.defaults().sampling, &request));
  return PrepareTexts(request, ApiKind::kCompletion, "prompt", pending);
}

ApiStatus RequestPreparer::PrepareGenerate(const OrderedJson& body, PendingRequest* pending) const {
  OrderedJson completion;
  CompletionRequest request;
  request.generation.answers_in_tokens = true;
  RETURN_IF_API_ERROR(GenerateToCompletion(body, &completion, &request.generation.answer_id));
  RETURN_IF_API_ERROR(ParseCompletionRequest(completion, model_.defaults().sampling, &request));
  return PrepareTexts(request, ApiKind::kTokens, "token_ids", pending);
}

ApiStatus RequestPreparer::PrepareTexts(CompletionRequest& request, ApiKind kind,
                                        const char* prompt_field, PendingRequest* pending) const {
  GenerationJob* const job = &pending->job;
  RETURN_IF_API_ERROR(CheckGeneration(request.generation));
  std::vector<PreparedPrompt> prompts;
  std::vector<PromptEcho> echoes;
  for (const RawPrompt& raw : request.prompts) {
    PreparedPrompt& prompt = prompts.emplace_back();
    ApiStatus bad = model_.Prepare(raw, request.add_special_tokens, &prompt.text);
    if (bad) {
      bad->param = prompt_field;
      return bad;
    }
    if (request.generation.echo) {
      echoes.push_back(MakePromptEcho(model_.tokenizer(), raw, prompt.text.ids));
    }
  }
  job->format = std::make_unique<CompletionFormat>(kind, model_, request.generation);
  RETURN_IF_API_ERROR(FillJob(std::move(request.generation), /*chat=*/nullptr, std::move(prompts),
                              prompt_field, job));
  for (size_t idx = 0; idx < echoes.size(); ++idx) job->prompts[idx].echo = std::move(echoes[idx]);
  return {};
}

}  // namespace lapidary
