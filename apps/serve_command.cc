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
#include "apps/named_models.h"
#include "apps/serve_flags.h"
#include "apps/vllm_flags.h"
#include "base/memory_limit.h"
#include "base/read_file.h"
#include "base/release_pages.h"
#include "kv/kv_layout.h"
#include "model/footprint.h"
#include "server/api.h"
#include "server/chat_page.h"
#include "server/http_server.h"
#include "server/kv_event_publisher.h"
#include "server/media_hosts.h"
#include "server/origin_check.h"
#include "server/throughput_log.h"
#include "session/session.h"

namespace lapidary {
namespace {

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
                                                std::shared_ptr<ExpertCounts> expert_counts,
                                                KvEventPublisher* kv_events) {
  SessionOptions options;
  options.load = flags.load.Options();
  options.load.expert_counts = std::move(expert_counts);
  options.load.device = device;
  options.load.simulation = flags.simulation.Options();
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
  if (kv_events != nullptr) options.engine.cache_changes = &kv_events->changes();
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
  ASSIGN_OR_RETURN(const auto kv_events_config, KvEventsConfig::Parse(flags.kv_events_config));
  if (kv_events_config && flags.no_prefix_caching) {
    return MakeError("--kv-events-config: without prefix caching there are no events to publish");
  }
  RETURN_IF_ERROR(CheckTls(flags.http.tls));
  ASSIGN_OR_RETURN(flags.http.bound, BoundPort::Bind(flags.http.host, flags.http.port));
  RETURN_IF_ERROR(flags.simulation.Complete(flags.device, flags.model, &flags.tokenizer));
  // The engine's thread writes to it: it goes after the session.
  std::unique_ptr<KvEventPublisher> kv_events;
  if (kv_events_config) {
    ASSIGN_OR_RETURN(kv_events, KvEventPublisher::Open(*kv_events_config));
  }
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
                   LoadForServing(flags, std::move(files), device, expert_counts, kv_events.get()));
  ServerMetrics metrics(flags.metrics_prefix + ":", model.name(), session->engine(),
                        session->media_encoder(), expert_counts.get(),
                        [&session = *session] { return session.grammar_stats(); });
  metrics.SetWeights(session->weight_table());
  if (kv_events != nullptr) {
    kv_events->Start(session->plan(), session->engine().kv_layout());
    spdlog::info("KV events: published at {}{}", kv_events->endpoint(),
                 kv_events->replay_endpoint().empty()
                     ? ""
                     : fmt::format(", replayed at {}", kv_events->replay_endpoint()));
  }
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

// The model's files; a model of the Hub is served by the name that it was asked for, and by its
// own.
Status FindServedModel(ServeFlags& flags) {
  RETURN_IF_ERROR(TakeHubFlag(flags.hf_repo, &flags.model));
  ASSIGN_OR_RETURN(const MediaLimits media, ReadMediaLimits(flags.limit_mm_per_prompt));
  const bool reads_weights = flags.load.Options().format != LoadFormat::kDummy &&
                             flags.device != DeviceRequest::kSimulated;
  const ModelNeeds needs{.weights = reads_weights,
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
  AddServeOptions(*command, *flags);
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
