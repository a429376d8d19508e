#include "server/request_preparer.h"

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
#include "session/answer_rules.h"

namespace lapidary {
namespace {

// Of responses that can be gone on from.
constexpr size_t kMaxStoredResponses = 10'000;
constexpr size_t kMaxStoredBytes = size_t{64} << 20;

}  // namespace

RequestPreparer::RequestPreparer(Session& session, const ServedModel& model)
    : session_(session),
      model_(model),
      responses_(std::make_shared<ResponseStore>(kMaxStoredResponses, kMaxStoredBytes)) {}

ApiStatus RequestPreparer::CheckGeneration(const GenerationRequest& request) const {
  RETURN_IF_API_ERROR(model_.CheckName(request.model));
  const int32_t vocab_size = session_.plan().vocab_size;
  if (const Status valid = request.sampling.Validate(vocab_size); !valid.ok()) {
    // The message begins with the field's name.
    const std::string& message = valid.error().message;
    return BadRequest(message.substr(0, message.find_first_of(" :")), "{}", message);
  }
  if (request.priority != 0 && !model_.rules().takes_priority) {
    return BadRequest("priority",
                      "requests are served in order of arrival here; 'priority' needs a server "
                      "started with --scheduling-policy priority");
  }
  if (request.max_tokens && request.min_tokens > *request.max_tokens) {
    return BadRequest("min_tokens", "'min_tokens' is {}, more than the {} of 'max_tokens'",
                      request.min_tokens, *request.max_tokens);
  }
  return {};
}

ApiStatus RequestPreparer::FindGrammar(const GenerationRequest& request, GenerationJob* job) const {
  std::optional<grammar::Constraint> constraint = request.constraint;
  const AnswerRules rules = {.min_tokens = request.min_tokens,
                             .bad_words = request.bad_words,
                             .stop_ids = request.stop_token_ids,
                             .ignore_eos = request.ignore_eos};
  if (const Status added = AddRules(rules, session_.text(), &constraint); !added.ok()) {
    return BadRequest("bad_words", "{}", added.error().message);
  }
  if (!constraint) return {};
  if (request.ignore_eos && constraint->kind != grammar::Constraint::Kind::kAnything) {
    return BadRequest("ignore_eos", "'ignore_eos' and a form of the answer exclude each other");
  }
  // Tokens that are there already are read where grammars are compiled.
  if (request.generated.empty()) job->grammar = session_.FindConstraint(*constraint);
  if (job->grammar == nullptr) job->form = std::move(constraint);
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
  GenerationJob::Prompt prompt;
  prompt.prepared = std::move(prepared);
  for (const EncodedMedium& medium : pending->encoded) pending->audio_seconds += medium.seconds;
  RETURN_IF_API_ERROR(PlaceRequestMedia(session_, pending->media, std::move(pending->encoded),
                                        &prompt.prepared, &prompt.media));
  RETURN_IF_API_ERROR(model_.CheckLength("messages", prompt.prepared, request.generation.max_tokens,
                                         request.generation.clamps_max_tokens,
                                         &prompt.max_new_tokens));
  OutputParserOptions options;
  options.accept_bare_thought = !request.input.enable_thinking.value_or(false);
  if (request.input.tools) options.tools = *request.input.tools;
  if (request.generation.constraint) {
    request.generation.constraint->thought = ThoughtBeforeForm(
        prompt.prepared.starts_in_thought, request.input.enable_thinking.value_or(false));
  }
  RETURN_IF_API_ERROR(FindGrammar(request.generation, job));
  job->format = std::make_unique<CompletionFormat>(ApiKind::kChat, model_, request.generation);
  job->prompts.push_back(std::move(prompt));
  job->parser_options = std::move(options);
  job->single_call = request.single_call;
  job->request = std::move(request.generation);
  return {};
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
        then->job.format = std::make_unique<ResponsesFormat>(model_.name(), std::move(echoed),
                                                             std::move(on_output));
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
    then->job.format = std::make_unique<MessagesFormat>(model_.name());
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
    then->job.format = std::make_unique<OllamaFormat>(kind, model_.name());
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
        int32_t& max_new_tokens = then->job.prompts[0].max_new_tokens;
        max_new_tokens = std::min(max_new_tokens, most);
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
  for (const RawPrompt& raw : request.prompts) {
    GenerationJob::Prompt prompt;
    ApiStatus bad = model_.Prepare(raw, request.add_special_tokens, &prompt.prepared);
    if (bad) {
      bad->param = prompt_field;
      return bad;
    }
    RETURN_IF_API_ERROR(model_.CheckLength(prompt_field, prompt.prepared,
                                           request.generation.max_tokens, /*clamps=*/false,
                                           &prompt.max_new_tokens));
    if (request.generation.echo) {
      prompt.echo = MakePromptEcho(model_.tokenizer(), raw, prompt.prepared.ids);
    }
    job->prompts.push_back(std::move(prompt));
  }
  RETURN_IF_API_ERROR(FindGrammar(request.generation, job));
  job->format = std::make_unique<CompletionFormat>(kind, model_, request.generation);
  job->request = std::move(request.generation);
  return {};
}

}  // namespace lapidary
