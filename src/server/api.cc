#include "server/api.h"

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <cctype>
#include <thread>

#include "base/excerpt.h"
#include "base/memory_reserve.h"
#include "base/version.h"
#include "server/input_items.h"
#include "server/log_failure.h"
#include "server/messages_format.h"
#include "server/ollama_format.h"
#include "server/ollama_models.h"
#include "server/rendered_prompt.h"
#include "server/route_path.h"
#include "server/transcription_request.h"
#include "server/utc_time.h"

namespace lapidary {

extern const std::string_view kOpenApi;  // by lapidary_embed

namespace {

// Two, so that one long prompt does not hold up the short ones.
constexpr int kNumWorkers = 2;

// A quarter of the cores: steps and the towers' own threads need the others.
int NumMediaThreads() {
  return std::clamp(static_cast<int>(std::thread::hardware_concurrency()) / 4, 1, 8);
}

// They wait more than they work.
constexpr int kNumFetchers = 8;

// A body from here on is prepared behind other long ones, as is one that takes long for its size.
constexpr size_t kLongBodyBytes = size_t{64} << 10;

constexpr std::string_view kMessagesPath = "/v1/messages";
constexpr std::string_view kOllamaPath = "/api/";

bool HoldsAddress(const OrderedJson& json) {
  if (json.is_string()) {
    const auto& text = json.get_ref<const std::string&>();
    return text.starts_with("http://") || text.starts_with("https://");
  }
  return json.is_structured() && std::any_of(json.begin(), json.end(), HoldsAddress);
}

// Whether a request may have to wait for another host: some text of it is an address, or may be one
// in the conversation that it goes on with.
bool MayFetch(const OrderedJson& body) {
  return body.contains("previous_response_id") || HoldsAddress(body);
}

// Templates look through all messages for each of them, so many take long however short they are.
bool HasManyMessages(const OrderedJson& body) {
  constexpr size_t kMany = 200;
  for (const char* name : {"messages", "input"}) {
    const auto list = body.find(name);
    if (list != body.end() && list->is_array() && list->size() >= kMany) return true;
  }
  return false;
}

// What is thrown is an internal error, or a lack of memory.
template <typename Work>
ApiStatus CatchAll(const Work& work) {
  try {
    return work();
  } catch (const std::exception& error) {
    ApiStatus failure;
    Insist([&] { failure = ApiErrorOf("a request could not be prepared", error); });
    return failure;
  }
}

ApiError NoSuchResponse(const std::string& path) {
  ApiError error{404, fmt::format("the response '{}' is not stored here (any more)",
                                  Excerpt(NameInPath(path)))};
  error.code = "response_not_found";
  return error;
}

bool EqualsIgnoringCase(std::string_view left, std::string_view right) {
  const auto lower = [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; };
  return std::equal(left.begin(), left.end(), right.begin(), right.end(),
                    [&](char a, char b) { return lower(a) == lower(b); });
}

// In a time that does not tell where the first difference is.
bool EqualInConstantTime(std::string_view left, std::string_view right) {
  if (left.size() != right.size()) return false;
  unsigned difference = 0;
  for (size_t pos = 0; pos < left.size(); ++pos) {
    difference |= static_cast<unsigned char>(left[pos]) ^ static_cast<unsigned char>(right[pos]);
  }
  return difference == 0;
}

// Whoever may use the server may send any header: clients bring their own (X-Stainless-Lang, ...).
HttpResponse Preflight(const HttpRequest& request) {
  const auto is_name = [](char c) {
    return std::isalnum(static_cast<uint8_t>(c)) != 0 || c == '-';
  };
  std::string headers = request.asked_headers;
  const bool is_list = std::all_of(headers.begin(), headers.end(), [&](char c) {
    return is_name(c) || c == ',' || c == ' ' || c == '_';
  });
  if (headers.empty() || !is_list) headers = "Authorization, Content-Type";
  HttpResponse response;
  response.status = 204;
  response.headers = {{"Access-Control-Allow-Methods", "GET, POST, DELETE, OPTIONS"},
                      {"Access-Control-Allow-Headers", headers},
                      {"Access-Control-Max-Age", "600"}};
  return response;
}

// Lines of JSON alone, where the other lines of the log have a time in front.
spdlog::logger& JsonLog() {
  static const std::shared_ptr<spdlog::logger> logger = [] {
    auto plain = spdlog::default_logger()->clone("access");
    auto sink = std::make_shared<spdlog::sinks::stderr_sink_mt>();
    plain->sinks() = {std::move(sink)};
    plain->set_pattern("%v");
    return plain;
  }();
  return *logger;
}

void LogAsJson(const AccessRecord& access) {
  const OrderedJson line = {
      {"time", UtcTime(std::chrono::system_clock::now())},
      {"id", access.id},
      {"client", access.client},
      {"method", access.method},
      {"path", access.path},
      {"model", access.model.empty() ? OrderedJson(nullptr) : OrderedJson(access.model)},
      {"status", access.status},
      {"error", access.error_code},
      {"complete", access.is_complete},
      {"seconds", access.seconds},
      {"prompt_tokens", access.prompt_tokens},
      {"completion_tokens", access.completion_tokens},
      {"traceparent", access.traceparent}};
  JsonLog().info("{}", DumpJson(line));
}

void LogAsText(const AccessRecord& access) {
  std::string text = fmt::format("{} {} {} {} {:.3f} s", access.id, access.method,
                                 DumpJson(access.path), access.status, access.seconds);
  if (access.prompt_tokens > 0) {
    text += fmt::format(" {} + {} tokens", access.prompt_tokens, access.completion_tokens);
  }
  if (!access.error_code.empty()) text += " " + access.error_code;
  if (!access.is_complete) text += " left";
  if (!access.traceparent.empty()) text += " traceparent " + access.traceparent;
  spdlog::info("{}", text);
}

}  // namespace

Api::Api(Session& session, const ServedModel& model, ServerMetrics& metrics, ApiOptions options)
    : session_(session),
      model_(model),
      metrics_(metrics),
      options_(std::move(options)),
      chat_page_(options_.mcp_servers),
      created_(UnixTime()),
      preparer_(session, model),
      workers_(kNumWorkers),
      forms_(session) {
  if (!session.media_limits().hosts.empty()) fetchers_.emplace(kNumFetchers);
  if (session.media_encoder() != nullptr) {
    media_.emplace(MediaPool::Limits{.num_threads = NumMediaThreads(),
                                     .max_waiting_pixels = options_.max_queued_media_pixels});
  }
}

Api::~Api() {
  if (media_) media_->Stop();
}

const std::vector<Api::Route>& Api::Routes() {
  static const std::vector<Route> routes = {
      {"GET", "/", &Api::Page},
      {"GET", "/preview", &Api::Preview},
      {"GET", "/health", &Api::Health},
      {"GET", "/ready", &Api::Ready},
      {"GET", "/version", &Api::Version},
      {"GET", "/openapi.json", &Api::OpenApi},
      {"GET", "/metrics", &Api::Metrics},
      {"GET", "/v1/models", &Api::Models},
      {"GET", "/v1/models/{id}", &Api::Model},
      {"POST", "/v1/chat/completions", &Api::Chat},
      {"POST", "/v1/completions", &Api::Complete},
      {"POST", "/inference/v1/generate", &Api::GenerateTokens},
      {"POST", "/v1/chat/completions/render", &Api::RenderChat},
      {"POST", "/v1/completions/render", &Api::RenderTexts},
      {"POST", "/v1/responses", &Api::Responses},
      {"GET", "/v1/responses/{id}", &Api::GetResponse},
      {"DELETE", "/v1/responses/{id}", &Api::DeleteResponse},
      {"GET", "/v1/responses/{id}/input_items", &Api::InputItems},
      {"POST", "/v1/responses/input_tokens", &Api::InputTokens},
      {"POST", "/v1/embeddings", &Api::Embed},
      {"POST", "/v1/messages", &Api::Messages},
      {"POST", "/v1/messages/count_tokens", &Api::CountTokens},
      {"POST", "/v1/audio/transcriptions", &Api::Transcribe},
      {"GET", "/api/version", &Api::Version},
      {"GET", "/api/tags", &Api::OllamaTags},
      {"POST", "/api/show", &Api::OllamaShow},
      {"POST", "/api/chat", &Api::OllamaChat},
      {"POST", "/api/generate", &Api::OllamaGenerate},
      {"POST", "/api/embed", &Api::Embed},
      {"POST", "/api/embeddings", &Api::Embed},
      {"POST", "/tokenize", &Api::Tokenize},
      {"POST", "/detokenize", &Api::Detokenize},
      {"POST", "/v1/load_lora_adapter", &Api::LoadLora},
      {"POST", "/v1/unload_lora_adapter", &Api::UnloadLora},
  };
  return routes;
}

bool Api::IsAuthorized(const HttpRequest& request) const {
  constexpr std::string_view kScheme = "Bearer ";
  if (options_.api_keys.empty()) return true;
  std::string_view key = request.api_key;
  const std::string_view authorization = request.authorization;
  if (EqualsIgnoringCase(authorization.substr(0, kScheme.size()), kScheme)) {
    key = authorization.substr(kScheme.size());
    key.remove_prefix(std::min(key.find_first_not_of(' '), key.size()));
  }
  bool matches = false;
  for (const std::string& allowed : options_.api_keys) matches |= EqualInConstantTime(key, allowed);
  return matches;
}

ApiStatus Api::CheckHead(const HttpRequest& request) {
  const std::string path = CanonicalPath(request.path);
  const bool is_open = path == "/health" || path == "/ready" || path == "/" || path == "/preview";
  if (request.method == "OPTIONS" || is_open) return {};
  if (!request.data_parallel_rank.empty() && request.data_parallel_rank != "0") {
    return BadRequest("", "X-data-parallel-rank is '{}', but this server is one rank: 0",
                      Excerpt(request.data_parallel_rank));
  }
  if (IsAuthorized(request)) return {};
  ApiError error{401, "the API key is missing or wrong; send it as 'Authorization: Bearer KEY'"};
  error.code = "invalid_api_key";
  return error;
}

void Api::Handle(HttpRequest request, ResponderPtr responder) {
  if (request.method == "OPTIONS") return responder->Send(Preflight(request));
  request.path = CanonicalPath(request.path);
  const std::string path = RoutePattern(request.path);
  std::string allowed;  // methods of this path
  for (const Route& route : Routes()) {
    if (path != route.path) continue;
    if (request.method == route.method) {
      return (this->*route.endpoint)(std::move(request), std::move(responder));
    }
    if (!allowed.empty()) allowed += ", ";
    allowed += route.method == std::string_view("GET") ? "GET, HEAD" : route.method;
  }
  ApiError error{404,
                 fmt::format("there is no {} {}", Excerpt(request.method), Excerpt(request.path))};
  if (!allowed.empty()) error.status = 405;
  HttpResponse response = ErrorFor(request.path, error);
  if (!allowed.empty()) response.headers.emplace_back("Allow", allowed + ", OPTIONS");
  responder->Send(std::move(response));
}

HttpResponse Api::ErrorFor(const std::string& path, const ApiError& error) const {
  HttpResponse response = ErrorResponse(error);
  if (CanonicalPath(path).starts_with(kMessagesPath)) {
    response.body = DumpJson(MessagesError(error));
  } else if (path.starts_with(kOllamaPath)) {
    response.body = DumpJson(OllamaError(error));
  }
  return response;
}

void Api::OnDone(const AccessRecord& access) {
  const std::string path = RoutePattern(CanonicalPath(access.path));
  const std::vector<Route>& routes = Routes();
  const bool is_known = std::any_of(routes.begin(), routes.end(),
                                    [&](const Route& route) { return path == route.path; });
  metrics_.AddResponse(is_known ? path : "other", access.status, access.error_code);
  // Probes come all the time and say nothing while all is well.
  const bool is_probe = path == "/health" || path == "/ready" || path == "/metrics";
  if (options_.traces != nullptr && !is_probe) options_.traces->Add(access);
  if (options_.access_log == AccessLog::kOff || (is_probe && access.status == 200)) return;
  if (options_.access_log == AccessLog::kJson) return LogAsJson(access);
  LogAsText(access);
}

void Api::Page(HttpRequest request, ResponderPtr responder) {
  responder->Send(chat_page_.Respond(request.if_none_match));
}

void Api::Preview(HttpRequest, ResponderPtr responder) { responder->Send(PreviewResponse()); }

void Api::Health(HttpRequest, ResponderPtr responder) {
  if (session_.engine().has_failed()) return responder->Send(ErrorResponse(EngineFailed()));
  responder->Send(JsonResponse({{"status", "ok"}}));
}

void Api::Ready(HttpRequest, ResponderPtr responder) {
  if (session_.engine().has_failed()) return responder->Send(ErrorResponse(EngineFailed()));
  if (is_leaving_) return responder->Send(ErrorResponse(ShuttingDown()));
  responder->Send(JsonResponse({{"status", "ready"}}));
}

void Api::Version(HttpRequest, ResponderPtr responder) {
  responder->Send(JsonResponse({{"version", kVersion}}));
}

void Api::OpenApi(HttpRequest, ResponderPtr responder) {
  static const HttpResponse response = [] {
    OrderedJson description = OrderedJson::parse(kOpenApi);
    description["info"]["version"] = kVersion;
    return JsonResponse(description);
  }();
  responder->Send(response);
}

void Api::Metrics(HttpRequest, ResponderPtr responder) {
  HttpResponse response;
  response.content_type = "text/plain; version=0.0.4; charset=utf-8";
  if (media_) metrics_.SetMediaQueue(media_->stats());
  metrics_.SetMemory(options_.request_memory->taken(), preparer_.num_stored_bytes(),
                     options_.answer_memory->stats());
  if (model_.adapters() != nullptr) metrics_.SetAdapters(*model_.adapters());
  response.body = metrics_.Serialize();
  responder->Send(std::move(response));
}

OrderedJson Api::ModelJson(const std::string& name) const {
  return {{"id", name},
          {"object", "model"},
          {"created", created_},
          {"owned_by", "lapidary"},
          {"root", model_.name()},
          {"parent", nullptr},
          {"max_model_len", model_.max_model_len()},
          {"meta", {{"n_vocab", session_.plan().vocab_size}}}};  // llama.cpp's place for it
}

OrderedJson Api::AdapterJson(const AdapterTable::Entry& adapter) const {
  OrderedJson json = ModelJson(adapter.name);
  json["root"] = adapter.path;
  json["parent"] = model_.name();
  return json;
}

void Api::Models(HttpRequest, ResponderPtr responder) {
  OrderedJson data = OrderedJson::array();
  for (const std::string& name : model_.names()) data.push_back(ModelJson(name));
  if (model_.adapters() != nullptr) {
    for (const auto& adapter : model_.adapters()->List()) data.push_back(AdapterJson(adapter));
  }
  responder->Send(JsonResponse({{"object", "list"}, {"data", data}}));
}

void Api::Model(HttpRequest request, ResponderPtr responder) {
  const std::string name = NameInPath(request.path);
  if (const ApiStatus error = model_.CheckName(name)) return responder->Send(ErrorResponse(*error));
  if (model_.adapters() != nullptr) {
    for (const auto& adapter : model_.adapters()->List()) {
      if (adapter.name == name) return responder->Send(JsonResponse(AdapterJson(adapter)));
    }
  }
  responder->Send(JsonResponse(ModelJson(name)));
}

ApiStatus Api::ParseJsonBody(const HttpRequest& request, OrderedJson* body) const {
  RETURN_IF_API_ERROR(CheckBodySize(request.body, options_.body_limits));
  return ParseRequestJson(request.body, body, request.memory.get());
}

ApiStatus Api::ParseTranscriptionBody(const HttpRequest& request, OrderedJson* body) const {
  // The file becomes a part of a message, base64, and is decoded from that.
  const size_t num_bytes = 3 * request.body.size();
  if (request.memory != nullptr && !request.memory->Grow(num_bytes)) {
    return request.memory->Refusal(num_bytes);
  }
  return TranscriptionToChat(request.body, body);
}

template <typename T>
void Api::OnWorker(HttpRequest request, ResponderPtr responder, Work<T> work,
                   std::function<void(T)> then, ParseBody parse) {
  const bool is_long = request.body.size() >= kLongBodyBytes;
  const auto shared = std::make_shared<const HttpRequest>(std::move(request));
  const auto body = std::make_shared<OrderedJson>();
  const auto result = std::make_shared<T>();
  // Whatever has happened, the client hears of it.
  const auto answer = [=, this, path = shared->path](const ApiStatus& status) {
    Insist([&] {
      responder->Post([=, this] {
        if (status) return responder->Send(ErrorFor(path, *status));
        then(std::move(*result));
      });
    });
  };
  const auto run = [=, work = std::move(work), memory = shared->memory] {
    answer(CatchAll([&] { return work(*body, result.get()); }));
  };
  auto read = [=, this] {
    bool is_posted = false;
    const ApiStatus bad = CatchAll([&]() -> ApiStatus {
      RETURN_IF_API_ERROR((this->*parse)(*shared, body.get()));
      const bool may_fetch = fetchers_.has_value() && MayFetch(*body);
      is_posted = may_fetch || (!is_long && HasManyMessages(*body));
      if (is_posted) may_fetch ? fetchers_->Post(run) : workers_.PostLong(run);
      return {};
    });
    if (bad) return answer(bad);
    if (!is_posted) run();
  };
  is_long ? workers_.PostLong(std::move(read)) : workers_.Post(std::move(read));
}

void Api::Prepare(HttpRequest request, ResponderPtr responder, Work<PendingRequest> prepare,
                  ParseBody parse, std::function<void(GenerationJob)> go_on) {
  const auto arrival = std::chrono::steady_clock::now();
  const std::string path = request.path;
  // A body stays charged until its media are encoded: their files are kept for so long. Then it is
  // what the job keeps.
  const std::shared_ptr<ByteLease> memory = request.memory;
  auto work = [=, this, prepare = std::move(prepare)](const OrderedJson& body,
                                                      PendingRequest* pending) -> ApiStatus {
    RETURN_IF_API_ERROR(prepare(body, pending));
    pending->rest.push_back(
        [this](PendingRequest* then) { return then->job.ReplayGenerated(model_); });
    pending->rest.push_back([memory](PendingRequest* then) -> ApiStatus {
      if (memory == nullptr) return {};
      const size_t num_bytes = then->job.NumBytes();
      if (!memory->Resize(num_bytes)) return memory->Refusal(num_bytes - memory->num_bytes());
      then->job.memory = memory;
      return {};
    });
    if (pending->media.empty()) return pending->Finish();
    RETURN_IF_API_ERROR(LoadRequestMedia(session_, memory.get(), &pending->media));
    return MeasureRequestMedia(pending->media, options_.media, &pending->pixels);
  };
  const auto start = [=](const std::shared_ptr<PendingRequest>& pending) {
    GenerationJob job = std::move(pending->job);
    job.arrival = arrival;
    go_on(std::move(job));
  };
  OnWorker<PendingRequest>(
      std::move(request), responder, std::move(work),
      [=, this](PendingRequest prepared) {
        if (prepared.ready) return responder->Send(std::move(*prepared.ready));
        const auto pending = std::make_shared<PendingRequest>(std::move(prepared));
        if (pending->media.empty()) return start(pending);
        EncodeMedia(pending, responder, path, [=, memory = memory] { start(pending); });
      },
      parse);
}

void Api::Generate(HttpRequest request, ResponderPtr responder, Work<PendingRequest> prepare,
                   ParseBody parse) {
  const std::string path = request.path;
  Prepare(std::move(request), responder, std::move(prepare), parse,
          [=, this](GenerationJob job) { Begin(std::move(job), path, responder); });
}

void Api::Render(HttpRequest request, ResponderPtr responder, Work<PendingRequest> prepare,
                 bool as_list) {
  const auto response = std::make_shared<HttpResponse>();
  auto write = [=, this, prepare = std::move(prepare)](const OrderedJson& body,
                                                       PendingRequest* pending) -> ApiStatus {
    RETURN_IF_API_ERROR(prepare(body, pending));
    pending->rest.push_back([=, this, form = FormFields(body)](PendingRequest* then) -> ApiStatus {
      response->memory = std::make_shared<AnswerLease>(options_.answer_memory);
      AnswerText text(response->memory.get());
      WriteRenderedPrompts(then->job, model_, session_.plan().media_tokens.value_or(MediaTokens()),
                           form, as_list, &text);
      if (!text.ok()) return text.Refusal();
      response->body = text.Take();
      return {};
    });
    return {};
  };
  Prepare(std::move(request), responder, std::move(write), &Api::ParseJsonBody,
          [=](const GenerationJob&) { responder->Send(std::move(*response)); });
}

void Api::Begin(GenerationJob job, const std::string& path, ResponderPtr responder) {
  if (job.form) {
    grammar::Constraint form = *std::exchange(job.form, std::nullopt);
    const std::string field = job.form_field;
    const auto waiting = std::make_shared<GenerationJob>(std::move(job));
    return forms_.Compile(std::move(form), field, waiting->request.generated, responder,
                          [=, this](const ApiStatus& error, FormCompiler::GrammarPtr grammar,
                                    FormCompiler::MatcherPtr matcher) {
                            if (error) return responder->Send(ErrorFor(path, *error));
                            waiting->grammar = std::move(grammar);
                            waiting->matcher = std::move(matcher);
                            Begin(std::move(*waiting), path, responder);
                          });
  }
  std::make_shared<Generation>(session_, model_, metrics_, workers_, options_.answer_memory,
                               std::move(job), responder)
      ->Start();
}

void Api::EncodeMedia(std::shared_ptr<PendingRequest> pending, ResponderPtr responder,
                      const std::string& path, std::function<void()> then) {
  const std::shared_ptr<const std::atomic<bool>> is_cancelled = responder->gone_flag();
  MediaPool::Job job;
  job.is_cancelled = is_cancelled;
  pending->encoded.resize(pending->media.parts.size());
  for (size_t idx = 0; idx < pending->encoded.size(); ++idx) {
    job.steps.push_back({pending->pixels[idx], [=, this] {
                           MediaPart& part = pending->media.parts[idx];
                           const ApiStatus status = CatchAll([&] {
                             return EncodeRequestMedium(session_, part, pending->max_soft_tokens,
                                                        &pending->encoded[idx]);
                           });
                           part.file = {};
                           return status;
                         }});
  }
  const auto answer = [=, this](const ApiStatus& status) {
    Insist([&] {
      responder->Post([=, this] {
        if (status) return responder->Send(ErrorFor(path, *status));
        then();
      });
    });
  };
  job.done = [=, this](const ApiStatus& status) {
    if (*is_cancelled) return;
    if (status) return answer(status);
    Insist([&] { workers_.Post([=] { answer(CatchAll([&] { return pending->Finish(); })); }); });
  };
  if (const ApiStatus refused = media_->Post(std::move(job))) {
    responder->Send(ErrorFor(path, *refused));
  }
}

void Api::AnswerJson(HttpRequest request, ResponderPtr responder, Work<AnswerText> work) {
  OnWorker<HttpResponse>(
      std::move(request), responder,
      [this, work = std::move(work)](const OrderedJson& body, HttpResponse* response) -> ApiStatus {
        response->memory = std::make_shared<AnswerLease>(options_.answer_memory);
        AnswerText text(response->memory.get());
        RETURN_IF_API_ERROR(work(body, &text));
        if (!text.ok()) return text.Refusal();
        response->body = text.Take();
        return {};
      },
      [responder](HttpResponse response) { responder->Send(std::move(response)); });
}

void Api::Chat(HttpRequest request, ResponderPtr responder) {
  Generate(std::move(request), std::move(responder),
           [this](const OrderedJson& body, PendingRequest* pending) {
             return preparer_.PrepareChat(body, pending);
           });
}

void Api::Complete(HttpRequest request, ResponderPtr responder) {
  Generate(std::move(request), std::move(responder),
           [this](const OrderedJson& body, PendingRequest* pending) {
             return preparer_.PrepareCompletion(body, pending);
           });
}

void Api::GenerateTokens(HttpRequest request, ResponderPtr responder) {
  Generate(std::move(request), std::move(responder),
           [this](const OrderedJson& body, PendingRequest* pending) {
             return preparer_.PrepareGenerate(body, pending);
           });
}

void Api::RenderChat(HttpRequest request, ResponderPtr responder) {
  Render(
      std::move(request), std::move(responder),
      [this](const OrderedJson& body, PendingRequest* pending) {
        return preparer_.PrepareChat(body, pending);
      },
      /*as_list=*/false);
}

void Api::RenderTexts(HttpRequest request, ResponderPtr responder) {
  Render(
      std::move(request), std::move(responder),
      [this](const OrderedJson& body, PendingRequest* pending) {
        return preparer_.PrepareCompletion(body, pending);
      },
      /*as_list=*/true);
}

void Api::Responses(HttpRequest request, ResponderPtr responder) {
  const std::shared_ptr<ByteLease> memory = request.memory;
  Generate(std::move(request), std::move(responder),
           [this, memory](const OrderedJson& body, PendingRequest* pending) {
             return preparer_.PrepareResponse(body, memory, pending);
           });
}

void Api::GetResponse(HttpRequest request, ResponderPtr responder) {
  const auto stored = preparer_.responses().Get(NameInPath(request.path));
  if (stored == nullptr) return responder->Send(ErrorResponse(NoSuchResponse(request.path)));
  if (request.query.find("stream=true") != std::string::npos) {
    return responder->Send(ErrorResponse(BadRequest(
        "stream", "a response that is complete is not streamed again: leave out 'stream'")));
  }
  HttpResponse response;
  response.body = stored->response;
  responder->Send(std::move(response));
}

void Api::DeleteResponse(HttpRequest request, ResponderPtr responder) {
  const std::string id = NameInPath(request.path);
  if (!preparer_.responses().Remove(id)) {
    return responder->Send(ErrorResponse(NoSuchResponse(request.path)));
  }
  responder->Send(JsonResponse({{"id", id}, {"object", "response"}, {"deleted", true}}));
}

void Api::InputItems(HttpRequest request, ResponderPtr responder) {
  const auto stored = preparer_.responses().Get(NameInPath(request.path));
  if (stored == nullptr) return responder->Send(ErrorResponse(NoSuchResponse(request.path)));
  workers_.PostLong([=, query = request.query] {
    OrderedJson list;
    const ApiStatus error =
        CatchAll([&] { return ListInputItems(stored->input_items, query, &list); });
    HttpResponse response = error ? ErrorResponse(*error) : JsonResponse(list);
    responder->Post([responder, response = std::move(response)]() mutable {
      responder->Send(std::move(response));
    });
  });
}

void Api::InputTokens(HttpRequest request, ResponderPtr responder) {
  const std::shared_ptr<ByteLease> memory = request.memory;
  AnswerJson(
      std::move(request), std::move(responder),
      [this, memory](const OrderedJson& body, AnswerText* text) -> ApiStatus {
        size_t num_tokens = 0;
        RETURN_IF_API_ERROR(preparer_.CountResponse(body, memory, &num_tokens));
        text->Append(DumpJson({{"object", "response.input_tokens"}, {"input_tokens", num_tokens}}));
        return {};
      });
}

void Api::Embed(HttpRequest request, ResponderPtr responder) {
  ApiError error = BadRequest(
      /*param=*/"", "{} writes text and makes no embeddings: ask a server with an embedding model",
      model_.name());
  error.code = "not_supported";
  responder->Send(ErrorFor(request.path, error));
}

void Api::Messages(HttpRequest request, ResponderPtr responder) {
  Generate(std::move(request), std::move(responder),
           [this](const OrderedJson& body, PendingRequest* pending) {
             return preparer_.PrepareMessage(body, pending);
           });
}

void Api::Transcribe(HttpRequest request, ResponderPtr responder) {
  Generate(
      std::move(request), std::move(responder),
      [this](const OrderedJson& body, PendingRequest* pending) {
        return preparer_.PrepareTranscription(body, pending);
      },
      &Api::ParseTranscriptionBody);
}

void Api::OllamaTags(HttpRequest, ResponderPtr responder) {
  responder->Send(JsonResponse(lapidary::OllamaTags(session_, model_, created_)));
}

void Api::OllamaShow(HttpRequest request, ResponderPtr responder) {
  AnswerJson(std::move(request), std::move(responder),
             [this](const OrderedJson& body, AnswerText* text) -> ApiStatus {
               RequestFields fields(body);
               const std::string name = fields.String("model", fields.String("name", ""));
               RETURN_IF_API_ERROR(fields.status());
               RETURN_IF_API_ERROR(model_.CheckName(ServedOllamaName(model_, name)));
               text->Append(DumpJson(lapidary::OllamaShow(session_, model_, created_)));
               return {};
             });
}

void Api::OllamaChat(HttpRequest request, ResponderPtr responder) {
  Generate(std::move(request), std::move(responder),
           [this](const OrderedJson& body, PendingRequest* pending) {
             return preparer_.PrepareOllama(OllamaKind::kChat, body, pending);
           });
}

void Api::OllamaGenerate(HttpRequest request, ResponderPtr responder) {
  Generate(std::move(request), std::move(responder),
           [this](const OrderedJson& body, PendingRequest* pending) {
             return preparer_.PrepareOllama(OllamaKind::kGenerate, body, pending);
           });
}

void Api::Tokenize(HttpRequest request, ResponderPtr responder) {
  AnswerJson(
      std::move(request), std::move(responder),
      [this](const OrderedJson& body, AnswerText* text) { return TokenizeBody(body, text); });
}

void Api::Detokenize(HttpRequest request, ResponderPtr responder) {
  AnswerJson(
      std::move(request), std::move(responder),
      [this](const OrderedJson& body, AnswerText* text) { return DetokenizeBody(body, text); });
}

void Api::LoadLora(HttpRequest request, ResponderPtr responder) {
  AnswerJson(std::move(request), std::move(responder),
             [this](const OrderedJson& body, AnswerText* text) -> ApiStatus {
               std::string done;
               RETURN_IF_API_ERROR(LoadAdapter(body, model_, options_.runtime_adapters, &done));
               text->Append(DumpJson({{"message", done}}));
               return {};
             });
}

void Api::UnloadLora(HttpRequest request, ResponderPtr responder) {
  AnswerJson(std::move(request), std::move(responder),
             [this](const OrderedJson& body, AnswerText* text) -> ApiStatus {
               std::string done;
               RETURN_IF_API_ERROR(UnloadAdapter(body, model_, options_.runtime_adapters, &done));
               text->Append(DumpJson({{"message", done}}));
               return {};
             });
}

void Api::CountTokens(HttpRequest request, ResponderPtr responder) {
  AnswerJson(std::move(request), std::move(responder),
             [this](const OrderedJson& body, AnswerText* text) -> ApiStatus {
               size_t num_tokens = 0;
               RETURN_IF_API_ERROR(preparer_.CountMessage(body, &num_tokens));
               text->Append(DumpJson({{"input_tokens", num_tokens}}));
               return {};
             });
}

ApiStatus Api::TokenizeBody(const OrderedJson& json, AnswerText* answer) const {
  RequestFields fields(json);
  const std::string model = fields.String("model", "");
  const bool with_strings = fields.Bool("return_token_strs", false);
  const bool is_chat = fields.Find("messages") != nullptr;
  const bool add_bos = fields.Bool("add_special_tokens", !is_chat);
  ChatInput input;
  std::string text;
  if (is_chat) {
    RequestMedia media;
    ReadChatInput(&fields, &input, &media);
    if (!media.empty()) fields.Fail(NotSupportedYet(media.parts[0].where));
    ReadThinking(&fields, &input);
  } else if (fields.Find("prompt") != nullptr) {
    text = fields.String("prompt", "");
  } else {
    fields.Fail(BadRequest("prompt", "'prompt' or 'messages' is missing"));
  }
  RETURN_IF_API_ERROR(fields.status());
  LogUnknownFields(fields);
  RETURN_IF_API_ERROR(model_.CheckName(model));
  ChatPrompt prompt;
  if (is_chat) {
    RETURN_IF_API_ERROR(model_.Prepare(input, &prompt));
  } else if (add_bos || !text.empty()) {
    RETURN_IF_API_ERROR(model_.Prepare(RawPrompt(text), add_bos, &prompt));
  }
  // Written token by token: a tree would take several times the text.
  const auto write_list = [&](const auto& text_of) {
    answer->Append("[");
    for (size_t idx = 0; idx < prompt.ids.size() && answer->ok(); ++idx) {
      if (idx > 0) answer->Append(",");
      answer->Append(text_of(prompt.ids[idx]));
    }
    answer->Append("]");
  };
  answer->Append(fmt::format("{{\"count\":{},\"max_model_len\":{},\"tokens\":", prompt.ids.size(),
                             model_.max_model_len()));
  write_list([](int32_t id) { return std::to_string(id); });
  answer->Append(",\"token_strs\":");
  if (with_strings) {
    write_list([&](int32_t id) { return DumpJson(model_.tokenizer().IdToPiece(id).value_or("")); });
  } else {
    answer->Append("null");
  }
  answer->Append("}");
  return {};
}

ApiStatus Api::DetokenizeBody(const OrderedJson& json, AnswerText* answer) const {
  RequestFields fields(json);
  const std::string model = fields.String("model", "");
  if (fields.Find("tokens") == nullptr) {
    fields.Fail(BadRequest("tokens", "'tokens' is missing"));
  }
  const std::vector<int32_t> ids = fields.Ids("tokens");
  RETURN_IF_API_ERROR(fields.status());
  LogUnknownFields(fields);
  RETURN_IF_API_ERROR(model_.CheckName(model));
  const auto text = model_.tokenizer().Decode(ids, /*skip_special=*/false);
  if (!text.ok()) return BadRequest("tokens", "{}", text.error().message);
  answer->Append(DumpJson({{"prompt", *text}}));
  return {};
}

}  // namespace lapidary
