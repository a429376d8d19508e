// `lapidary bench latency`: how long a batch waits for its first tokens and for each one after.
#include "apps/bench/bench_commands.h"
#include "apps/bench/engine_bench_flags.h"
#include "apps/draft_report.h"
#include "base/progress.h"
#include "bench/engine_run.h"
#include "bench/memory_floor.h"
#include "bench/statistics.h"

namespace lapidary {
namespace {

struct LatencyFlags {
  EngineBenchFlags engine;
  int batch_size = 1;
  int input_len = 1024;
  int output_len = 128;
  int num_iters = 3;
  int num_iters_warmup = 1;
  double memory_bandwidth = 0.0;  // GB/s; 0: unknown
};

struct Samples {
  std::vector<double> ttft_ms;
  std::vector<double> step_ms;
  std::vector<double> tpot_ms;
};

void Add(const bench::EngineRun& run, Samples& samples) {
  for (const double seconds : bench::FirstTokenSeconds(run)) {
    samples.ttft_ms.push_back(1e3 * seconds);
  }
  for (const bench::DecodeStep& step : bench::DecodeSteps(run)) {
    samples.step_ms.push_back(1e3 * step.seconds);
    samples.tpot_ms.push_back(1e3 * step.seconds / step.tokens_per_request);
  }
}

Result<Samples> Measure(const LatencyFlags& flags, Session& session) {
  Samples samples;
  const int num_runs = flags.num_iters_warmup + flags.num_iters;
  Progress progress("iterations", num_runs, Progress::Unit::kItems);
  for (int run_idx = 0; run_idx < num_runs; ++run_idx) {
    bench::RandomPromptOptions prompts;
    prompts.num_prompts = flags.batch_size;
    prompts.input_len = flags.input_len;
    prompts.output_len = flags.output_len;
    prompts.vocab_size = session.plan().vocab_size;
    prompts.seed = flags.engine.seed + run_idx;
    ASSIGN_OR_RETURN(const auto batch, bench::MakeRandomPrompts(prompts));
    ASSIGN_OR_RETURN(const bench::EngineRun run, bench::RunOnEngine(session, batch));
    if (run_idx >= flags.num_iters_warmup) Add(run, samples);
    progress.Advance(1);
  }
  return samples;
}

void AddSpread(nlohmann::ordered_json& json, const char* name, const std::vector<double>& values) {
  json[fmt::format("median_{}", name)] = bench::Median(values);
  json[fmt::format("p10_{}", name)] = bench::Percentile(values, 10);
  json[fmt::format("p90_{}", name)] = bench::Percentile(values, 90);
}

Status BenchLatency(LatencyFlags& flags) {
  RETURN_IF_ERROR(flags.engine.Complete());
  ASSIGN_OR_RETURN(
      const std::unique_ptr<Session> session,
      flags.engine.Load(int64_t{flags.input_len} + flags.output_len, flags.batch_size));
  ASSIGN_OR_RETURN(const Samples samples, Measure(flags, *session));
  if (samples.step_ms.empty() && flags.output_len > 1) {
    return MakeError(
        "no step decoded all {} sequences together: give a longer --output-len, for prompts of "
        "--input-len {} come in one after the other",
        flags.batch_size, flags.input_len);
  }
  nlohmann::ordered_json json = {{"bench", "latency"},
                                 {"model", flags.engine.model.model},
                                 {"device", DeviceName(flags.engine.Device())},
                                 {"batch_size", flags.batch_size},
                                 {"input_len", flags.input_len},
                                 {"output_len", flags.output_len},
                                 {"num_iters", flags.num_iters},
                                 {"load_ms", session->load_ms()}};
  AddSpread(json, "ttft_ms", samples.ttft_ms);
  AddSpread(json, "tpot_ms", samples.tpot_ms);
  AddSpread(json, "step_ms", samples.step_ms);
  json["num_steps"] = samples.step_ms.size();
  const double step_ms = bench::Median(samples.step_ms);
  // Of all steps together: with drafts some give four tokens and some one.
  double total_ms = 0.0;
  double tokens_each = 0.0;
  for (size_t idx = 0; idx < samples.step_ms.size(); ++idx) {
    total_ms += samples.step_ms[idx];
    tokens_each += samples.step_ms[idx] / samples.tpot_ms[idx];
  }
  json["decode_tokens_per_s"] =
      total_ms > 0.0 ? 1e3 * flags.batch_size * tokens_each / total_ms : 0.0;
  const double step_bytes = bench::DecodeStepBytes(session->plan(), flags.batch_size,
                                                   flags.input_len + flags.output_len / 2,
                                                   flags.engine.KvBytesPerValue());
  json["step_bytes"] = step_bytes;
  std::string text = fmt::format(
      "{}: batch {}, {} tokens in, {} out, {} iterations\n"
      "           median        p10        p90 (ms)\n",
      flags.engine.model.model, flags.batch_size, flags.input_len, flags.output_len,
      flags.num_iters);
  const auto row = [&](const char* name, const std::vector<double>& values) {
    text += fmt::format("{:<6} {:10.3f} {:10.3f} {:10.3f}\n", name, bench::Median(values),
                        bench::Percentile(values, 10), bench::Percentile(values, 90));
  };
  row("TTFT", samples.ttft_ms);
  row("TPOT", samples.tpot_ms);
  row("step", samples.step_ms);
  text += fmt::format("{:.2f} tokens/s from {} decode-only steps; a step reads {:.3f} GB\n",
                      json["decode_tokens_per_s"].get<double>(), samples.step_ms.size(),
                      1e-9 * step_bytes);
  if (flags.memory_bandwidth > 0.0) {
    const double floor_ms = step_bytes / (flags.memory_bandwidth * 1e6);
    json["memory_bandwidth_gbps"] = flags.memory_bandwidth;
    json["floor_step_ms"] = floor_ms;
    json["floor_share"] = step_ms > 0.0 ? floor_ms / step_ms : 0.0;
    text += fmt::format("floor {:.3f} ms at {:.1f} GB/s: {:.1f}% of it reached\n", floor_ms,
                        flags.memory_bandwidth, 100.0 * json["floor_share"].get<double>());
  }
  json["drafting"] = DraftReport(session->engine().stats().drafts);
  text += DraftReportText(session->engine().stats().drafts);
  return flags.engine.Print(text, json);
}

}  // namespace

void AddBenchLatency(CommandLine& command_line, CLI::App* group) {
  auto flags = std::make_shared<LatencyFlags>();
  CLI::App* command =
      command_line.AddTo(group, "latency", "Time to the first token and per token of one batch",
                         [flags] { return BenchLatency(*flags); });
  command->add_option("--batch-size", flags->batch_size, "Sequences at once")
      ->check(CLI::Range(1, 256))
      ->capture_default_str();
  AddLengthFlags(*command, flags->input_len, flags->output_len);
  command->add_option("--num-iters", flags->num_iters, "Batches measured")
      ->check(CLI::Range(1, 1'000'000))
      ->capture_default_str();
  command->add_option("--num-iters-warmup", flags->num_iters_warmup, "Batches before them")
      ->check(CLI::Range(0, 1'000'000))
      ->capture_default_str();
  command
      ->add_option("--memory-bandwidth", flags->memory_bandwidth,
                   "GB/s the memory gives; the result then says how near the floor it is")
      ->check(CLI::PositiveNumber);
  flags->engine.AddTo(*command);
  command->footer(
      "TTFT is from submission to a sequence's first token, all sequences of the batch submitted "
      "together. Steps are those that decode all sequences and hold no prompt token; TPOT is a "
      "step's time over its tokens per sequence.\n"
      "JSON keys: bench, model, device, batch_size, input_len, output_len, num_iters, load_ms; "
      "median_, "
      "p10_, p90_ of ttft_ms, tpot_ms, step_ms; num_steps, decode_tokens_per_s, step_bytes "
      "(weights and KV a step must read); with --memory-bandwidth: memory_bandwidth_gbps, "
      "floor_step_ms, floor_share (floor / median step); drafting: null, or rounds, draft_tokens, "
      "accepted_tokens, accept_length (tokens a round), accepted_at (share of rounds by draft), of "
      "the warm-up too.");
}

}  // namespace lapidary
