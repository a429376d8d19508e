#include "bench/target_server.h"

#include <algorithm>
#include <thread>

namespace lapidary::bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::seconds kQuestionTimeout{30};  // for what a server answers at once
constexpr std::chrono::milliseconds kRetryAfter{500};

}  // namespace

Result<ServerInfo> ReadModels(std::string_view body) {
  ASSIGN_OR_RETURN(const Json json, ParseJson(body, "/v1/models"));
  const Json* models = json.is_object() && json.contains("data") ? &json["data"] : nullptr;
  if (models == nullptr || !models->is_array() || models->empty() || !models->front().is_object()) {
    return MakeError("/v1/models lists no model");
  }
  const Json& model = models->front();
  ServerInfo info;
  if (model.contains("id") && model["id"].is_string()) info.model = model["id"];
  if (model.contains("meta") && model["meta"].is_object()) {
    const Json& meta = model["meta"];
    if (meta.contains("n_vocab") && meta["n_vocab"].is_number_unsigned()) {
      info.vocab_size =
          static_cast<int>(std::min(meta["n_vocab"].get<uint64_t>(), uint64_t{1} << 30));
    }
  }
  return info;
}

TargetServer::TargetServer(HttpClient client,
                           std::vector<std::pair<std::string, std::string>> headers)
    : client_(std::move(client)), headers_(std::move(headers)) {}

Result<ServerInfo> TargetServer::WaitForInfo(std::chrono::seconds timeout) const {
  const Clock::time_point deadline = Clock::now() + timeout;
  while (true) {
    HttpCall call;
    call.method = "GET";
    call.path = "/v1/models";
    call.headers = headers_;
    call.idle_timeout = kQuestionTimeout;
    const auto answer = client_.SendAndWait(std::move(call));
    if (answer.ok() && answer->status == 200) return ReadModels(answer->body);
    const std::string problem = answer.ok()
                                    ? fmt::format("HTTP {} {}: {}", answer->status, answer->reason,
                                                  ErrorMessage(answer->body))
                                    : answer.error().message;
    const bool may_come =
        answer.ok() ? answer->status == 503 : answer.error().kind == ErrorKind::kBusy;
    if (!may_come || Clock::now() + kRetryAfter > deadline) {
      return MakeError("{} does not answer /v1/models: {}", client_.url().Origin(), problem);
    }
    std::this_thread::sleep_for(kRetryAfter);
  }
}

Result<std::string> TargetServer::Detokenize(const std::vector<int32_t>& ids) const {
  HttpCall call;
  call.method = "POST";
  call.path = "/detokenize";
  call.headers = headers_;
  call.idle_timeout = kQuestionTimeout;
  call.body = Json{{"tokens", ids}}.dump();
  const auto answer = client_.SendAndWait(std::move(call));
  if (answer.ok() && answer->status == 200) {
    ASSIGN_OR_RETURN(const Json json, ParseJson(answer->body, "/detokenize"));
    for (const char* name : {"prompt", "content"}) {  // vLLM's name and ours; llama.cpp's
      if (json.is_object() && json.contains(name) && json[name].is_string()) {
        return json[name].get<std::string>();
      }
    }
  }
  return MakeError(
      "chat needs prompts as text, and the server does not turn ids into text (POST /detokenize): "
      "measure /v1/completions instead");
}

Result<int> TargetServer::CountTokens(const std::string& text) const {
  HttpCall call;
  call.method = "POST";
  call.path = "/tokenize";
  call.headers = headers_;
  call.idle_timeout = kQuestionTimeout;
  // vLLM's name and ours; llama.cpp's.
  call.body = Json{{"prompt", text}, {"content", text}, {"add_special_tokens", false}}.dump(
      -1, ' ', false, Json::error_handler_t::replace);
  const auto answer = client_.SendAndWait(std::move(call));
  if (answer.ok() && answer->status == 200) {
    ASSIGN_OR_RETURN(const Json json, ParseJson(answer->body, "/tokenize"));
    if (json.is_object() && json.contains("tokens") && json["tokens"].is_array()) {
      return static_cast<int>(json["tokens"].size());
    }
  }
  return MakeError(
      "the server does not count the tokens of a text (POST /tokenize): give "
      "--sharegpt-output-len");
}

Result<LoadRequest> TargetServer::MakeRequest(const RequestForm& form,
                                              const BenchPrompt& prompt) const {
  Json body = {{"model", form.model},
               {"stream", true},
               {"stream_options", {{"include_usage", true}, {"continuous_usage_stats", true}}}};
  if (form.is_chat) {
    std::string text = prompt.text;
    if (text.empty()) {
      ASSIGN_OR_RETURN(text, Detokenize(prompt.ids));
    }
    body["messages"] = Json::array({{{"role", "user"}, {"content", text}}});
    body["max_completion_tokens"] = prompt.output_len;
  } else {
    body["prompt"] = prompt.text.empty() ? Json(prompt.ids) : Json(prompt.text);
    body["max_tokens"] = prompt.output_len;
  }
  if (form.ignore_eos) body["ignore_eos"] = true;
  body.update(form.extra);
  LoadRequest request;
  request.call.method = "POST";
  request.call.path = form.endpoint;
  request.call.body = body.dump(-1, ' ', false, Json::error_handler_t::replace);
  request.call.headers = form.headers;
  request.call.idle_timeout = form.idle_timeout;
  request.prompt_tokens = std::ssize(prompt.ids);
  return request;
}

}  // namespace lapidary::bench
