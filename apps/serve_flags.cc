#include "apps/serve_flags.h"

#include <cctype>
#include <cstdlib>
#include <filesystem>

#include "apps/config_file.h"
#include "apps/constraint_flags.h"
#include "apps/named_models.h"
#include "apps/size_words.h"
#include "session/bundled_models.h"

namespace lapidary {

void ServeFlags::TakeModelFromNames() {
  if (!model.empty() || !hf_repo.empty() || served_model_names.size() < 2) return;
  std::string last = served_model_names.back();
  ResolveBundled(&last);
  std::error_code error;
  if (!std::filesystem::exists(last, error) && !IsHubName(last)) return;
  model = std::move(last);
  served_model_names.pop_back();
}

void ServeFlags::TakeModelFromAdapters() {
  if (!model.empty() || !hf_repo.empty() || lora.modules.empty()) return;
  const std::string& last = lora.modules.back();
  if (last.starts_with('{') || last.find('=') != std::string::npos) return;
  model = last;
  lora.modules.pop_back();
}

void ServeFlags::TakeModelFromEnvironment() {
  const char* named = std::getenv("LAPIDARY_MODEL");
  if (model.empty() && hf_repo.empty() && named != nullptr) model = named;
}

namespace {

// "--max-model-len" is also LAPIDARY_MAX_MODEL_LEN.
CLI::Option* WithVariable(CLI::Option* option) {
  std::string name = "LAPIDARY_" + option->get_lnames().at(0);
  for (char& c : name) c = c == '-' ? '_' : static_cast<char>(std::toupper(c));
  return option->envname(name);
}

void AddModelFlags(CLI::App& command, ServeFlags& flags) {
  command.add_option("model", flags.model, kDefaultModelHelp);  // or in the config file
  const auto add = [&](const char* name, auto& value, const char* help) {
    return WithVariable(command.add_option(name, value, help))->group("Model");
  };
  add("--hf-repo", flags.hf_repo, kHubFlagHelp);
  add("--served-model-name", flags.served_model_names,
      "Names requests may use, the first is in answers; '*': any (default: the model's directory, "
      "or what it is called on the Hub)")
      ->delimiter(',');
  add("--max-model-len", flags.limits.max_model_len,
      "Most tokens of a prompt and its answer (default: the model's, at most 8192 on the CPU)")
      ->transform(SizeWords())
      ->check(CLI::Range(2, 1 << 28));
  add("--limit-mm-per-prompt", flags.limit_mm_per_prompt,
      "Most images, sounds and videos of a prompt, as JSON; towers of what is 0 are not loaded")
      ->capture_default_str();
  add("--allowed-local-media-path", flags.allowed_local_media_path,
      "Directory of images and sounds that requests may name as file:///PATH (default: none)")
      ->check(CLI::ExistingDirectory);
  add("--allowed-media-domains", flags.allowed_media_domains,
      "Hosts that images and sounds may be fetched from by http(s) URLs: example.com, "
      "example.com:8080; private addresses only if named themselves (default: none)")
      ->delimiter(',');
  add("--tokenizer", flags.tokenizer,
      "Directory with tokenizer.json and the chat template (default: the model's)");
  WithVariable(
      command.add_flag("--strict-tools", flags.strict_tools,
                       "Tool calls always fit their schemas, as if every tool were strict"))
      ->group("Model");
  WithVariable(AddDeviceFlagWithSimulation(&command, &flags.device))->group("Model");
  for (CLI::Option* option : flags.simulation.AddTo(command)) WithVariable(option);
  for (CLI::Option* option : flags.load.AddTo(command)) WithVariable(option);
  for (CLI::Option* option : flags.drafting.AddTo(command)) WithVariable(option);
  for (CLI::Option* option : flags.lora.AddTo(command)) WithVariable(option);
}

void AddSchedulerFlags(CLI::App& command, ServeFlags& flags) {
  const auto add = [&](const char* name, auto& value, const char* help) {
    return WithVariable(command.add_option(name, value, help))->group("Scheduling and memory");
  };
  add("--max-num-seqs", flags.limits.max_num_seqs,
      "Most sequences that run at once (default: 64, on a GPU 256)")
      ->check(CLI::Range(1, 65536));
  add("--max-num-batched-tokens", flags.limits.max_num_batched_tokens,
      "Most tokens of one step (default: 512, on a GPU 2048, with experts 8192)")
      ->transform(SizeWords())
      ->check(CLI::Range(1, 1 << 20));
  add("--max-step-ms", flags.max_step_ms,
      "Longest step that running answers wait for while prompts are computed; 0: any (default: "
      "2.5 times what a step takes without prompts, at least 100, on a GPU 15). On the CPU "
      "a step of prompts alone takes at most that, or 80 if that is less")
      ->check(CLI::Range(0.0, 3600e3));
  add("--max-queue", flags.max_queue, "Most sequences that wait; beyond, requests get a 503")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  add("--scheduling-policy", flags.scheduling_policy,
      "fcfs: in order of arrival; priority: requests may say theirs, the lower the earlier")
      ->check(CLI::IsMember({"fcfs", "priority"}))
      ->capture_default_str();
  add("--kv-cache-memory-bytes", flags.kv_cache_memory_bytes,
      "Memory for the KV cache (default: --max-num-seqs full contexts, at most a quarter of RAM; "
      "on a GPU what --gpu-memory-utilization or --gpu-memory leaves)")
      ->transform(SizeWords())
      ->check(CLI::PositiveNumber);
  WithVariable(command.add_flag("--no-enable-prefix-caching", flags.no_prefix_caching,
                                "Compute every prompt from its start"))
      ->group("Scheduling and memory");
  WithVariable(command.add_flag("--no-overlap", flags.no_overlap,
                                "Plan a step only when the last one is done (for debugging)"))
      ->group("Scheduling and memory");
  WithVariable(
      command.add_flag("--check-kv", flags.check_kv,
                       "Verify every page and length before a step runs; a violation fails "
                       "that step's requests and writes lapidary-kv-violation.json"))
      ->group("Scheduling and memory");
}

void AddHttpFlags(CLI::App& command, ServeFlags& flags) {
  const auto add = [&](const char* name, auto& value, const char* help) {
    return WithVariable(command.add_option(name, value, help))->group("HTTP");
  };
  add("--host", flags.http.host, "Address to listen on; 0.0.0.0 for all")->capture_default_str();
  add("--port", flags.http.port, "Port; 0: any free one")
      ->check(CLI::Range(0, 65535))
      ->capture_default_str();
  add("--api-key", flags.api_keys,
      "Key that clients must send, may be repeated; /health, /ready and the chat page stay open")
      ->allow_extra_args(false);
  add("--api-key-file", flags.api_key_file, "The same from a file, one per line");
  add("--allowed-origins", flags.http.allowed_origins,
      "Web origins whose pages may use the server, * for any (default: its own chat page)")
      ->allow_extra_args(false)
      ->delimiter(',');
  add("--allowed-hosts", flags.http.allowed_hosts,
      "Names that clients may call the server by, * for any (default: those of this machine on "
      "127.0.0.1, any on other addresses)")
      ->allow_extra_args(false)
      ->delimiter(',');
  add("--mcp-servers", flags.mcp_servers,
      "MCP servers (streamable HTTP) whose tools users may switch on in the chat page; their "
      "browsers call them (default: none)")
      ->allow_extra_args(false)
      ->delimiter(',');
  add("--ssl-certfile", flags.http.tls.certfile,
      "Serve HTTPS (TLS 1.2 and newer) with this PEM file");
  add("--ssl-keyfile", flags.http.tls.keyfile,
      "The certificate's key (default: in --ssl-certfile)");
  add("--ssl-keyfile-password", flags.http.tls.keyfile_password,
      "Of an encrypted key; the environment hides it better than the command line");
  add("--max-connections", flags.http.max_connections, "Most clients at once")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  add("--max-body-bytes", flags.max_body_bytes,
      "Largest request, without its images and sounds (default: 64 bytes for each token of the "
      "context, at least 1 MiB)")
      ->transform(SizeWords());
  add("--max-media-bytes", flags.max_media_bytes,
      "Images and sounds of a request as they are sent, together")
      ->transform(SizeWords())
      ->default_str("32MiB");
  add("--max-media-pixels", flags.max_media_pixels,
      "Pixels that a request's images are decoded from, together; of a file with several scans, as "
      "progressive JPEGs have, each counts once for every scan")
      ->transform(SizeWords())
      ->check(CLI::PositiveNumber)
      ->default_str("256Mi");
  add("--max-queued-media-pixels", flags.max_queued_media_pixels,
      "Pixels that wait to be decoded, of all requests together; beyond, requests with images get "
      "a "
      "503")
      ->transform(SizeWords())
      ->check(CLI::PositiveNumber)
      ->default_str("2Gi");
  add("--max-request-memory", flags.max_request_memory,
      "Memory for requests being read and parsed, and what they keep until they are answered, all "
      "together; beyond, they get a 503, and a 413 if one alone needs more (default: 512MiB, at "
      "most an eighth of what this process may use)")
      ->transform(SizeWords());
  add("--max-grammar-memory", flags.max_grammar_memory,
      "Memory in which compiled forms of answers (JSON Schema, regular expressions, grammars) stay "
      "for later requests, the longest unused given up first; those in use may take as much again")
      ->transform(SizeWords())
      ->default_str("256MiB");
  add("--max-answer-memory", flags.max_answer_memory,
      "Memory for answers of all clients together: what is kept of those being made, such as "
      "log-probabilities, and bytes that clients have not taken; beyond, connections that have "
      "waited longest for their clients are closed, and if that is not enough new answers get a "
      "503, or a 400 if one alone needs more (default: as --max-request-memory)")
      ->transform(SizeWords());
  const CLI::Range seconds(0.0, 86400.0);
  add("--idle-timeout", flags.idle_timeout, "Seconds a client may keep a connection unused")
      ->check(seconds)
      ->capture_default_str();
  add("--request-timeout", flags.request_timeout, "Seconds a request may take to arrive")
      ->check(seconds)
      ->capture_default_str();
  add("--write-timeout", flags.write_timeout,
      "Seconds in which a client must take 64 KiB of its answer, or the rest of it")
      ->check(seconds)
      ->capture_default_str();
  add("--drain-delay", flags.drain_delay,
      "Seconds for which newcomers are still served after SIGTERM, while /ready says no")
      ->check(CLI::Range(0.0, 86400.0))
      ->capture_default_str();
  add("--shutdown-timeout", flags.shutdown_timeout,
      "Seconds that open requests get to finish after SIGTERM")
      ->check(seconds)
      ->capture_default_str();
  add("--comment-interval", flags.comment_interval,
      "Seconds of silence after which a stream gets a comment, for proxies to keep it open")
      ->check(CLI::Range(0.01, 86400.0))
      ->capture_default_str();
  add("--access-log", flags.access_log, "A line for each request: off, text or json")
      ->check(CLI::IsMember({"off", "text", "json"}))
      ->capture_default_str();
  add("--log-level", flags.log_level, "Least important lines to log")
      ->check(CLI::IsMember({"debug", "info", "warning", "error"}))
      ->capture_default_str();
  add("--metrics-prefix", flags.metrics_prefix,
      "Of the names at /metrics; vllm fits its dashboards")
      ->capture_default_str();
  add("--otlp-traces-endpoint", flags.otlp_traces_endpoint,
      "OpenTelemetry collector that gets spans of requests, by OTLP over HTTP: "
      "http://localhost:4318/v1/traces (default: none)");
  add("--kv-events-config", flags.kv_events_config,
      "Tells routers which blocks of prompts are cached, by ZeroMQ as vLLM does: JSON of "
      "enable_kv_cache_events, publisher, endpoint, replay_endpoint, buffer_steps, hwm and topic "
      "(default: none)");
  WithVariable(command.add_flag("--expert-counts", flags.expert_counts,
                                "Count the tokens of every expert of every layer, for /metrics"))
      ->group("HTTP");
}

}  // namespace

void AddServeOptions(CLI::App& command, ServeFlags& flags) {
  WithVariable(command.add_option("--config", flags.config,
                                  "YAML file of these flags, named without the dashes"));
  command.footer(
      "Each flag is also an environment variable (--max-model-len: LAPIDARY_MAX_MODEL_LEN, MODEL: "
      "LAPIDARY_MODEL)\nand a key of the --config file (max-model-len: 4096, or as Python has it "
      "max_model_len). The command line\ntakes precedence over the environment, that over the "
      "file.");
  AddModelFlags(command, flags);
  AddSchedulerFlags(command, flags);
  AddHttpFlags(command, flags);
}

Status TakeOtherSources(ServeFlags& flags, CLI::App& command) {
  flags.TakeModelFromNames();
  flags.TakeModelFromAdapters();
  flags.TakeModelFromEnvironment();
  const std::string model = flags.model;
  const std::string hf_repo = flags.hf_repo;
  if (!flags.config.empty()) RETURN_IF_ERROR(ApplyConfigFile(flags.config, command));
  if (!model.empty() || !hf_repo.empty()) {
    flags.model = model;
    flags.hf_repo = hf_repo;
  }
  flags.TakeWildcardFromNames();
  return {};
}

}  // namespace lapidary
