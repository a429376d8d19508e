// `lapidary bench serve`: what a server gives its clients. Flags, lines and keys are those of
// `vllm bench serve`.
#include <fmt/ranges.h>
#include <spdlog/spdlog.h>

#include <cmath>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>

#include "apps/bench/bench_commands.h"
#include "apps/size_words.h"
#include "base/progress.h"
#include "base/read_file.h"
#include "bench/arrival_schedule.h"
#include "bench/file_prompts.h"
#include "bench/load_generator.h"
#include "bench/random_prompts.h"
#include "bench/serve_result.h"
#include "bench/target_server.h"

namespace lapidary {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr std::string_view kChatSuffix = "chat/completions";

struct BenchServeFlags {
  std::string base_url;
  bool insecure = false;
  std::string host = "127.0.0.1";
  int port = 8000;
  std::string backend = "openai";
  std::string endpoint;
  std::string model;
  std::vector<std::string> headers;
  std::string extra_body;
  int ready_check_timeout_sec = 60;
  double request_timeout = 6 * 3600.0;

  std::string dataset_name = "random";
  int vocab_size = 0;
  int num_prompts = 1000;
  bench::RandomPromptOptions prompts;
  std::string dataset_path;
  int custom_output_len = 256;
  int sharegpt_output_len = 0;             // 0: as long as the answer of the file
  std::optional<bool> ignore_eos;          // none: for random prompts alone
  std::map<std::string, double> sampling;  // those given

  double request_rate = kInfinity;
  double burstiness = 1.0;
  std::string ramp_up_strategy;
  double ramp_up_start_rps = 0.0;
  double ramp_up_end_rps = 0.0;
  std::vector<std::string> goodput;
  int max_concurrency = 0;  // 0: no limit
  int num_warmups = 0;
  bool disable_progress = false;

  std::string percentile_metrics = "ttft,tpot,itl";
  std::string metric_percentiles = "99";
  std::string label;
  bool save_result = false;
  bool append_result = false;
  bool save_detailed = false;
  std::string result_dir;
  std::string result_filename;
  std::vector<std::string> metadata;
};

using Headers = std::vector<std::pair<std::string, std::string>>;

Result<std::pair<std::string, std::string>> SplitPair(const std::string& text, const char* flag) {
  const size_t equals = text.find('=');
  if (equals == 0 || equals == std::string::npos) {
    return MakeError("{} '{}': must look like KEY=VALUE", flag, text);
  }
  return std::pair(text.substr(0, equals), text.substr(equals + 1));
}

std::vector<std::string> SplitCommas(const std::string& text) {
  std::vector<std::string> items;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    items.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return items;
}

Result<Headers> RequestHeaders(const BenchServeFlags& flags) {
  Headers headers;
  if (const char* key = std::getenv("OPENAI_API_KEY"); key != nullptr && *key != '\0') {
    headers.emplace_back("Authorization", fmt::format("Bearer {}", key));
  }
  for (const std::string& text : flags.headers) {
    ASSIGN_OR_RETURN(auto header, SplitPair(text, "--header"));
    if (text.find_first_of("\r\n") != std::string::npos) {
      return MakeError("--header '{}': a line break is no part of a header", header.first);
    }
    headers.push_back(std::move(header));
  }
  return headers;
}

Result<bench::ReportOptions> MakeReportOptions(const BenchServeFlags& flags) {
  bench::ReportOptions options;
  options.metrics = SplitCommas(flags.percentile_metrics);
  const std::vector<std::string> known = bench::ServeMetricKeys();
  for (const std::string& metric : options.metrics) {
    if (std::find(known.begin(), known.end(), metric) == known.end()) {
      return MakeError("--percentile-metrics '{}': choose from {}", metric, fmt::join(known, ", "));
    }
  }
  options.percentiles.clear();
  for (const std::string& text : SplitCommas(flags.metric_percentiles)) {
    char* end = nullptr;
    const double percent = std::strtod(text.c_str(), &end);
    if (text.empty() || *end != '\0' || !(percent >= 0.0 && percent <= 100.0)) {
      return MakeError("--metric-percentiles '{}': numbers from 0 to 100, such as 50,99", text);
    }
    options.percentiles.push_back(percent);
  }
  if (flags.max_concurrency > 0) options.max_concurrency = flags.max_concurrency;
  options.request_rate = flags.request_rate;
  return options;
}

Result<bench::RequestForm> MakeForm(const BenchServeFlags& flags, const Headers& headers) {
  bench::RequestForm form;
  const bool wants_chat = flags.backend == "openai-chat";
  form.endpoint = !flags.endpoint.empty() ? flags.endpoint
                  : wants_chat            ? "/v1/chat/completions"
                                          : "/v1/completions";
  if (!form.endpoint.starts_with('/')) {
    return MakeError("--endpoint '{}': must begin with /", form.endpoint);
  }
  form.is_chat = form.endpoint.ends_with(kChatSuffix);
  if (wants_chat && !form.is_chat) {
    return MakeError("--backend openai-chat needs an --endpoint that ends with {}", kChatSuffix);
  }
  form.ignore_eos = flags.ignore_eos.value_or(flags.dataset_name == "random");
  form.headers = headers;
  form.idle_timeout = std::chrono::milliseconds(static_cast<int64_t>(flags.request_timeout * 1e3));
  for (const auto& [name, value] : flags.sampling) {
    // JSON readers that want an integer refuse 40.0.
    form.extra[name] = name == "top_k" ? Json(static_cast<int64_t>(value)) : Json(value);
  }
  if (!flags.extra_body.empty()) {
    ASSIGN_OR_RETURN(const Json extra, ParseJson(flags.extra_body, "--extra-body"));
    if (!extra.is_object()) return MakeError("--extra-body: must be a JSON object");
    form.extra.update(extra);
  }
  return form;
}

// One request alone: does the server take what we send? It also warms the server up.
Status TestRun(const bench::TargetServer& server, const bench::LoadRequest& request) {
  const bench::RequestRecord record = bench::RunOne(server.client(), request);
  if (record.success) return {};
  return MakeError("the first request, a trial, failed: {}", record.error);
}

void WarmUp(const bench::TargetServer& server, const bench::LoadRequest& request,
            const BenchServeFlags& flags) {
  if (flags.num_warmups == 0) return;
  spdlog::info("warming up with {} requests", flags.num_warmups);
  const std::vector<bench::LoadRequest> requests(flags.num_warmups, request);
  bench::LoadOptions options;
  if (flags.max_concurrency > 0) options.max_concurrency = flags.max_concurrency;
  bench::RunLoad(server.client(), requests, options);
}

// Each kind of failure once, with how often it came.
void PrintFailures(const std::vector<bench::RequestRecord>& records) {
  constexpr size_t kMaxKinds = 10;
  std::vector<std::pair<std::string, int>> kinds;
  for (const bench::RequestRecord& record : records) {
    if (record.success) continue;
    const auto it = std::find_if(kinds.begin(), kinds.end(),
                                 [&](const auto& kind) { return kind.first == record.error; });
    it == kinds.end() ? (void)kinds.emplace_back(record.error, 1) : (void)++it->second;
  }
  for (size_t idx = 0; idx < std::min(kinds.size(), kMaxKinds); ++idx) {
    spdlog::error("{} failed: {}", kinds[idx].second, kinds[idx].first);
  }
  if (kinds.size() > kMaxKinds) {
    spdlog::error("... and {} other kinds of failure", kinds.size() - kMaxKinds);
  }
}

std::string DateTime() {
  const std::time_t now = std::time(nullptr);
  char text[32];
  std::strftime(text, sizeof(text), "%Y%m%d-%H%M%S", std::localtime(&now));
  return text;
}

std::string RateText(double rate) { return std::isinf(rate) ? "inf" : fmt::format("{}", rate); }

Status SaveResult(const BenchServeFlags& flags, const std::string& model,
                  const bench::OrderedJson& result) {
  bench::OrderedJson json = {{"date", DateTime()},
                             {"endpoint_type", flags.backend},
                             {"backend", flags.backend},
                             {"label", flags.label.empty() ? Json(nullptr) : Json(flags.label)},
                             {"model_id", model},
                             {"tokenizer_id", model},
                             {"num_prompts", flags.num_prompts}};
  for (const std::string& text : flags.metadata) {
    ASSIGN_OR_RETURN(const auto pair, SplitPair(text, "--metadata"));
    json[pair.first] = pair.second;
  }
  json["request_rate"] = std::isinf(flags.request_rate) ? Json("inf") : Json(flags.request_rate);
  json["burstiness"] = std::isinf(flags.burstiness) ? Json("inf") : Json(flags.burstiness);
  json["max_concurrency"] = flags.max_concurrency > 0 ? Json(flags.max_concurrency) : Json(nullptr);
  json.update(result);
  std::string name = flags.result_filename;
  if (name.empty()) {
    const std::string concurrency =
        flags.max_concurrency > 0 ? fmt::format("-concurrency{}", flags.max_concurrency) : "";
    name = fmt::format("{}-{}qps{}-{}-{}.json", flags.label.empty() ? flags.backend : flags.label,
                       RateText(flags.request_rate), concurrency,
                       model.substr(model.find_last_of('/') + 1), DateTime());
  }
  std::filesystem::path path = name;
  if (!flags.result_dir.empty()) {
    std::error_code ignored;  // the file cannot be written then, and that is said
    std::filesystem::create_directories(flags.result_dir, ignored);
    path = flags.result_dir / path;
  }
  std::error_code no_size;
  const bool continues =
      flags.append_result && std::filesystem::file_size(path, no_size) > 0 && !no_size;
  std::ofstream file(path, flags.append_result ? std::ios::app : std::ios::trunc);
  file << (continues ? "\n" : "")
       << json.dump(-1, ' ', false, bench::OrderedJson::error_handler_t::replace);
  if (!file.flush()) return MakeError("{}: cannot be written", path.string());
  return {};
}

Result<bench::TargetServer> OpenServer(const BenchServeFlags& flags, const Headers& headers) {
  const bool is_ipv6 = flags.host.find(':') != std::string::npos;
  const std::string url =
      !flags.base_url.empty()
          ? flags.base_url
          : fmt::format(fmt::runtime(is_ipv6 ? "http://[{}]:{}" : "http://{}:{}"), flags.host,
                        flags.port);
  ASSIGN_OR_RETURN(bench::BaseUrl base_url, bench::ParseBaseUrl(url));
  bench::TargetServer server(bench::HttpClient(std::move(base_url), flags.insecure), headers);
  RETURN_IF_ERROR(server.Resolve());
  return server;
}

// ttft:500 and the like.
Result<std::vector<bench::Goal>> ReadGoals(const BenchServeFlags& flags) {
  std::vector<bench::Goal> goals;
  for (const std::string& text : flags.goodput) {
    const size_t colon = std::min(text.find(':'), text.size());
    char* end = nullptr;
    const double max_ms = std::strtod(text.c_str() + colon + (colon < text.size()), &end);
    const std::string metric = text.substr(0, colon);
    const bool is_known = metric == "ttft" || metric == "tpot" || metric == "e2el";
    if (!is_known || !(max_ms > 0.0) || *end != '\0') {
      return MakeError("--goodput '{}': ttft, tpot or e2el and milliseconds, such as ttft:500",
                       text);
    }
    goals.push_back({metric, max_ms});
  }
  return goals;
}

Result<std::vector<double>> MakeSchedule(const BenchServeFlags& flags) {
  if (flags.ramp_up_strategy.empty()) {
    return bench::MakeArrivalSchedule(flags.num_prompts, flags.request_rate, flags.burstiness,
                                      flags.prompts.seed);
  }
  if (!std::isinf(flags.request_rate)) {
    return MakeError("--ramp-up-strategy sets the rate: leave --request-rate out");
  }
  if (flags.ramp_up_start_rps <= 0.0 || flags.ramp_up_end_rps <= 0.0) {
    return MakeError("--ramp-up-strategy needs --ramp-up-start-rps and --ramp-up-end-rps above 0");
  }
  return bench::MakeRampSchedule(flags.num_prompts,
                                 {.is_exponential = flags.ramp_up_strategy == "exponential",
                                  .start_rate = flags.ramp_up_start_rps,
                                  .end_rate = flags.ramp_up_end_rps},
                                 flags.burstiness, flags.prompts.seed);
}

// Those that vLLM would measure: neither tiny nor long.
Result<std::vector<bench::FilePrompt>> WithoutOddLengths(const bench::TargetServer& server,
                                                         std::vector<bench::FilePrompt> prompts,
                                                         size_t num_wanted) {
  constexpr int kFewest = 4;
  constexpr int kMostOfPrompt = 1024;
  constexpr int kMostOfBoth = 2048;
  std::vector<bench::FilePrompt> kept;
  for (bench::FilePrompt& prompt : prompts) {
    if (kept.size() == num_wanted) break;
    ASSIGN_OR_RETURN(const int prompt_len, server.CountTokens(prompt.text));
    ASSIGN_OR_RETURN(prompt.output_len, server.CountTokens(prompt.answer));
    if (prompt_len < kFewest || *prompt.output_len < kFewest || prompt_len > kMostOfPrompt ||
        prompt_len + *prompt.output_len > kMostOfBoth) {
      continue;
    }
    kept.push_back(std::move(prompt));
  }
  if (kept.empty()) return MakeError("--dataset-path: no conversation has a usual length");
  return kept;
}

Result<std::vector<bench::BenchPrompt>> ReadPrompts(const BenchServeFlags& flags,
                                                    const bench::TargetServer& server) {
  constexpr size_t kMostBytes = size_t{4} << 30;
  ASSIGN_OR_RETURN(const std::string text, ReadFile(flags.dataset_path, kMostBytes));
  const bool is_custom = flags.dataset_name == "custom";
  ASSIGN_OR_RETURN(std::vector<bench::FilePrompt> read,
                   is_custom ? bench::ReadCustomPrompts(text, flags.dataset_path)
                             : bench::ReadShareGptPrompts(text, flags.dataset_path));
  const size_t num_wanted = static_cast<size_t>(flags.num_prompts) + 1;
  if (!is_custom && flags.sharegpt_output_len == 0) {
    const size_t num_read = read.size();
    read = bench::PickPrompts(std::move(read), num_read, flags.prompts.seed);
    ASSIGN_OR_RETURN(read, WithoutOddLengths(server, std::move(read), num_wanted));
  }
  if (read.size() < num_wanted) {
    spdlog::warn("{} has {} prompts: some are sent again", flags.dataset_path, read.size());
  }
  const int default_len = is_custom ? flags.custom_output_len : flags.sharegpt_output_len;
  std::vector<bench::BenchPrompt> prompts;
  for (bench::FilePrompt& prompt :
       bench::PickPrompts(std::move(read), num_wanted, flags.prompts.seed)) {
    prompts.push_back({.ids = {},
                       .text = std::move(prompt.text),
                       .output_len = prompt.output_len.value_or(default_len)});
  }
  return prompts;
}

// The prompts of the run, and one more of the same kind for the trial and the warm-up: a server
// that keeps prefixes must not have seen any of the run's.
Result<std::vector<bench::BenchPrompt>> MakePrompts(const BenchServeFlags& flags,
                                                    const bench::TargetServer& server,
                                                    const bench::ServerInfo& info) {
  if (flags.dataset_name != "random") return ReadPrompts(flags, server);
  bench::RandomPromptOptions options = flags.prompts;
  options.num_prompts = flags.num_prompts + 1;
  options.vocab_size = flags.vocab_size > 0 ? flags.vocab_size : info.vocab_size.value_or(0);
  if (options.vocab_size == 0) {
    return MakeError(
        "the server does not say how many tokens its vocabulary has: give --vocab-size");
  }
  return bench::MakeRandomPrompts(options);
}

Status BenchServe(const BenchServeFlags& flags) {
  ASSIGN_OR_RETURN(const Headers headers, RequestHeaders(flags));
  ASSIGN_OR_RETURN(const bench::ReportOptions report_options, MakeReportOptions(flags));
  ASSIGN_OR_RETURN(bench::RequestForm form, MakeForm(flags, headers));
  ASSIGN_OR_RETURN(const std::vector<bench::Goal> goals, ReadGoals(flags));
  ASSIGN_OR_RETURN(const std::vector<double> schedule, MakeSchedule(flags));
  for (const std::string& text : flags.metadata) {
    RETURN_IF_ERROR(SplitPair(text, "--metadata"));
  }
  if (flags.dataset_name != "random" && flags.dataset_path.empty()) {
    return MakeError("--dataset-name {} needs a --dataset-path", flags.dataset_name);
  }
  ASSIGN_OR_RETURN(const bench::TargetServer server, OpenServer(flags, headers));
  ASSIGN_OR_RETURN(const bench::ServerInfo info,
                   server.WaitForInfo(std::chrono::seconds(flags.ready_check_timeout_sec)));
  form.model = flags.model.empty() ? info.model : flags.model;
  ASSIGN_OR_RETURN(const std::vector<bench::BenchPrompt> prompts, MakePrompts(flags, server, info));

  std::vector<bench::LoadRequest> requests;
  for (int idx = 0; idx < flags.num_prompts; ++idx) {
    ASSIGN_OR_RETURN(bench::LoadRequest request, server.MakeRequest(form, prompts[idx]));
    request.arrival = schedule[idx];
    requests.push_back(std::move(request));
  }
  ASSIGN_OR_RETURN(const bench::LoadRequest trial, server.MakeRequest(form, prompts.back()));
  spdlog::info("a trial request to {} of {}", form.endpoint, server.client().url().Origin());
  RETURN_IF_ERROR(TestRun(server, trial));
  WarmUp(server, trial, flags);

  spdlog::info("{} requests to {}, rate {}, burstiness {}, at most {} at once", flags.num_prompts,
               form.model, RateText(flags.request_rate), flags.burstiness,
               flags.max_concurrency > 0 ? std::to_string(flags.max_concurrency) : "all");
  std::optional<Progress> progress;
  if (!flags.disable_progress) {
    progress.emplace("requests", flags.num_prompts, Progress::Unit::kItems);
  }
  bench::LoadOptions load_options;
  load_options.max_concurrency = report_options.max_concurrency;
  load_options.on_ended = [&](const bench::RequestRecord&) {
    if (progress) progress->Advance(1);
  };
  const bench::LoadRun run = bench::RunLoad(server.client(), requests, load_options);
  progress.reset();
  PrintFailures(run.records);

  const bench::ServeResult result = bench::MakeServeResult(run.records, run.duration_s, goals);
  fmt::print("{}", bench::ServeReport(result, report_options));
  if (flags.save_result || flags.append_result) {
    bench::OrderedJson json = bench::ServeResultJson(result, report_options);
    if (flags.save_detailed) json.update(bench::ServeDetailsJson(run.records));
    RETURN_IF_ERROR(SaveResult(flags, form.model, json));
  }
  if (result.completed == 0) return MakeError("all {} requests failed", result.failed);
  return {};
}

void AddServerFlags(CLI::App& command, BenchServeFlags& flags) {
  const auto add = [&](const char* name, auto& value, const char* help) {
    return command.add_option(name, value, help)->group("Server");
  };
  add("--base-url", flags.base_url,
      "http://HOST:PORT or https, with /v1 or without, instead of --host and --port");
  command
      .add_flag("--insecure", flags.insecure,
                "Over https, take any certificate (else those that SSL_CERT_FILE or the system "
                "trusts)")
      ->group("Server");
  add("--host", flags.host, "Host name or address")->capture_default_str();
  add("--port", flags.port, "Port")->check(CLI::Range(1, 65535))->capture_default_str();
  add("--backend", flags.backend, "openai: prompts as token ids; openai-chat: as a chat message")
      ->check(CLI::IsMember({"openai", "vllm", "openai-chat"}))
      ->capture_default_str();
  add("--endpoint", flags.endpoint, "Path (default: /v1/completions, or /v1/chat/completions)");
  add("--model", flags.model, "Name of the model (default: the first that the server lists)");
  add("--header", flags.headers,
      "KEY=VALUE sent with every request, may be repeated; the environment variable "
      "OPENAI_API_KEY is sent as the API key")
      ->allow_extra_args(false);
  add("--extra-body", flags.extra_body, "JSON object whose members every request gets too");
  add("--ready-check-timeout-sec", flags.ready_check_timeout_sec,
      "Seconds to wait for a server that is still starting")
      ->check(CLI::Range(0, 86400))
      ->capture_default_str();
  add("--request-timeout", flags.request_timeout,
      "Seconds without a byte from the server after which a request has failed")
      ->check(CLI::Range(0.1, 1e6))
      ->capture_default_str();
}

void AddPromptFlags(CLI::App& command, BenchServeFlags& flags) {
  const auto add = [&](const char* name, auto& value, const char* help) {
    return command.add_option(name, value, help)->group("Prompts")->capture_default_str();
  };
  add("--dataset-name", flags.dataset_name,
      "random: prompts of random tokens; custom: those of a file with a JSON object "
      "{\"prompt\": TEXT} on each line; sharegpt: first turns of a file of conversations")
      ->check(CLI::IsMember({"random", "custom", "sharegpt"}));
  add("--dataset-path", flags.dataset_path, "The file of custom or sharegpt");
  add("--custom-output-len", flags.custom_output_len,
      "Tokens of an answer where a line says no \"output_tokens\"")
      ->check(CLI::Range(1, 1 << 24));
  add("--sharegpt-output-len", flags.sharegpt_output_len,
      "Tokens of an answer; 0: as many as the file's has")
      ->check(CLI::Range(0, 1 << 24));
  add("--num-prompts", flags.num_prompts, "Requests to send")->check(CLI::Range(1, 10'000'000));
  const CLI::Range length(1, 1 << 24);
  add("--random-input-len,--input-len", flags.prompts.input_len, "Tokens of a prompt")
      ->transform(SizeWords())
      ->check(length);
  add("--random-output-len,--output-len", flags.prompts.output_len, "Tokens of an answer")
      ->transform(SizeWords())
      ->check(length);
  add("--random-range-ratio", flags.prompts.range_ratio,
      "Lengths are uniform in [len * (1 - ratio), len * (1 + ratio)]")
      ->check(CLI::Range(0.0, 1.0));
  add("--random-prefix-len", flags.prompts.prefix_len,
      "Tokens that all prompts begin with, beside --random-input-len")
      ->transform(SizeWords())
      ->check(CLI::Range(0, 1 << 24));
  add("--seed", flags.prompts.seed, "Of prompts and arrivals");
  add("--vocab-size", flags.vocab_size, "Tokens to draw from; 0: as the server says")
      ->check(CLI::Range(0, 1 << 30));
  command
      .add_flag_function(
          "--ignore-eos,!--no-ignore-eos",
          [&flags](int64_t count) { flags.ignore_eos = count > 0; },
          "Answers run to their full length (the default for random prompts)")
      ->group("Prompts");
  for (const char* name : {"temperature", "top-p", "top-k", "min-p", "frequency-penalty",
                           "presence-penalty", "repetition-penalty"}) {
    std::string field = name;
    std::replace(field.begin(), field.end(), '-', '_');
    command
        .add_option_function<double>(
            fmt::format("--{}", name),
            [&flags, field](const double& value) { flags.sampling[field] = value; },
            "As in the API (default: the server's own)")
        ->group("Sampling");
  }
}

void AddTrafficFlags(CLI::App& command, BenchServeFlags& flags) {
  const auto add = [&](const char* name, auto& value, const char* help) {
    return command.add_option(name, value, help)->group("Traffic");
  };
  const auto is_positive = [](const std::string& text) {
    char* end = nullptr;
    const double value = std::strtod(text.c_str(), &end);
    return value > 0.0 && *end == '\0' ? std::string() : "must be a number above 0, or inf";
  };
  add("--request-rate", flags.request_rate, "Requests per second; inf: all at once [inf]")
      ->check(is_positive);
  add("--burstiness", flags.burstiness,
      "Shape of the gamma distribution of gaps: 1 is a Poisson process, less is burstier [1]")
      ->check(is_positive);
  add("--ramp-up-strategy", flags.ramp_up_strategy,
      "linear or exponential: the rate grows from --ramp-up-start-rps to --ramp-up-end-rps")
      ->check(CLI::IsMember({"linear", "exponential"}));
  add("--ramp-up-start-rps", flags.ramp_up_start_rps, "Requests per second at the beginning")
      ->check(CLI::NonNegativeNumber);
  add("--ramp-up-end-rps", flags.ramp_up_end_rps, "Requests per second at the end")
      ->check(CLI::NonNegativeNumber);
  add("--max-concurrency", flags.max_concurrency,
      "Most requests open at once; the others wait here (default: no limit)")
      ->check(CLI::Range(1, 1'000'000));
  add("--num-warmups", flags.num_warmups, "Requests before the run, after the trial [0]")
      ->check(CLI::Range(0, 1'000'000));
  command.add_flag("--disable-tqdm", flags.disable_progress, "No progress bar")->group("Traffic");
}

void AddResultFlags(CLI::App& command, BenchServeFlags& flags) {
  const auto add = [&](const char* name, auto& value, const char* help) {
    return command.add_option(name, value, help)->group("Result");
  };
  add("--percentile-metrics", flags.percentile_metrics,
      "Of ttft, tpot, itl, e2el, client_queue_time, e2el_including_client_queue")
      ->capture_default_str();
  add("--metric-percentiles", flags.metric_percentiles, "Percentiles, such as 50,90,99")
      ->capture_default_str();
  add("--goodput", flags.goodput,
      "METRIC:MILLISECONDS of ttft, tpot, e2el, several if need be: counts the requests that keep "
      "all of them")
      ->expected(1, 3);
  command.add_flag("--save-result", flags.save_result, "Write a JSON file")->group("Result");
  command.add_flag("--append-result", flags.append_result, "Append to the JSON file")
      ->group("Result");
  command
      .add_flag("--save-detailed", flags.save_detailed,
                "Put times, lengths, text and error of every request into the file")
      ->group("Result");
  add("--result-dir", flags.result_dir, "Directory of the file (default: the current one)");
  add("--result-filename", flags.result_filename,
      "Its name (default: LABEL-RATEqps-concurrencyN-MODEL-TIME.json)");
  add("--label", flags.label, "Begins the file's name (default: the backend)");
  add("--metadata", flags.metadata, "KEY=VALUE put into the file, may be repeated")
      ->allow_extra_args(false);
}

}  // namespace

void AddBenchServe(CommandLine& command_line, CLI::App* group) {
  auto flags = std::make_shared<BenchServeFlags>();
  CLI::App* command =
      command_line.AddTo(group, "serve", "Measure a running server, ours or another",
                         [flags] { return BenchServe(*flags); });
  AddServerFlags(*command, *flags);
  AddPromptFlags(*command, *flags);
  AddTrafficFlags(*command, *flags);
  AddResultFlags(*command, *flags);
  command->footer(
      "Tokens are counted by the server's usage. Times begin before the connection is made. TPOT "
      "is (last token - first token) / (tokens - 1) of a request; ITL lists the gaps between its "
      "chunks, split over their tokens if the server counts in every chunk.\n"
      "The file has vLLM's keys: duration, completed, failed, total_input_tokens, "
      "total_output_tokens, request_throughput, output_throughput, total_token_throughput, "
      "max_output_tokens_per_s, max_concurrent_requests, and mean_, median_, std_, p99_ of "
      "ttft_ms, tpot_ms, itl_ms.");
}

}  // namespace lapidary
