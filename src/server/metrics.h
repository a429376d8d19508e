// What Prometheus scrapes. Names are vLLM's behind our own prefix, so dashboards carry over.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "engine/engine.h"
#include "model/weight_table.h"
#include "server/answer_memory.h"
#include "server/media_pool.h"
#include "session/constraint_compiler.h"

namespace lapidary {

class AdapterTable;
class ExpertCounts;
class MediaEncoder;

// Every method may be called from many threads at once.
class ServerMetrics {
 public:
  // All must outlive this; no encoder: the model takes no media.
  ServerMetrics(const std::string& prefix, const std::string& model_name, const Engine& engine,
                const MediaEncoder* encoder = nullptr, const ExpertCounts* expert_counts = nullptr,
                std::function<GrammarStats()> grammar_stats = {});
  ~ServerMetrics();

  void AddFirstToken(double seconds_since_arrival);
  void AddInterTokenLatency(double seconds);
  void AddTokens(size_t num_tokens);
  // `reason`: "stop", "length", "tool_calls", "abort" or "error".
  void AddFinished(const std::string& reason, const RequestUsage& usage,
                   const RequestTimings& timings, double seconds_since_arrival);

  // An HTTP response: of which endpoint, its status (0: the client left first), the error's code.
  void AddResponse(const std::string& path, int status, const std::string& error_code);

  // The formats of the weights, once they are loaded.
  void SetWeights(const std::vector<WeightRow>& rows);

  // What media wait, as of now.
  void SetMediaQueue(const MediaPool::Stats& stats);

  // What requests, stored conversations and answers take of their memory, as of now.
  // vLLM's gauge of which adapters run and wait, and requests of each.
  void SetAdapters(const AdapterTable& adapters);
  void SetMemory(size_t request_bytes, size_t stored_bytes, const AnswerMemory::Stats& answers);

  // Prometheus' text format.
  std::string Serialize();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lapidary
