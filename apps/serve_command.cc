// `lapidary serve`: an OpenAI-compatible HTTP server.
#include "apps/serve_command.h"

#include <fmt/ranges.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "apps/commands.h"
#include "apps/config_file.h"
#include "apps/constraint_flags.h"
#include "apps/device_flag.h"
#include "apps/draft_flags.h"
#include "apps/load_flags.h"
#include "apps/lora_serving_flags.h"
#include "apps/media_flags.h"
#include "apps/named_models.h"
#include "apps/size_words.h"
#include "apps/vllm_flags.h"
#include "base/memory_limit.h"
#include "base/read_file.h"
#include "base/release_pages.h"
#include "kv/kv_layout.h"
#include "model/footprint.h"
#include "server/api.h"
#include "server/chat_page.h"
#include "server/http_server.h"
#include "server/media_hosts.h"
#include "server/origin_check.h"
#include "server/throughput_log.h"
#include "session/bundled_models.h"
#include "session/session.h"

namespace lapidary {
namespace {

struct ServeFlags {
  std::string config;
  std::string model;
  std::string hf_repo;
  std::vector<std::string> served_model_names;
  bool takes_any_name = false;  // --served-model-name '*'
  LoadFlags load;
  DeviceRequest device = DeviceRequest::kAuto;
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
  void TakeModelFromNames() {
    if (!model.empty() || !hf_repo.empty() || served_model_names.size() < 2) return;
    std::string last = served_model_names.back();
    ResolveBundled(&last);
    std::error_code error;
    if (!std::filesystem::exists(last, error) && !IsHubName(last)) return;
    model = std::move(last);
    served_model_names.pop_back();
  }

  // The same of `--lora-modules a=DIR MODEL`.
  void TakeModelFromAdapters() {
    if (!model.empty() || !hf_repo.empty() || lora.modules.empty()) return;
    const std::string& last = lora.modules.back();
    if (last.starts_with('{') || last.find('=') != std::string::npos) return;
    model = last;
    lora.modules.pop_back();
  }

  // After the command line, and before the config file.
  void TakeModelFromEnvironment() {
    const char* named = std::getenv("LAPIDARY_MODEL");
    if (model.empty() && hf_repo.empty() && named != nullptr) model = named;
  }

  void TakeWildcardFromNames() { takes_any_name = std::erase(served_model_names, "*") > 0; }
};

// Beyond it, what was freed is given back to the system.
constexpr size_t kMaxFreeHeapBytes = size_t{64} << 20;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kIsSanitized = true;
#else
constexpr bool kIsSanitized = false;
#endif

// All clients have their answers. What still runs for those who have gone (a form, an image, a
// file that is fetched, a step) would take its time to end, and what is kept its time to be freed:
// the system does that at once.
[[noreturn]] void EndNow() {
  spdlog::info("stopped");
  spdlog::shutdown();
  std::fflush(nullptr);
  std::_Exit(0);
}

std::chrono::milliseconds Seconds(double seconds) {
  return std::chrono::milliseconds(static_cast<int64_t>(seconds * 1e3));
}

Result<std::vector<std::string>> ReadApiKeys(const ServeFlags& flags) {
  std::vector<std::string> keys = flags.api_keys;
  // CLI11 takes an empty variable for none, and the server would be open.
  if (const char* variable = std::getenv("LAPIDARY_API_KEY"); variable != nullptr) {
    if (variable[0] == '\0') {
      return MakeError("LAPIDARY_API_KEY is empty: give it a key, or unset it to let everybody in");
    }
  }
  if (!flags.api_key_file.empty()) {
    ASSIGN_OR_RETURN(const std::string text, ReadFile(flags.api_key_file, kMaxConfigFileBytes));
    for (size_t begin = 0; begin < text.size();) {
      const size_t end = std::min(text.find('\n', begin), text.size());
      std::string key = text.substr(begin, end - begin);
      while (!key.empty() && (key.back() == '\r' || key.back() == ' ')) key.pop_back();
      if (!key.empty()) keys.push_back(std::move(key));
      begin = end + 1;
    }
    if (keys.empty()) return MakeError("{}: holds no API key", flags.api_key_file);
  }
  for (const std::string& key : keys) {
    if (key.empty()) return MakeError("--api-key: a key must not be empty");
  }
  return keys;
}

// One token of the longest sequence there may be: proves that the pool holds it, and touches every
// weight before the first client does.
Status WarmUp(Session& session) {
  Request request;
  request.prompt.ids = {0};
  request.max_new_tokens = session.max_model_len() - 1;
  request.sampling = std::make_shared<SamplingParams>();
  request.ignore_eos = true;
  request.goes_on = false;
  auto stream = session.Start(request);
  if (!stream.ok()) {
    return MakeError(
        "a sequence of --max-model-len {} cannot run: {} (--kv-cache-memory-bytes, or on a GPU "
        "--gpu-memory-utilization, gives more)",
        session.max_model_len(), stream.error().message);
  }
  RequestEvent event = stream->Next();
  stream->Cancel();
  while (!event.finish) event = stream->Next();
  if (!event.error.empty()) return MakeError("the model does not run: {}", event.error);
  return {};
}

Result<std::unique_ptr<Session>> LoadForServing(const ServeFlags& flags, ModelFiles files,
                                                const DeviceChoice& device,
                                                std::shared_ptr<ExpertCounts> expert_counts) {
  SessionOptions options;
  options.load = flags.load.Options();
  options.load.expert_counts = std::move(expert_counts);
  options.load.device = device;
  options.load.limits = flags.limits;
  ASSIGN_OR_RETURN(options.media, ReadMediaLimits(flags.limit_mm_per_prompt));
  options.media.local_files = flags.allowed_local_media_path;
  RETURN_IF_ERROR(CheckMediaHosts(flags.allowed_media_domains));
  options.media.hosts = flags.allowed_media_domains;
  ASSIGN_OR_RETURN(options.load.drafting, flags.drafting.Request());
  if (flags.kv_cache_memory_bytes > 0) {
    options.load.kv_cache_memory_bytes = flags.kv_cache_memory_bytes;
  }
  const StepTime step_time = flags.max_step_ms ? LimitedStepTime(device.kind, *flags.max_step_ms)
                                               : DefaultStepTime(device.kind);
  options.engine.limits.max_step_ms = step_time.max_ms;
  options.engine.limits.max_step_growth = step_time.max_growth;
  options.engine.limits.max_prompt_ms = step_time.max_prompt_ms;
  options.engine.max_queue = flags.max_queue;
  options.engine.limits.prefix_caching = !flags.no_prefix_caching;
  options.engine.overlap = !flags.no_overlap;
  options.engine.check_kv = flags.check_kv;
  options.max_grammar_bytes = flags.max_grammar_memory;
  ASSIGN_OR_RETURN(std::unique_ptr<Session> session, Session::Load(std::move(files), options));
  RETURN_IF_ERROR(WarmUp(*session));
  const ModelPlan& plan = session->plan();
  const int64_t num_parameters = MakeFootprint(plan).total();
  const bool is_large = num_parameters >= 1'000'000'000;
  spdlog::info("loaded {:.2f} {} parameters in {:.1f} s",
               static_cast<double>(num_parameters) * (is_large ? 1e-9 : 1e-6),
               is_large ? "billion" : "million", session->load_ms() * 1e-3);
  const KvLayout& layout = session->engine().kv_layout();
  const int64_t pages_per_context =
      PagesForSequence(plan, layout, session->max_model_len(), SchedulerLimits{}.sliding_slack);
  const int64_t num_pages = session->engine().stats().scheduler.num_pages;
  spdlog::info(
      "KV cache: {:.2f} GB{}, room for {} full contexts of {} tokens; up to {} sequences run",
      1e-9 * static_cast<double>(num_pages * layout.page_bytes),
      options.load.num_ranks > 1 ? fmt::format(" on each of {} ranks", options.load.num_ranks) : "",
      num_pages / pages_per_context, session->max_model_len(), flags.limits.max_num_seqs);
  return session;
}

// What a metric's name may begin with.
bool IsMetricName(std::string_view name) {
  const auto is_allowed = [](char c) { return c == '_' || c == ':' || std::isalnum(c) != 0; };
  return !name.empty() && std::isdigit(name[0]) == 0 &&
         std::all_of(name.begin(), name.end(), is_allowed);
}

bool IsLoopback(std::string_view host) {
  return host.starts_with("127.") || host == "::1" || host == "localhost";
}

AccessLog AccessLogOf(const std::string& name) {
  if (name == "json") return AccessLog::kJson;
  return name == "text" ? AccessLog::kText : AccessLog::kOff;
}

// Text has at most so many bytes per token, escapes and token ids included; what is larger cannot
// fit the context anyway.
size_t DefaultMaxBody(int max_model_len) {
  constexpr size_t kBytesPerToken = 64;
  return std::max(size_t{1} << 20, kBytesPerToken * static_cast<size_t>(max_model_len));
}

// Where memory is short, requests are refused before an allocation fails.
size_t DefaultRequestMemory() {
  return std::min(size_t{512} << 20, static_cast<size_t>(MemoryLimit()) / 8);
}

// Where this machine reaches the server.
std::string LocalUrl(const HttpOptions& http, int port) {
  std::string host = http.host;
  if (host == "0.0.0.0" || host == "::") host = http.bound->is_ipv6() ? "::1" : "127.0.0.1";
  if (host.find(':') != std::string::npos) host = "[" + host + "]";
  return fmt::format("{}://{}:{}", http.tls.certfile.empty() ? "http" : "https", host, port);
}

// While it is there, the host (if any) knows of the server.
class Hosted {
 public:
  Hosted(ServeHost* host, const std::string& url, const std::vector<std::string>& model_names,
         HttpServer& server, Session& session)
      : host_(host) {
    if (host_ != nullptr) host_->OnServing(url, model_names, server, session);
  }
  ~Hosted() {
    if (host_ != nullptr) host_->OnEnding();
  }
  Hosted(const Hosted&) = delete;
  Hosted& operator=(const Hosted&) = delete;

 private:
  ServeHost* const host_;
};

Status Serve(ServeFlags flags, ServeHost* host) {
  if (host == nullptr) ShareHeapIfLimited();
  spdlog::set_level(spdlog::level::from_str(flags.log_level));
  if (!IsMetricName(flags.metrics_prefix)) {
    return MakeError("--metrics-prefix '{}': letters, digits and _ are allowed",
                     flags.metrics_prefix);
  }
  for (const std::string& origin : flags.http.allowed_origins) {
    if (!IsOrigin(origin)) {
      return MakeError("--allowed-origins '{}': an origin looks like https://app.example", origin);
    }
  }
  RETURN_IF_ERROR(CheckMcpServers(flags.mcp_servers));
  ASSIGN_OR_RETURN(std::vector<std::string> api_keys, ReadApiKeys(flags));
  RETURN_IF_ERROR(TraceExporter::CheckEndpoint(flags.otlp_traces_endpoint));
  RETURN_IF_ERROR(CheckTls(flags.http.tls));
  ASSIGN_OR_RETURN(flags.http.bound, BoundPort::Bind(flags.http.host, flags.http.port));
  ASSIGN_OR_RETURN(ModelFiles files, ModelFiles::Open(flags.model, flags.tokenizer));
  const ModelPlan& plan = files.description.plan;
  if (flags.tokenizer.empty() && files.description.is_preset()) {
    return MakeError(
        "'{}' is a preset: a server needs a tokenizer beside the model, or --tokenizer",
        flags.model);
  }
  ASSIGN_OR_RETURN(const DeviceChoice device, ChooseDevice(flags.device));
  ASSIGN_OR_RETURN(flags.limits, CompleteLimits(flags.limits, plan, device.kind));
  if (flags.served_model_names.empty()) {
    flags.served_model_names = {files.description.ShortName()};
  }
  ASSIGN_OR_RETURN(
      ServedModel model,
      ServedModel::Make(files.text, flags.served_model_names, flags.limits.max_model_len,
                        {.strict_tools = flags.strict_tools,
                         .takes_priority = flags.scheduling_policy == "priority",
                         .takes_any_name = flags.takes_any_name}));
  if (model.tokenizer().vocab_size() > plan.vocab_size) {
    return MakeError("{}: the tokenizer knows {} tokens, the model only {}",
                     flags.tokenizer.empty() ? flags.model : flags.tokenizer,
                     model.tokenizer().vocab_size(), plan.vocab_size);
  }
  if (api_keys.empty() && !IsLoopback(flags.http.host)) {
    spdlog::warn("--host {} without --api-key: whoever can reach this machine can use the model",
                 flags.http.host);
  }
  ASSIGN_OR_RETURN(auto adapters, flags.lora.Load(plan, device, flags.load.Options().num_ranks,
                                                  flags.served_model_names));
  model.set_adapters(std::move(adapters));
  std::shared_ptr<ExpertCounts> expert_counts;
  if (flags.expert_counts) {
    if (!plan.moe) return MakeError("--expert-counts: {} has no experts", flags.model);
    expert_counts = std::make_shared<ExpertCounts>();
  }
  spdlog::info("loading {} ({})", flags.model, plan.architecture);
  ASSIGN_OR_RETURN(std::unique_ptr<Session> session,
                   LoadForServing(flags, std::move(files), device, expert_counts));
  ServerMetrics metrics(flags.metrics_prefix + ":", model.name(), session->engine(),
                        session->media_encoder(), expert_counts.get(),
                        [&session = *session] { return session.grammar_stats(); });
  metrics.SetWeights(session->weight_table());
  std::optional<TraceExporter> traces;
  if (!flags.otlp_traces_endpoint.empty()) {
    traces.emplace(flags.otlp_traces_endpoint, model.name());
  }
  // Every request holds its connection, which lives in the server: the server goes last.
  std::optional<HttpServer> server;
  {
    const MediaLimits& media = session->media_limits();
    const BodyLimits body_limits{
        .max_text_bytes = flags.max_body_bytes.value_or(DefaultMaxBody(flags.limits.max_model_len)),
        .max_media_bytes =
            media.images + media.audio + media.videos > 0 ? flags.max_media_bytes : 0};
    const auto request_memory =
        std::make_shared<ByteBudget>(flags.max_request_memory.value_or(DefaultRequestMemory()));
    const auto answer_memory =
        std::make_shared<AnswerMemory>(flags.max_answer_memory.value_or(DefaultRequestMemory()));
    Api api(
        *session, model, metrics,
        {.api_keys = std::move(api_keys),
         .access_log = AccessLogOf(flags.access_log),
         .mcp_servers = flags.mcp_servers,
         .body_limits = body_limits,
         .media = {.max_pixels = flags.max_media_pixels},
         .max_queued_media_pixels = std::max(flags.max_queued_media_pixels, flags.max_media_pixels),
         .runtime_adapters = flags.lora.Runtime(),
         .traces = traces ? &*traces : nullptr,
         .request_memory = request_memory,
         .answer_memory = answer_memory});
    ThroughputLog throughput(session->engine());
    HttpOptions http = flags.http;
    http.request_memory = request_memory;
    http.answer_memory = answer_memory;
    http.max_body_bytes = body_limits.max_text_bytes + body_limits.max_media_bytes;
    http.comment_interval = Seconds(flags.comment_interval);
    http.takes_signals = host == nullptr;
    http.on_tick = [&throughput] {
      throughput.Tick();
      if (FreeHeapBytes() > kMaxFreeHeapBytes) ReleaseFreeHeap();
    };
    http.drain_delay = Seconds(flags.drain_delay);
    http.shutdown_timeout = Seconds(flags.shutdown_timeout);
    http.idle_timeout = Seconds(flags.idle_timeout);
    http.request_timeout = Seconds(flags.request_timeout);
    http.write_timeout = Seconds(flags.write_timeout);
    server.emplace(http, api);
    RETURN_IF_ERROR(server->Listen());
    spdlog::info("serving {} on {}://{}:{}", fmt::join(model.names(), ", "),
                 http.tls.certfile.empty() ? "http" : "https", http.host, server->port());
    {
      const Hosted hosted(host, LocalUrl(http, server->port()), model.names(), *server, *session);
      server->Run();
    }
    if (host == nullptr && !kIsSanitized) {
      traces.reset();  // Sends the last spans.
      EndNow();
    }
  }
  session.reset();
  spdlog::info("stopped");
  return {};
}

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
  WithVariable(AddDeviceFlag(&command, &flags.device))->group("Model");
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
  WithVariable(command.add_flag("--expert-counts", flags.expert_counts,
                                "Count the tokens of every expert of every layer, for /metrics"))
      ->group("HTTP");
}

// What the command line leaves out: the environment, then the config file.
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

// The model's files; a model of the Hub is served by the name that it was asked for, and by its
// own.
Status FindServedModel(ServeFlags& flags) {
  RETURN_IF_ERROR(TakeHubFlag(flags.hf_repo, &flags.model));
  ASSIGN_OR_RETURN(const MediaLimits media, ReadMediaLimits(flags.limit_mm_per_prompt));
  const ModelNeeds needs{.weights = flags.load.Options().format != LoadFormat::kDummy,
                         .media = media.images + media.audio + media.videos > 0,
                         .drafting = &flags.drafting};
  ASSIGN_OR_RETURN(const auto names, FindModelOrDefault(&flags.model, needs));
  if (!names || !flags.served_model_names.empty()) return {};
  flags.served_model_names = {names->typed};
  if (names->repo != names->typed) flags.served_model_names.push_back(names->repo);
  return {};
}

}  // namespace

std::function<Status()> AddServeFlags(CLI::App* command, ServeHost* host) {
  auto flags = std::make_shared<ServeFlags>();
  auto foreign = std::make_shared<VllmFlags>();
  WithVariable(command->add_option("--config", flags->config,
                                   "YAML file of these flags, named without the dashes"));
  command->footer(
      "Each flag is also an environment variable (--max-model-len: LAPIDARY_MAX_MODEL_LEN, MODEL: "
      "LAPIDARY_MODEL)\nand a key of the --config file (max-model-len: 4096, or as Python has it "
      "max_model_len). The command line\ntakes precedence over the environment, that over the "
      "file.");
  AddModelFlags(*command, *flags);
  AddSchedulerFlags(*command, *flags);
  AddHttpFlags(*command, *flags);
  foreign->AddTo(*command);
  return [flags, foreign, command, host]() -> Status {
    RETURN_IF_ERROR(TakeOtherSources(*flags, *command));
    RETURN_IF_ERROR(foreign->Check());
    RETURN_IF_ERROR(FindServedModel(*flags));
    return Serve(*flags, host);
  };
}

void AddServeCommand(CommandLine& command_line) {
  auto serve = std::make_shared<std::function<Status()>>();
  CLI::App* command = command_line.Add("serve", "Serve a model over HTTP, as OpenAI's API",
                                       [serve] { return (*serve)(); });
  *serve = AddServeFlags(command, /*host=*/nullptr);
}

}  // namespace lapidary
