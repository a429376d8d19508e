// The endpoints: OpenAI's, and vLLM's around them.
#pragma once

#include <atomic>
#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "server/adapter_requests.h"
#include "server/body_limits.h"
#include "server/chat_page.h"
#include "server/form_compiler.h"
#include "server/generation.h"
#include "server/http_types.h"
#include "server/media_pool.h"
#include "server/metrics.h"
#include "server/request_media.h"
#include "server/request_preparer.h"
#include "server/served_model.h"
#include "server/trace_exporter.h"
#include "server/worker_pool.h"

namespace lapidary {

enum class AccessLog { kOff, kText, kJson };

struct ApiOptions {
  // Without keys everybody may ask; with keys only /health, /ready, the chat page and its preview
  // are open.
  std::vector<std::string> api_keys = {};
  AccessLog access_log = AccessLog::kOff;
  std::vector<std::string> mcp_servers = {};  // that the chat page may call, see CheckMcpServers
  BodyLimits body_limits = {};
  RequestMediaLimits media = {};
  int64_t max_queued_media_pixels = MediaPool::Limits().max_waiting_pixels;
  RuntimeAdapters runtime_adapters = {};
  TraceExporter* traces = nullptr;  // null: nobody is told of spans; must outlive the Api
  // Those of the HTTP server (HttpOptions).
  std::shared_ptr<ByteBudget> request_memory = std::make_shared<ByteBudget>(size_t{512} << 20);
  std::shared_ptr<AnswerMemory> answer_memory = std::make_shared<AnswerMemory>(size_t{512} << 20);
};

class Api final : public HttpHandler {
 public:
  // References must outlive this.
  Api(Session& session, const ServedModel& model, ServerMetrics& metrics, ApiOptions options = {});
  ~Api() override;

  ApiStatus CheckHead(const HttpRequest& request) override;
  void Handle(HttpRequest request, std::shared_ptr<Responder> responder) override;
  HttpResponse ErrorFor(const std::string& path, const ApiError& error) const override;
  void OnDone(const AccessRecord& access) override;
  void OnLeaving() override { is_leaving_ = true; }

 private:
  using ResponderPtr = std::shared_ptr<Responder>;
  using Endpoint = void (Api::*)(HttpRequest, ResponderPtr);
  struct Route {
    const char* method;
    const char* path;
    Endpoint endpoint;
  };
  static const std::vector<Route>& Routes();

  bool IsAuthorized(const HttpRequest& request) const;

  void Page(HttpRequest request, ResponderPtr responder);
  void Preview(HttpRequest request, ResponderPtr responder);
  void Health(HttpRequest request, ResponderPtr responder);
  void Ready(HttpRequest request, ResponderPtr responder);
  void Version(HttpRequest request, ResponderPtr responder);
  void OpenApi(HttpRequest request, ResponderPtr responder);
  void Models(HttpRequest request, ResponderPtr responder);
  void Model(HttpRequest request, ResponderPtr responder);
  void Metrics(HttpRequest request, ResponderPtr responder);
  void Chat(HttpRequest request, ResponderPtr responder);
  void Complete(HttpRequest request, ResponderPtr responder);
  void GenerateTokens(HttpRequest request, ResponderPtr responder);
  void RenderChat(HttpRequest request, ResponderPtr responder);
  void RenderTexts(HttpRequest request, ResponderPtr responder);
  void Responses(HttpRequest request, ResponderPtr responder);
  void GetResponse(HttpRequest request, ResponderPtr responder);
  void DeleteResponse(HttpRequest request, ResponderPtr responder);
  void InputItems(HttpRequest request, ResponderPtr responder);
  void InputTokens(HttpRequest request, ResponderPtr responder);
  void Embed(HttpRequest request, ResponderPtr responder);
  void Messages(HttpRequest request, ResponderPtr responder);
  void CountTokens(HttpRequest request, ResponderPtr responder);
  void Transcribe(HttpRequest request, ResponderPtr responder);
  void OllamaTags(HttpRequest request, ResponderPtr responder);
  void OllamaShow(HttpRequest request, ResponderPtr responder);
  void OllamaChat(HttpRequest request, ResponderPtr responder);
  void OllamaGenerate(HttpRequest request, ResponderPtr responder);
  void Tokenize(HttpRequest request, ResponderPtr responder);
  void Detokenize(HttpRequest request, ResponderPtr responder);
  void LoadLora(HttpRequest request, ResponderPtr responder);
  void UnloadLora(HttpRequest request, ResponderPtr responder);

  // Runs `work` on a worker and then, on the responder's strand, sends its error or goes on with
  // `then`.
  template <typename T>
  using Work = std::function<ApiStatus(const OrderedJson& body, T* result)>;
  using ParseBody = ApiStatus (Api::*)(const HttpRequest& request, OrderedJson* body) const;
  ApiStatus ParseJsonBody(const HttpRequest& request, OrderedJson* body) const;
  ApiStatus ParseTranscriptionBody(const HttpRequest& request, OrderedJson* body) const;
  template <typename T>
  void OnWorker(HttpRequest request, ResponderPtr responder, Work<T> work,
                std::function<void(T)> then, ParseBody parse = &Api::ParseJsonBody);
  // Prepares a request's job from its body, then goes on with it.
  void Prepare(HttpRequest request, ResponderPtr responder, Work<PendingRequest> prepare,
               ParseBody parse, std::function<void(GenerationJob)> go_on);
  // The same, and its prompts are the answer.
  void Render(HttpRequest request, ResponderPtr responder, Work<PendingRequest> prepare,
              bool as_list);
  // The same, and it is run.
  void Generate(HttpRequest request, ResponderPtr responder, Work<PendingRequest> prepare,
                ParseBody parse = &Api::ParseJsonBody);
  // Compiles what it still has to, then begins.
  void Begin(GenerationJob job, const std::string& path, ResponderPtr responder);
  // Encodes its media and finishes it, then goes on with `then` as OnWorker does.
  void EncodeMedia(std::shared_ptr<PendingRequest> pending, ResponderPtr responder,
                   const std::string& path, std::function<void()> then);
  void AnswerJson(HttpRequest request, ResponderPtr responder, Work<AnswerText> work);

  ApiStatus TokenizeBody(const OrderedJson& json, AnswerText* answer) const;
  ApiStatus DetokenizeBody(const OrderedJson& json, AnswerText* answer) const;
  OrderedJson ModelJson(const std::string& name) const;
  OrderedJson AdapterJson(const AdapterTable::Entry& adapter) const;

  Session& session_;
  const ServedModel& model_;
  ServerMetrics& metrics_;
  const ApiOptions options_;
  const ChatPage chat_page_;
  const int64_t created_;
  const RequestPreparer preparer_;
  // For requests that name files on other hosts, which may let them wait; there if any may be
  // asked.
  std::optional<WorkerPool> fetchers_;
  std::optional<MediaPool>
      media_;  // there if the model takes any; posts to workers_, as they to it
  WorkerPool workers_;
  FormCompiler forms_;
  std::atomic<bool> is_leaving_{false};
};

}  // namespace lapidary
