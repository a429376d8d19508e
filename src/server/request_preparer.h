// From a request's JSON to what is generated: parsed, checked, rendered and tokenised, its
// constraint looked up; then, once its media are encoded elsewhere (media_pool.h), placed. All of
// it may take long.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "server/byte_budget.h"
#include "server/generation.h"
#include "server/media_parts.h"
#include "server/ollama_request.h"
#include "server/response_json.h"
#include "server/response_store.h"
#include "server/responses_request.h"
#include "server/served_model.h"

namespace lapidary {

// A request between its parsing and its answer.
struct PendingRequest {
  GenerationJob job;
  RequestMedia media;                  // to be encoded
  int max_soft_tokens = 0;             // of images whose parts say nothing
  std::vector<int64_t> pixels;         // of each part, see MeasureRequestMedia
  std::vector<EncodedMedium> encoded;  // each part's
  double audio_seconds = 0.0;          // of all sounds, known once they are placed

  // What is left to do then, in this order.
  std::vector<std::function<ApiStatus(PendingRequest*)>> rest;
  // Set: what is answered without a model having to say anything.
  std::optional<HttpResponse> ready;
  ApiStatus Finish() {
    for (const auto& step : rest) RETURN_IF_API_ERROR(step(this));
    rest.clear();
    return {};
  }
};

// From any thread. References must outlive this and what it prepares.
class RequestPreparer {
 public:
  RequestPreparer(Session& session, const ServedModel& model);

  // What an API demands of the chats that its requests are translated to.
  enum class Limit {
    kAsAsked,  // more tokens than the context leaves are refused,
    kClamped   // or are as many as it leaves
  };
  ApiStatus PrepareChat(const OrderedJson& body, PendingRequest* pending,
                        Limit limit = Limit::kAsAsked) const;
  ApiStatus PrepareCompletion(const OrderedJson& body, PendingRequest* pending) const;
  ApiStatus PrepareGenerate(const OrderedJson& body, PendingRequest* pending) const;
  // Of `memory`, what an answer is stored with stays taken while it is made.
  ApiStatus PrepareResponse(const OrderedJson& body, const std::shared_ptr<ByteLease>& memory,
                            PendingRequest* pending) const;
  ApiStatus PrepareMessage(const OrderedJson& body, PendingRequest* pending) const;
  ApiStatus PrepareOllama(OllamaKind kind, const OrderedJson& body, PendingRequest* pending) const;
  // `body` as TranscriptionToChat makes it.
  ApiStatus PrepareTranscription(const OrderedJson& body, PendingRequest* pending) const;

  // Tokens of the prompt that a request for a response, or for a message, leads to.
  ApiStatus CountResponse(const OrderedJson& body, const std::shared_ptr<ByteLease>& memory,
                          size_t* num_tokens) const;
  ApiStatus CountMessage(const OrderedJson& body, size_t* num_tokens) const;

  ResponseStore& responses() const { return *responses_; }
  // Of conversations that can be gone on from.
  size_t num_stored_bytes() const { return responses_->num_bytes(); }

 private:
  // A request for a response as one for a chat, behind the conversation that it goes on with.
  ApiStatus TranslateResponse(const OrderedJson& body, const std::shared_ptr<ByteLease>& memory,
                              OrderedJson* chat, size_t* num_instructions,
                              ResponsesExtras* extras) const;
  ApiStatus CountChat(const OrderedJson& chat, size_t* num_tokens) const;
  ApiStatus FinishChat(ChatRequest& request, ChatPrompt& prepared, PendingRequest* pending) const;
  ApiStatus PrepareTexts(CompletionRequest& request, ApiKind kind, const char* prompt_field,
                         PendingRequest* pending) const;
  ApiStatus CheckGeneration(const GenerationRequest& request) const;
  // Fills the job but for its format and echoes. `prompt_field`: the field that the prompts came
  // from.
  ApiStatus FillJob(GenerationRequest request, const ChatRules* chat,
                    std::vector<PreparedPrompt> prompts, const char* prompt_field,
                    GenerationJob* job) const;
  RequestContext context() const;

  Session& session_;
  const ServedModel& model_;
  // Shared with answers that are stored when they end.
  const std::shared_ptr<ResponseStore> responses_;
};

}  // namespace lapidary
