// Times whole steps of the CUDA executor on dummy weights: prefill, and decode at a given number of
// sequences and context, with drafts to verify or without; no scheduler, no server.
#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <fstream>

#include "bench/memory_floor.h"
#include "executor/cuda/cuda_executor.h"
#include "load/model_directory.h"

namespace lapidary::cuda {
namespace {

using Clock = std::chrono::steady_clock;

double MillisecondsSince(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

struct Case {
  int sequences = 1;
  int context = 1000;
  int drafts = 0;  // a sequence verifies in a step
};

// One executor's sequences; they only grow.
class Run {
 public:
  Run(CudaExecutor& executor, const Case& c, const SamplingParams& params)
      : executor_(executor), case_(c), pool_(executor.num_pages()) {
    params_ = std::make_shared<SamplingParams>(params);
    pages_.reserve(c.sequences);
    for (int idx = 0; idx < c.sequences; ++idx) {
      pages_.emplace_back(executor.plan(), executor.kv_layout(), pool_, 32);
    }
  }

  // All prompts, in chunks of at most max_rows rows over the sequences; ms in all.
  double Prefill(int max_rows) {
    const auto start = Clock::now();
    for (size_t idx = 0; idx < pages_.size(); ++idx) {
      for (int done = 0; done < case_.context;) {
        const int count = std::min(max_rows, case_.context - done);
        StepBatch batch;
        std::vector<int32_t> ids(count);
        for (int at = 0; at < count; ++at) {
          ids[at] = (97 * (done + at) + 31 * static_cast<int>(idx)) % executor_.plan().vocab_size;
        }
        Add(idx, ids, done + count == case_.context, 0, batch);
        executor_.Run(std::move(batch));
        done += count;
      }
    }
    return MillisecondsSince(start);
  }

  // Median ms per decode step, two steps in flight as the engine has them.
  double Decode(int num_steps) {
    std::vector<double> times;
    Submit();
    auto last = Clock::now();
    for (int step = 0; step < num_steps; ++step) {
      Submit();
      Collect();
      times.push_back(MillisecondsSince(last));
      last = Clock::now();
    }
    Collect();
    std::sort(times.begin(), times.end());
    return times[times.size() / 2];
  }

 private:
  void Submit() {
    StepBatch batch;
    std::vector<int32_t> ids(1 + case_.drafts, 1);  // drafts that are hardly ever right
    ids[0] = kTokenFromSlot;
    for (size_t idx = 0; idx < pages_.size(); ++idx) Add(idx, ids, true, case_.drafts, batch);
    executor_.Submit(std::move(batch));
  }

  void Collect() {
    const StepOutput output = executor_.Collect();
    for (size_t idx = 0; idx < pages_.size(); ++idx) {
      const int accepted = static_cast<int>(output.sequences[idx].tokens.size()) - 1;
      pages_[idx].Settle(accepted, case_.drafts - accepted);
    }
  }

  void Add(size_t idx, const std::vector<int32_t>& ids, bool samples, int num_drafts,
           StepBatch& batch) {
    SequenceStep step;
    step.slot = static_cast<int32_t>(idx);
    step.num_rows = static_cast<int32_t>(ids.size());
    step.num_cached = pages_[idx].max_length();
    step.num_uncertain = pages_[idx].num_uncertain();
    step.num_outputs = samples ? 1 + num_drafts : 0;
    step.samples = samples;
    step.num_drafts = num_drafts;
    if (step.num_cached == 0) {
      batch.bindings.push_back(
          {.slot = step.slot, .sampling = params_, .prompt_len = case_.context});
    }
    CHECK(pages_[idx].Reserve(step.num_rows, num_drafts));
    pages_[idx].TakeTableChanges(step.slot, batch.table_entries);
    batch.token_ids.insert(batch.token_ids.end(), ids.begin(), ids.end());
    batch.sequences.push_back(step);
    pages_[idx].Commit(step.num_rows, num_drafts);
  }

  CudaExecutor& executor_;
  const Case case_;
  PagePool pool_;
  std::vector<SequencePages> pages_;
  std::shared_ptr<SamplingParams> params_;
};

int Main(int argc, char** argv) {
  CLI::App app("Times steps of the CUDA executor on dummy weights");
  std::string preset = "e2b";
  std::vector<int> sequences = {1};
  std::vector<int> drafts = {0};
  int context = 1000;
  int steps = 100;
  int max_rows = 2048;
  SamplingParams sampling;
  sampling.temperature = 0.0f;
  double bandwidth = 4.2e12;
  std::string json;
  CudaExecutorOptions options;
  bool eager = false;
  app.add_option("--preset", preset);
  app.add_option("--sequences", sequences, "One case for each")->delimiter(',');
  app.add_option("--drafts", drafts, "That each sequence verifies; one case for each")
      ->delimiter(',')
      ->check(CLI::Range(0, static_cast<int>(kMaxDrafts)));
  app.add_option("--context", context);
  app.add_option("--steps", steps);
  app.add_option("--max-rows", max_rows);
  app.add_option("--temperature", sampling.temperature);
  app.add_option("--top-k", sampling.top_k);
  app.add_option("--top-p", sampling.top_p);
  std::string quantisation;
  app.add_option("--quantization", quantisation, "Format of the weights: q4_0 or q8_0; else bf16")
      ->check(CLI::IsMember({"q4_0", "q8_0"}));
  app.add_option("--bandwidth", bandwidth, "Bytes per second of the floor");
  app.add_option("--json", json, "Append a line per case to this file");
  app.add_flag("--eager", eager);
  app.add_flag("!--kernel-by-kernel", options.resident_steps, "No one-token steps as one kernel");
  app.add_option("--dependent", options.dependent_launches, "DependentLaunch bits");
  app.add_flag("--batch-invariant", options.batch_invariant);
  CLI11_PARSE(app, argc, argv);
  if (!quantisation.empty()) {
    options.quantisation = quantisation == "q4_0" ? DType::kQ4_0 : DType::kQ8_0;
  }
  options.use_graphs = !eager;
  options.max_num_seqs = std::max(16, *std::max_element(sequences.begin(), sequences.end()));
  options.max_num_batched_tokens = max_rows;

  const auto description = DescribeModel(preset);
  if (!description.ok()) {
    fmt::print(stderr, "error: {}\n", description.error().message);
    return 1;
  }
  const auto start = Clock::now();
  auto executor = CudaExecutor::Create(description->plan, nullptr, options);
  if (!executor.ok()) {
    fmt::print(stderr, "error: {}\n", executor.error().message);
    return 1;
  }
  fmt::print("{}: ready in {:.1f} s\n", preset, 1e-3 * MillisecondsSince(start));
  for (const int count : sequences) {
    for (const int num_drafts : drafts) {
      const Case c{.sequences = count, .context = context, .drafts = num_drafts};
      Run run(**executor, c, sampling);
      const double prefill_ms = run.Prefill(max_rows);
      run.Decode(8);
      const double step_ms = run.Decode(steps);
      const double floor_ms =
          1e3 *
          bench::DecodeStepBytes(
              description->plan,
              MakeFootprint(
                  description->plan,
                  WeightPlan::Make(RequiredTensors(description->plan), nullptr,
                                   {.reader = WeightReader::kGpu, .rounding = options.quantisation})
                      .value()),
              c.sequences, c.context, KvFormat::kBF16) /
          bandwidth;
      const std::string shape = fmt::format("{} x{} @{}{}", preset, count, context,
                                            num_drafts > 0 ? fmt::format(" +{}", num_drafts) : "");
      fmt::print(
          "{}: {:.3f} ms a step, floor {:.3f} ({:.0f}%), {:.0f} tok/s; prefill {:.0f} tok/s\n",
          shape, step_ms, floor_ms, 100.0 * floor_ms / step_ms, 1e3 * count / step_ms,
          1e3 * count * context / prefill_ms);
      if (json.empty()) continue;
      std::ofstream(json, std::ios::app)
          << fmt::format(
                 R"({{"name":"step","shape":"{}","us":{:.1f},"floor_us":{:.1f},"floor_share":{:.3f},"prefill_tok_s":{:.0f}}})",
                 shape, 1e3 * step_ms, 1e3 * floor_ms, floor_ms / step_ms,
                 1e3 * count * context / prefill_ms)
          << "\n";
    }
  }
  return 0;
}

}  // namespace
}  // namespace lapidary::cuda

int main(int argc, char** argv) {
  spdlog::set_level(spdlog::level::warn);
  return lapidary::cuda::Main(argc, argv);
}
