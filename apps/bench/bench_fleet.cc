// `lapidary bench fleet`: many servers behind a router, in simulated time.
#include "apps/bench/bench_commands.h"
#include "apps/size_words.h"
#include "base/json.h"
#include "base/progress.h"
#include "bench/statistics.h"
#include "fleet/fleet_run.h"

namespace lapidary {
namespace {

struct FleetFlags {
  std::string model;
  std::string card;
  std::string trace;
  std::string policy;
  int num_replicas = 4;
  BatchLimits limits;
  double gpu_memory_utilization = 0.9;
  bool json = false;
};

nlohmann::ordered_json Percentiles(const std::vector<double>& values) {
  return {{"p50", bench::Percentile(values, 50)},
          {"p90", bench::Percentile(values, 90)},
          {"p99", bench::Percentile(values, 99)}};
}

std::string Text(const FleetFlags& flags, const fleet::FleetReport& report) {
  const auto line = [](const std::vector<double>& ms) {
    return fmt::format("{:.0f} / {:.0f} / {:.0f} ms", bench::Percentile(ms, 50),
                       bench::Percentile(ms, 90), bench::Percentile(ms, 99));
  };
  return fmt::format(
      "{} replicas of {} on {}, {}: {} answers of {} tokens in {:.1f} s simulated\n"
      "{:.0f} output tokens/s, {:.1f}% of {} prompt tokens found in the prefix caches\n"
      "TTFT p50 / p90 / p99 {}\n"
      "TPOT p50 / p90 / p99 {}\n",
      flags.num_replicas, flags.model, flags.card, flags.policy, report.num_answers,
      report.num_answer_tokens, report.duration_s,
      static_cast<double>(report.num_answer_tokens) / std::max(report.duration_s, 1e-9),
      100.0 * report.hit_rate(), report.num_prompt_tokens, line(report.ttft_ms),
      line(report.tpot_ms));
}

Status BenchFleet(const FleetFlags& flags) {
  ASSIGN_OR_RETURN(const simulated::Card* card, simulated::FindCard(flags.card));
  ASSIGN_OR_RETURN(
      const fleet::ReplicaModel model,
      fleet::MakeReplicaModel(flags.model, *card, flags.limits, flags.gpu_memory_utilization));
  ASSIGN_OR_RETURN(const auto policy, fleet::MakePolicy(flags.policy));
  ASSIGN_OR_RETURN(const auto trace, fleet::ReadTrace(flags.trace));
  int64_t num_answers = 0;
  for (const fleet::Conversation& conversation : trace)
    num_answers += std::ssize(conversation.turns);
  std::optional<Progress> progress(std::in_place, "answers", num_answers, Progress::Unit::kItems);
  ASSIGN_OR_RETURN(
      const fleet::FleetReport report,
      fleet::RunFleet(model, flags.num_replicas, *policy, trace, [&] { progress->Advance(1); }));
  progress.reset();
  if (!flags.json) {
    fmt::print("{}", Text(flags, report));
    return {};
  }
  const nlohmann::ordered_json json = {{"bench", "fleet"},
                                       {"model", flags.model},
                                       {"simulate", flags.card},
                                       {"replicas", flags.num_replicas},
                                       {"policy", flags.policy},
                                       {"duration_s", report.duration_s},
                                       {"answers", report.num_answers},
                                       {"answer_tokens", report.num_answer_tokens},
                                       {"prompt_tokens", report.num_prompt_tokens},
                                       {"hit_rate", report.hit_rate()},
                                       {"preemptions", report.num_preemptions},
                                       {"steps", report.num_steps},
                                       {"ttft_ms", Percentiles(report.ttft_ms)},
                                       {"tpot_ms", Percentiles(report.tpot_ms)}};
  fmt::print("{}\n", json.dump());
  return {};
}

}  // namespace

void AddBenchFleet(CommandLine& command_line, CLI::App* group) {
  auto flags = std::make_shared<FleetFlags>();
  flags->card = simulated::CardNames().front();
  flags->policy = fleet::PolicyNames().front();
  CLI::App* command = command_line.AddTo(
      group, "fleet", "Many servers behind a router, in simulated time and without a GPU",
      [flags] { return BenchFleet(*flags); });
  command->add_option("model", flags->model, "Preset (e2b to 31b) or checkpoint of its sizes")
      ->required();
  command->add_option("--trace", flags->trace, "Conversations, as tools/fleet.py writes them")
      ->required()
      ->check(CLI::ExistingFile);
  command->add_option("--simulate", flags->card, "GPU whose measured times steps take")
      ->check(CLI::IsMember(simulated::CardNames()))
      ->capture_default_str();
  command->add_option("--replicas", flags->num_replicas, "Servers")
      ->check(CLI::Range(1, 100'000))
      ->capture_default_str();
  command
      ->add_option("--policy", flags->policy,
                   "Which server gets a request: the next one, the one with the fewest open "
                   "requests, or the one that was sent the longest prefix of the prompt")
      ->check(CLI::IsMember(fleet::PolicyNames()))
      ->capture_default_str();
  command->add_option("--max-model-len", flags->limits.max_model_len, "As of serve")
      ->transform(SizeWords())
      ->check(CLI::Range(2, 1 << 28));
  command->add_option("--max-num-seqs", flags->limits.max_num_seqs, "As of serve")
      ->check(CLI::Range(1, 65536));
  command->add_option("--gpu-memory-utilization", flags->gpu_memory_utilization, "As of serve")
      ->check(CLI::Range(0.01, 1.0))
      ->capture_default_str();
  command->add_flag("--json", flags->json, "Print the result as one JSON object");
  command->footer(
      "The scheduler and the prefix caches are the real ones; steps take as long as measured on "
      "that GPU, answers are made up, HTTP and the router take no time.");
}

}  // namespace lapidary
