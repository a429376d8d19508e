// The seam between HTTP and the API: neither side sees the other's libraries.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "server/answer_memory.h"
#include "server/api_error.h"
#include "server/byte_budget.h"

namespace lapidary {

struct HttpRequest {
  std::string method;
  std::string path;                // without the query
  std::string query;               // behind the question mark
  std::string authorization;       // the header, as sent
  std::string if_none_match;       // the same
  std::string api_key;             // the header x-api-key, which Anthropic's clients send
  std::string data_parallel_rank;  // X-data-parallel-rank, as sent
  std::string asked_headers;       // of a preflight: Access-Control-Request-Headers
  std::string body;
  std::shared_ptr<ByteLease> memory;  // what the body takes, and what is made of it
};

// What is told about a request when it is over.
struct AccessRecord {
  // The way through the engine of the first answer that was asked for.
  struct Run {
    double queue_ms = 0.0;
    double prefill_ms = 0.0;
    double decode_ms = 0.0;
    int64_t end_nanoseconds = 0;  // since 1970
  };
  std::string id;  // X-Request-Id, the client's or ours
  std::string method;
  std::string path;
  std::string client;       // its address
  std::string model;        // as it was asked for; empty: none was, or it was not read
  std::string traceparent;  // W3C trace context, as sent
  int status = 0;           // 0: the client left before there was an answer
  std::string error_code;   // as in the error's JSON
  bool is_complete = false;
  double seconds = 0.0;
  int64_t prompt_tokens = 0;
  int64_t completion_tokens = 0;
  std::optional<Run> run = {};
};

struct HttpResponse {
  int status = 200;
  std::string content_type = "application/json";
  std::string body;
  std::vector<std::pair<std::string, std::string>> headers;  // further ones
  std::string error_code;                                    // for the log and the metrics
  std::shared_ptr<AnswerLease> memory = {};  // what the body takes, until it is sent
};

HttpResponse JsonResponse(const OrderedJson& json);
HttpResponse ErrorResponse(const ApiError& error);

// How the events of a stream are written.
enum class StreamFraming {
  kServerSentEvents,
  kJsonLines  // the data of each is a line
};

// One client's place for one response. All but Post must be called on the client's strand, which is
// where the handler is called and where Post runs its tasks, one at a time.
class Responder {
 public:
  virtual ~Responder() = default;

  // From any thread. The task also runs when the client has gone; what it throws ends the request
  // with an error. std::bad_alloc: it was not posted.
  virtual void Post(std::function<void()> task) = 0;

  // The whole response at once,
  virtual void Send(HttpResponse response) = 0;
  // or a stream of events: BeginEvents, SendEvent..., EndEvents.
  virtual void BeginEvents(StreamFraming framing) = 0;
  // Neither has line breaks; an event may be without a name, and a line always is.
  virtual void SendEvent(std::string_view name, std::string_view data) = 0;
  virtual void EndEvents() = 0;

  // Nobody will read the response any more; sending is harmless then.
  virtual bool gone() const = 0;
  // The same of this request, for any thread.
  virtual std::shared_ptr<const std::atomic<bool>> gone_flag() const = 0;
  // Calls once if the response cannot be completed: with nothing if the client has gone, else with
  // what it is to be told instead, now.
  virtual void OnCutShort(std::function<void(const ApiStatus& why)> callback) = 0;

  // For whoever knows more about the answer than its bytes.
  virtual AccessRecord& access() = 0;
};

class HttpHandler {
 public:
  virtual ~HttpHandler() = default;
  // Decides by the head alone, before a body is read. `request.body` is empty.
  virtual ApiStatus CheckHead(const HttpRequest& request) = 0;
  // Answers through `responder`, now or later, exactly once.
  virtual void Handle(HttpRequest request, std::shared_ptr<Responder> responder) = 0;
  // How clients of that path are told of an error.
  virtual HttpResponse ErrorFor(const std::string& path, const ApiError& error) const = 0;
  // A signal has come: the server will end, after its drain delay.
  virtual void OnLeaving() {}
  // A request is over, answered or not.
  virtual void OnDone(const AccessRecord& access) = 0;
};

}  // namespace lapidary
