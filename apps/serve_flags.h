// What `lapidary serve` can be told, and where it is read from: the command line, the environment,
// a config file.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "apps/device_flag.h"
#include "apps/draft_flags.h"
#include "apps/load_flags.h"
#include "apps/lora_serving_flags.h"
#include "apps/media_flags.h"
#include "apps/simulation_flags.h"
#include "server/api.h"
#include "server/http_server.h"
#include "session/session.h"

namespace lapidary {

struct ServeFlags {
  std::string config;
  std::string model;
  std::string hf_repo;
  std::vector<std::string> served_model_names;
  bool takes_any_name = false;  // --served-model-name '*'
  LoadFlags load;
  DeviceRequest device = DeviceRequest::kAuto;
  SimulationFlags simulation;
  DraftFlags drafting;
  std::string tokenizer;
  std::string allowed_local_media_path;
  std::vector<std::string> allowed_media_domains;
  std::string limit_mm_per_prompt = kDefaultMediaLimits;
  bool strict_tools = false;
  size_t max_grammar_memory = kDefaultGrammarBytes;
  std::string scheduling_policy = "fcfs";
  LoraServingFlags lora;
  BatchLimits limits;
  std::optional<double> max_step_ms;
  int max_queue = 1024;
  int64_t kv_cache_memory_bytes = 0;
  bool no_prefix_caching = false;
  bool no_overlap = false;
  bool check_kv = false;
  std::vector<std::string> api_keys;
  std::string api_key_file;
  std::vector<std::string> mcp_servers;
  std::string metrics_prefix = "lapidary";
  std::string otlp_traces_endpoint;
  std::string kv_events_config;
  bool expert_counts = false;
  std::string access_log = "text";
  std::string log_level = "info";
  double comment_interval = 15.0;
  double drain_delay = 0.0;
  double shutdown_timeout = 30.0;
  double idle_timeout = 120.0;
  double request_timeout = 30.0;
  double write_timeout = 30.0;
  std::optional<size_t> max_body_bytes;
  size_t max_media_bytes = size_t{32} << 20;
  int64_t max_media_pixels = RequestMediaLimits().max_pixels;
  int64_t max_queued_media_pixels = MediaPool::Limits().max_waiting_pixels;
  std::optional<size_t> max_request_memory;
  std::optional<size_t> max_answer_memory;
  HttpOptions http;

  // `--served-model-name a b MODEL`: the list takes all that follows it, the model too.
  void TakeModelFromNames();

  // The same of `--lora-modules a=DIR MODEL`.
  void TakeModelFromAdapters();

  // After the command line, and before the config file.
  void TakeModelFromEnvironment();

  void TakeWildcardFromNames() { takes_any_name = std::erase(served_model_names, "*") > 0; }
};

// Adds all flags to the command, each with its variable of the environment.
void AddServeOptions(CLI::App& command, ServeFlags& flags);

// What the command line leaves out: the environment, then the config file.
Status TakeOtherSources(ServeFlags& flags, CLI::App& command);

}  // namespace lapidary
