// `lapidary bench throughput`: many prompts, all there from the beginning, as fast as they go.
#include "apps/bench/bench_commands.h"
#include "apps/bench/engine_bench_flags.h"
#include "apps/draft_report.h"
#include "base/progress.h"
#include "bench/engine_run.h"
#include "bench/statistics.h"

namespace lapidary {
namespace {

struct ThroughputFlags {
  EngineBenchFlags engine;
  int num_prompts = 100;
  int input_len = 1024;
  int output_len = 128;
  double range_ratio = 0.0;
  int max_num_seqs = 64;
};

Result<std::vector<bench::BenchPrompt>> Prompts(const ThroughputFlags& flags, int vocab_size,
                                                int num_prompts, uint64_t seed) {
  bench::RandomPromptOptions options;
  options.num_prompts = num_prompts;
  options.input_len = flags.input_len;
  options.output_len = flags.output_len;
  options.range_ratio = flags.range_ratio;
  options.vocab_size = vocab_size;
  options.seed = seed;
  return bench::MakeRandomPrompts(options);
}

Status BenchThroughput(ThroughputFlags& flags) {
  RETURN_IF_ERROR(flags.engine.Complete());
  const double longest = (1.0 + flags.range_ratio) * (flags.input_len + flags.output_len) + 2.0;
  const int64_t max_tokens = flags.range_ratio > 0.0 ? static_cast<int64_t>(longest)
                                                     : int64_t{flags.input_len} + flags.output_len;
  ASSIGN_OR_RETURN(const std::unique_ptr<Session> session,
                   flags.engine.Load(max_tokens, std::min(flags.num_prompts, flags.max_num_seqs),
                                     flags.max_num_seqs));
  const int vocab_size = session->plan().vocab_size;
  ASSIGN_OR_RETURN(auto warm_up, Prompts(flags, vocab_size, 1, flags.engine.seed + 1));
  warm_up[0].output_len = std::min(warm_up[0].output_len, 4);
  RETURN_IF_ERROR(bench::RunOnEngine(*session, warm_up));

  ASSIGN_OR_RETURN(const auto prompts,
                   Prompts(flags, vocab_size, flags.num_prompts, flags.engine.seed));
  std::optional<Progress> progress(std::in_place, "prompts", flags.num_prompts,
                                   Progress::Unit::kItems);
  bench::EngineRunOptions run_options;
  run_options.on_finished = [&] { progress->Advance(1); };
  ASSIGN_OR_RETURN(const bench::EngineRun run, bench::RunOnEngine(*session, prompts, run_options));
  progress.reset();

  int64_t num_input_tokens = 0;
  for (const bench::BenchPrompt& prompt : prompts) num_input_tokens += std::ssize(prompt.ids);
  const int64_t num_tokens = num_input_tokens + run.num_output_tokens;
  const auto per_second = [&](int64_t count) {
    return static_cast<double>(count) / std::max(run.duration_s, 1e-9);
  };
  const double ttft_ms = 1e3 * bench::Median(bench::FirstTokenSeconds(run));
  const std::vector<double> token_seconds = bench::TokenSeconds(run);
  const double mean_tpot_ms = 1e3 * bench::Mean(token_seconds);
  const double median_tpot_ms = 1e3 * bench::Median(token_seconds);
  const DraftStats drafts = session->engine().stats().drafts;
  const nlohmann::ordered_json json = {
      {"bench", "throughput"},
      {"model", flags.engine.model.model},
      {"device", DeviceName(flags.engine.Device())},
      {"input_len", flags.input_len},
      {"output_len", flags.output_len},
      {"max_num_seqs", flags.max_num_seqs},
      {"load_ms", session->load_ms()},
      {"elapsed_time", run.duration_s},
      {"num_requests", flags.num_prompts},
      {"num_input_tokens", num_input_tokens},
      {"num_output_tokens", run.num_output_tokens},
      {"total_num_tokens", num_tokens},
      {"requests_per_second", per_second(flags.num_prompts)},
      {"tokens_per_second", per_second(num_tokens)},
      {"output_tokens_per_second", per_second(run.num_output_tokens)},
      {"median_ttft_ms", ttft_ms},
      {"mean_tpot_ms", mean_tpot_ms},
      {"median_tpot_ms", median_tpot_ms},
      {"drafting", DraftReport(drafts)}};
  const std::string text = fmt::format(
      "{}: {} prompts, {} tokens in, {} out, in {:.2f} s\n"
      "{:.2f} requests/s, {:.2f} tokens/s, of them {:.2f} output tokens/s\n"
      "TTFT median {:.1f} ms, TPOT mean {:.2f} ms, median {:.2f} ms\n{}",
      flags.engine.model.model, flags.num_prompts, num_input_tokens, run.num_output_tokens,
      run.duration_s, per_second(flags.num_prompts), per_second(num_tokens),
      per_second(run.num_output_tokens), ttft_ms, mean_tpot_ms, median_tpot_ms,
      DraftReportText(drafts));
  return flags.engine.Print(text, json);
}

}  // namespace

void AddBenchThroughput(CommandLine& command_line, CLI::App* group) {
  auto flags = std::make_shared<ThroughputFlags>();
  CLI::App* command =
      command_line.AddTo(group, "throughput", "Many prompts at once, without a server",
                         [flags] { return BenchThroughput(*flags); });
  command->add_option("--num-prompts", flags->num_prompts, "Prompts")
      ->check(CLI::Range(1, 10'000'000))
      ->capture_default_str();
  AddLengthFlags(*command, flags->input_len, flags->output_len);
  command
      ->add_option("--random-range-ratio", flags->range_ratio,
                   "Lengths are uniform in [len * (1 - ratio), len * (1 + ratio)]")
      ->check(CLI::Range(0.0, 0.999))
      ->capture_default_str();
  command
      ->add_option("--max-num-seqs", flags->max_num_seqs,
                   "Sequences that run at once, all with room in the KV cache")
      ->check(CLI::Range(1, 256))
      ->capture_default_str();
  flags->engine.AddTo(*command);
  command->footer(
      "JSON keys: bench, model, device, input_len, output_len, max_num_seqs, load_ms, elapsed_time "
      "(s), "
      "num_requests, num_input_tokens, num_output_tokens, total_num_tokens, requests_per_second, "
      "tokens_per_second, output_tokens_per_second, median_ttft_ms (from the beginning of the "
      "run), mean_tpot_ms and median_tpot_ms (of a request's tokens after its first), drafting "
      "(null, or rounds, draft_tokens, accepted_tokens, accept_length, "
      "accepted_at).");
}

}  // namespace lapidary
