// The server under measurement: what it serves, and requests in the form it takes. Only what ours,
// llama.cpp's and vLLM's have in common is relied on.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "base/json_fields.h"
#include "bench/http_client.h"
#include "bench/load_generator.h"
#include "bench/random_prompts.h"

namespace lapidary::bench {

struct ServerInfo {
  std::string model;              // the first one it lists
  std::optional<int> vocab_size;  // meta.n_vocab, where llama.cpp and we put it
};

struct RequestForm {
  std::string endpoint = "/v1/completions";
  bool is_chat = false;
  std::string model;
  bool ignore_eos = true;
  Json extra = Json::object();  // members put over the others
  std::vector<std::pair<std::string, std::string>> headers;
  std::chrono::milliseconds idle_timeout{std::chrono::hours(6)};
};

class TargetServer {
 public:
  TargetServer(HttpClient client, std::vector<std::pair<std::string, std::string>> headers);

  const HttpClient& client() const { return client_; }

  Status Resolve() { return client_.Resolve(); }
  // Asks GET /v1/models until it is answered; a server that is not there yet, or answers 503
  // because it is loading, is asked again until `timeout` is over.
  Result<ServerInfo> WaitForInfo(std::chrono::seconds timeout) const;

  // The text of ids, which chat needs: POST /detokenize.
  Result<std::string> Detokenize(const std::vector<int32_t>& ids) const;

  // How many tokens a text has: POST /tokenize.
  Result<int> CountTokens(const std::string& text) const;

  // A request for a streamed completion of the ids, or of their text.
  Result<LoadRequest> MakeRequest(const RequestForm& form, const BenchPrompt& prompt) const;

 private:
  HttpClient client_;
  std::vector<std::pair<std::string, std::string>> headers_;
};

// What GET /v1/models answered.
Result<ServerInfo> ReadModels(std::string_view body);

}  // namespace lapidary::bench
