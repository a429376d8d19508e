// `lapidary bench latency`: how long a batch waits for its first tokens and for each one after.
#include <algorithm>

#include "apps/bench/bench_commands.h"
#include "apps/bench/engine_bench_flags.h"
#include "apps/draft_report.h"
#include "apps/size_words.h"
#include "base/progress.h"
#include "bench/engine_run.h"
#include "bench/memory_floor.h"
#include "bench/statistics.h"

namespace lapidary {
namespace {

using OrderedJson = nlohmann::ordered_json;

struct LatencyFlags {
  EngineBenchFlags engine;
  std::vector<int> batch_sizes = {1};
  std::vector<int> input_lens = {1024};
  std::vector<int> output_lens = {128};
  int num_iters = 3;
  int num_iters_warmup = 1;
  double memory_bandwidth = 0.0;  // GB/s; 0: unknown
};

// What one batch is made of.
struct BatchShape {
  int batch_size = 0;
  int input_len = 0;
  int output_len = 0;
};

// Every combination, lengths outside.
std::vector<BatchShape> Shapes(const LatencyFlags& flags) {
  std::vector<BatchShape> shapes;
  for (const int input_len : flags.input_lens) {
    for (const int output_len : flags.output_lens) {
      for (const int batch_size : flags.batch_sizes) {
        shapes.push_back({batch_size, input_len, output_len});
      }
    }
  }
  return shapes;
}

struct Samples {
  std::vector<double> prompt_tokens_per_s;  // of a batch, until its last first token
  std::vector<double> ttft_ms;
  std::vector<double> step_ms;
  std::vector<double> tpot_ms;
};

void Add(const bench::EngineRun& run, const BatchShape& shape, Samples& samples) {
  double last = 0.0;
  for (const double seconds : bench::FirstTokenSeconds(run)) {
    samples.ttft_ms.push_back(1e3 * seconds);
    last = std::max(last, seconds);
  }
  if (last > 0.0) {
    samples.prompt_tokens_per_s.push_back(1.0 * shape.batch_size * shape.input_len / last);
  }
  for (const bench::DecodeStep& step : bench::DecodeSteps(run)) {
    samples.step_ms.push_back(1e3 * step.seconds);
    samples.tpot_ms.push_back(1e3 * step.seconds / step.tokens_per_request);
  }
}

// `first_seed`: no two batches of a run share a prompt, or the prefix cache would answer.
Result<Samples> Measure(const LatencyFlags& flags, const BatchShape& shape, uint64_t first_seed,
                        Progress& progress, Session& session) {
  Samples samples;
  const int num_runs = flags.num_iters_warmup + flags.num_iters;
  for (int run_idx = 0; run_idx < num_runs; ++run_idx) {
    bench::RandomPromptOptions prompts;
    prompts.num_prompts = shape.batch_size;
    prompts.input_len = shape.input_len;
    prompts.output_len = shape.output_len;
    prompts.vocab_size = session.plan().vocab_size;
    prompts.seed = first_seed + run_idx;
    ASSIGN_OR_RETURN(const auto batch, bench::MakeRandomPrompts(prompts));
    ASSIGN_OR_RETURN(const bench::EngineRun run, bench::RunOnEngine(session, batch));
    if (run_idx >= flags.num_iters_warmup) Add(run, shape, samples);
    progress.Advance(1);
  }
  if (samples.step_ms.empty() && shape.output_len > 1) {
    return MakeError(
        "no step decoded all {} sequences together: give a longer --output-len, for prompts of "
        "--input-len {} come in one after the other",
        shape.batch_size, shape.input_len);
  }
  return samples;
}

void AddSpread(OrderedJson& json, const char* name, const std::vector<double>& values) {
  json[fmt::format("median_{}", name)] = bench::Median(values);
  json[fmt::format("p10_{}", name)] = bench::Percentile(values, 10);
  json[fmt::format("p90_{}", name)] = bench::Percentile(values, 90);
}

// Of all steps together: with drafts some give four tokens and some one.
double DecodeTokensPerSecond(const Samples& samples, int batch_size) {
  double total_ms = 0.0;
  double tokens_each = 0.0;
  for (size_t idx = 0; idx < samples.step_ms.size(); ++idx) {
    total_ms += samples.step_ms[idx];
    tokens_each += samples.step_ms[idx] / samples.tpot_ms[idx];
  }
  return total_ms > 0.0 ? 1e3 * batch_size * tokens_each / total_ms : 0.0;
}

// What was measured of one shape, without what a run's shapes share.
OrderedJson ShapeResult(const LatencyFlags& flags, const BatchShape& shape, const Samples& samples,
                        const Session& session) {
  OrderedJson json;
  AddSpread(json, "ttft_ms", samples.ttft_ms);
  json["prompt_tokens_per_s"] = bench::Median(samples.prompt_tokens_per_s);
  AddSpread(json, "tpot_ms", samples.tpot_ms);
  AddSpread(json, "step_ms", samples.step_ms);
  json["num_steps"] = samples.step_ms.size();
  json["decode_tokens_per_s"] = DecodeTokensPerSecond(samples, shape.batch_size);
  const double step_bytes =
      bench::DecodeStepBytes(session.plan(), session.weights(), shape.batch_size,
                             shape.input_len + shape.output_len / 2, flags.engine.CacheFormat());
  json["step_bytes"] = step_bytes;
  if (flags.memory_bandwidth > 0.0) {
    const double step_ms = bench::Median(samples.step_ms);
    const double floor_ms = step_bytes / (flags.memory_bandwidth * 1e6);
    json["memory_bandwidth_gbps"] = flags.memory_bandwidth;
    json["floor_step_ms"] = floor_ms;
    json["floor_share"] = step_ms > 0.0 ? floor_ms / step_ms : 0.0;
  }
  return json;
}

std::string ShapeText(const LatencyFlags& flags, const BatchShape& shape, const Samples& samples,
                      const OrderedJson& result) {
  std::string text = fmt::format(
      "{}: batch {}, {} tokens in, {} out, {} iterations\n"
      "           median        p10        p90 (ms)\n",
      flags.engine.model.model, shape.batch_size, shape.input_len, shape.output_len,
      flags.num_iters);
  const auto row = [&](const char* name, const std::vector<double>& values) {
    text += fmt::format("{:<6} {:10.3f} {:10.3f} {:10.3f}\n", name, bench::Median(values),
                        bench::Percentile(values, 10), bench::Percentile(values, 90));
  };
  row("TTFT", samples.ttft_ms);
  row("TPOT", samples.tpot_ms);
  row("step", samples.step_ms);
  text += fmt::format("{:.2f} tokens/s from {} decode-only steps; a step reads {:.3f} GB\n",
                      result["decode_tokens_per_s"].get<double>(), samples.step_ms.size(),
                      1e-9 * result["step_bytes"].get<double>());
  if (flags.memory_bandwidth > 0.0) {
    text += fmt::format("floor {:.3f} ms at {:.1f} GB/s: {:.1f}% of it reached\n",
                        result["floor_step_ms"].get<double>(), flags.memory_bandwidth,
                        100.0 * result["floor_share"].get<double>());
  }
  return text;
}

// A Markdown table, a row for each shape.
std::string Table(const LatencyFlags& flags, const OrderedJson& rows) {
  std::string text =
      fmt::format("{}, {} iterations, medians\n\n", flags.engine.model.model, flags.num_iters);
  const bool has_floor = flags.memory_bandwidth > 0.0;
  text += "| batch | tokens in |   out |    TTFT ms | prompt tok/s |    TPOT ms | decode tok/s |";
  text += has_floor ? " of floor |\n" : "\n";
  text += "|------:|----------:|------:|-----------:|-------------:|-----------:|-------------:|";
  text += has_floor ? "---------:|\n" : "\n";
  for (const OrderedJson& row : rows) {
    const auto number = [&](const char* key) { return row[key].get<double>(); };
    text += fmt::format("| {:5} | {:9} | {:5} | {:10.3f} | {:12.1f} | {:10.3f} | {:12.2f} |",
                        row["batch_size"].get<int>(), row["input_len"].get<int>(),
                        row["output_len"].get<int>(), number("median_ttft_ms"),
                        number("prompt_tokens_per_s"), number("median_tpot_ms"),
                        number("decode_tokens_per_s"));
    text += has_floor ? fmt::format(" {:7.1f}% |\n", 100.0 * number("floor_share")) : "\n";
  }
  return text;
}

OrderedJson ShapeJson(const BatchShape& shape) {
  return {{"batch_size", shape.batch_size},
          {"input_len", shape.input_len},
          {"output_len", shape.output_len}};
}

Status BenchLatency(LatencyFlags& flags) {
  RETURN_IF_ERROR(flags.engine.Complete());
  const int64_t longest = int64_t{*std::ranges::max_element(flags.input_lens)} +
                          *std::ranges::max_element(flags.output_lens);
  ASSIGN_OR_RETURN(const std::unique_ptr<Session> session,
                   flags.engine.Load(longest, *std::ranges::max_element(flags.batch_sizes)));
  const std::vector<BatchShape> shapes = Shapes(flags);
  const int runs_each = flags.num_iters_warmup + flags.num_iters;
  std::vector<Samples> samples;
  {
    Progress progress("iterations", runs_each * std::ssize(shapes), Progress::Unit::kItems);
    for (const BatchShape& shape : shapes) {
      const uint64_t first_seed = flags.engine.seed + samples.size() * runs_each;
      ASSIGN_OR_RETURN(Samples measured, Measure(flags, shape, first_seed, progress, *session));
      samples.push_back(std::move(measured));
    }
  }

  const DraftStats drafts = session->engine().stats().drafts;
  OrderedJson json = {{"bench", "latency"},
                      {"model", flags.engine.model.model},
                      {"device", DeviceName(flags.engine.Device())}};
  std::string text;
  if (shapes.size() == 1) {
    json.update(ShapeJson(shapes[0]));
    json["num_iters"] = flags.num_iters;
    json["load_ms"] = session->load_ms();
    const OrderedJson result = ShapeResult(flags, shapes[0], samples[0], *session);
    json.update(result);
    text = ShapeText(flags, shapes[0], samples[0], result);
  } else {
    json["num_iters"] = flags.num_iters;
    json["load_ms"] = session->load_ms();
    OrderedJson rows = OrderedJson::array();
    for (size_t idx = 0; idx < shapes.size(); ++idx) {
      rows.push_back(ShapeJson(shapes[idx]));
      rows.back().update(ShapeResult(flags, shapes[idx], samples[idx], *session));
    }
    text = Table(flags, rows);
    json["rows"] = std::move(rows);
  }
  json["drafting"] = DraftReport(drafts);
  text += DraftReportText(drafts);
  return flags.engine.Print(text, json);
}

}  // namespace

void AddBenchLatency(CommandLine& command_line, CLI::App* group) {
  auto flags = std::make_shared<LatencyFlags>();
  CLI::App* command =
      command_line.AddTo(group, "latency", "Time to the first token and per token of batches",
                         [flags] { return BenchLatency(*flags); });
  const auto add = [&](const char* name, std::vector<int>& values, const char* help, int most) {
    command->add_option(name, values, help)
        ->allow_extra_args(false)
        ->delimiter(',')
        ->transform(SizeWords())
        ->check(CLI::Range(1, most))
        ->default_str(std::to_string(values[0]));
  };
  add("--batch-size", flags->batch_sizes, "Sequences at once; several as 1,8,64", 256);
  add("--input-len", flags->input_lens, "Tokens of a prompt; several as 512,4096", 1 << 24);
  add("--output-len", flags->output_lens, "Tokens of an answer, or several", 1 << 24);
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
      "step's time over its tokens per sequence. Of several batch sizes or lengths every "
      "combination "
      "is measured, and the result is a table with a row for each.\n"
      "JSON keys: bench, model, device, batch_size, input_len, output_len, num_iters, load_ms; "
      "median_, p10_, p90_ of ttft_ms, tpot_ms, step_ms; prompt_tokens_per_s (a batch's, until the "
      "last of its first tokens), num_steps, decode_tokens_per_s, step_bytes "
      "(weights and KV a step must read); with --memory-bandwidth: memory_bandwidth_gbps, "
      "floor_step_ms, floor_share (floor / median step); drafting: null, or rounds, draft_tokens, "
      "accepted_tokens, accept_length (tokens a round), accepted_at (share of rounds by draft), of "
      "the warm-up too. A table's: bench, model, device, num_iters, load_ms, rows (a list of the "
      "others), drafting.");
}

}  // namespace lapidary
