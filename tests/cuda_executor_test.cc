// The CUDA executor: against transformers, against the CPU executor, and against itself in every
// mode.
#include "executor/cuda/cuda_executor.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <fstream>
#include <random>

#include "device/device_info.h"
#include "executor/cpu/cpu_executor.h"
#include "load/memory_plan.h"
#include "model/tensor_sources.h"
#include "ops/cuda/test_buffer.h"
#include "tests/golden_file.h"
#include "tests/step_testing.h"
#include "tests/test_models.h"

namespace lapidary {
namespace {

// |a - b| / |b| of one row.
double RowError(const float* actual, const float* expected, int64_t count) {
  double error = 0.0;
  double norm = 0.0;
  for (int64_t idx = 0; idx < count; ++idx) {
    error += std::pow(double{actual[idx]} - expected[idx], 2);
    norm += std::pow(double{expected[idx]}, 2);
  }
  return std::sqrt(error / norm);
}

// The reference's own bf16 run against its float32 run, by the median row.
double ReferenceBf16Error(const std::string& model, const std::string& prompt) {
  std::ifstream file(std::filesystem::path(LAPIDARY_SOURCE_DIR) / "tests/goldens/bf16_errors.json");
  return Json::parse(file).at(model).at(prompt).get<double>();
}

class CudaExecutorTest : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override { LAPIDARY_SKIP_WITHOUT_GPU(); }

  void OpenCheckpoint(const SynthOptions& options) {
    const auto path = MakeTestModel(GetParam(), options, directory_);
    plan_ = MakeModelPlan(ParseModelConfig(TestConfig(GetParam()), GetParam()).value()).value();
    source_ = CheckpointSource::Open(path, plan_).value();
  }
  void MakeDummy() {
    plan_ = MakeModelPlan(ParseModelConfig(TestConfig(GetParam()), GetParam()).value()).value();
    ThreadPool threads(2);
    source_ = DummySource::Make(plan_, /*seed=*/3, threads).value();
  }

  std::unique_ptr<cuda::CudaExecutor> MakeExecutor(cuda::CudaExecutorOptions options = {}) const {
    options.num_pages = options.num_pages.value_or(400);
    if (options.max_num_seqs == cuda::CudaExecutorOptions().max_num_seqs) options.max_num_seqs = 32;
    options.max_num_batched_tokens = std::min(options.max_num_batched_tokens, 256);
    if (!options.kv_layout) options.kv_layout = MakeKvLayout(plan_, KvFormat::kBF16, {16, 64});
    auto executor = cuda::CudaExecutor::Create(plan_, source_.get(), options);
    CHECK(executor.ok()) << executor.error().message;
    (*executor)->PoisonPoolForTest();  // Nothing unwritten may ever count.
    return std::move(executor).value();
  }

  std::vector<int32_t> Tokens(int seed, int count) const {
    return RandomTokens(plan_, seed, count);
  }

  Logits RunChunks(const cuda::CudaExecutorOptions& options, std::span<const int32_t> ids,
                   const std::vector<int>& chunks) const {
    return RunInChunks(*MakeExecutor(options), ids, chunks);
  }

  // What the CPU executor makes of the same tokens.
  Logits CpuLogits(std::span<const int32_t> ids) const {
    auto executor = cpu::CpuExecutor::Create(plan_, source_, {.num_pages = 400}).value();
    return RunInChunks(*executor, ids, {64});
  }

  void ExpectSameBits(const Logits& expected, const Logits& actual, const std::string& mode) const {
    lapidary::ExpectSameBits(plan_, expected, actual, mode);
  }

  double MedianRowError(const Logits& actual, const float* expected) const {
    std::vector<double> errors;
    for (size_t at = 0; at < actual.size(); at += plan_.vocab_size) {
      errors.push_back(RowError(actual.data() + at, expected + at, plan_.vocab_size));
      EXPECT_TRUE(std::isfinite(errors.back())) << "row " << at / plan_.vocab_size;
    }
    std::nth_element(errors.begin(), errors.begin() + errors.size() / 2, errors.end());
    return errors[errors.size() / 2];
  }

  static SlotBinding Binding(size_t slot, const SamplingParams& params,
                             std::vector<int32_t> prompt) {
    SlotBinding binding;
    binding.slot = static_cast<int32_t>(slot);
    binding.sampling = std::make_shared<SamplingParams>(params);
    binding.prompt_len = static_cast<int32_t>(prompt.size());
    binding.tokens = std::move(prompt);
    return binding;
  }

  // Decodes `count` tokens for several sequences at once, as a server would, two steps in flight.
  std::vector<std::vector<int32_t>> Decode(Executor& executor,
                                           const std::vector<std::vector<int32_t>>& prompts,
                                           const std::vector<SamplingParams>& params,
                                           int count) const {
    PagePool pool(executor.num_pages());
    std::vector<SequencePages> pages;
    std::vector<std::vector<int32_t>> tokens(prompts.size());
    for (size_t idx = 0; idx < prompts.size(); ++idx) {
      pages.emplace_back(plan_, executor.kv_layout(), pool);
    }
    const auto submit = [&](int step) {
      StepBatch batch;
      for (size_t idx = 0; idx < prompts.size(); ++idx) {
        const std::vector<int32_t> next =
            step == 0 ? prompts[idx] : std::vector<int32_t>{kTokenFromSlot};
        if (step == 0) batch.bindings.push_back(Binding(idx, params[idx], prompts[idx]));
        AddStep(pages[idx], next, 1, static_cast<int32_t>(idx), batch);
        batch.sequences.back().samples = true;
        pages[idx].Commit(static_cast<int32_t>(next.size()));
      }
      executor.Submit(std::move(batch));
    };
    const auto collect = [&] {
      const StepOutput output = executor.Collect();
      for (size_t idx = 0; idx < prompts.size(); ++idx) {
        CHECK(!output.sequences[idx].error) << *output.sequences[idx].error;
        tokens[idx].push_back(output.sequences[idx].tokens.at(0).id);
      }
    };
    submit(0);
    for (int step = 1; step < count; ++step) {
      submit(step);
      collect();
    }
    collect();
    return tokens;
  }

  TemporaryDirectory directory_;
  ModelPlan plan_;
  std::shared_ptr<const TensorSource> source_;
};

TEST_P(CudaExecutorTest, AllocatesWhatTheMemoryPlanSays) {
  MakeDummy();
  for (const bool batch_invariant : {false, true}) {
    MemoryRequest request;
    request.kv_cache_bytes = int64_t{1} << 30;
    request.limits = {.max_num_seqs = 30, .max_num_batched_tokens = 200, .max_model_len = 64};
    request.cuda.batch_invariant = batch_invariant;
    request.cuda.ple_placement =
        batch_invariant ? cuda::PlePlacement::kHost : cuda::PlePlacement::kDevice;
    request.num_sms = DescribeDevice(0).num_sms;
    const MemoryPlan plan = PlanMemory(plan_, request).value();
    cuda::CudaExecutorOptions options = request.cuda;
    options.max_num_seqs = request.limits.max_num_seqs;
    options.max_num_batched_tokens = request.limits.max_num_batched_tokens;
    options.kv_layout = plan.layout;
    const auto executor = MakeExecutor(options);
    EXPECT_EQ(executor->weight_bytes_for_test(), plan.weight_bytes);
    EXPECT_EQ(executor->workspace_bytes_for_test(), plan.workspace_bytes);
  }
}

TEST_P(CudaExecutorTest, LogitsAreAsCloseAsTheReferencesOwnBf16) {
  const Golden golden = OpenGolden(GetParam());
  OpenCheckpoint(OptionsOf(golden));
  for (const std::string prompt : {"short", "long"}) {
    const std::vector<int32_t> ids = golden.Ids(prompt + ".ids");
    const TensorView expected = golden.Tensor(prompt + ".logits");
    for (const int chunk : {1, 64}) {
      const Logits logits = RunChunks({}, ids, {chunk});
      ASSERT_EQ(static_cast<int64_t>(logits.size()), expected.num_elements());
      const double error = MedianRowError(logits, expected.As<float>());
      const double reference = ReferenceBf16Error(GetParam(), prompt);
      EXPECT_LE(error, 1.5 * reference) << prompt << " in chunks of " << chunk;
      std::printf("%s %s chunk %d: median row error %.5f, the reference's bf16 %.5f\n",
                  GetParam().c_str(), prompt.c_str(), chunk, error, reference);
    }
  }
}

TEST_P(CudaExecutorTest, GreedyTokensAreTheReferencesUpToNearTies) {
  const Golden golden = OpenGolden(GetParam());
  OpenCheckpoint(OptionsOf(golden));
  for (const std::string prompt : {"short", "long"}) {
    const std::vector<int32_t> ids = golden.Ids(prompt + ".ids");
    const std::vector<int32_t> expected = golden.Ids(prompt + ".greedy");
    auto executor = MakeExecutor();
    const std::vector<int32_t> tokens =
        Decode(*executor, {ids}, {SamplingParams{.temperature = 0.0f}}, 128)[0];
    EXPECT_GT(executor->num_graphs_for_test(), 0);
    const auto [at, ignored] = std::mismatch(tokens.begin(), tokens.end(), expected.begin());
    if (at == tokens.end()) continue;
    // The CPU executor says how close the two candidates were.
    std::vector<int32_t> until = ids;
    until.insert(until.end(), tokens.begin(), at);
    const Logits reference = CpuLogits(until);
    const Logits last(reference.end() - plan_.vocab_size, reference.end());
    const float gap = last[expected[at - tokens.begin()]] - last[*at];
    const float largest = *std::max_element(
        last.begin(), last.end(), [](float a, float b) { return std::abs(a) < std::abs(b); });
    std::printf("%s %s: differs at token %td, gap %.4f of %.2f\n", GetParam().c_str(),
                prompt.c_str(), at - tokens.begin(), gap, std::abs(largest));
    // Noise of a row is several times the median where an expert flips.
    EXPECT_LT(gap, 6.0 * ReferenceBf16Error(GetParam(), prompt) * std::abs(largest)) << prompt;
  }
}

TEST_P(CudaExecutorTest, BatchInvariantModeGivesTheSameBitsInEveryChunking) {
  MakeDummy();
  const cuda::CudaExecutorOptions invariant{.batch_invariant = true};
  const std::vector<int32_t> ids = Tokens(1, 90);
  const Logits whole = RunChunks(invariant, ids, {90});
  for (const float logit : whole) ASSERT_TRUE(std::isfinite(logit));
  ExpectSameBits(whole, RunChunks(invariant, ids, {1}), "one token at a time");
  ExpectSameBits(whole, RunChunks(invariant, ids, {7, 1, 13, 2}), "odd chunks");
  ExpectSameBits(whole, RunChunks(invariant, ids, {3, 50}), "a chunk beyond the window");
  cuda::CudaExecutorOptions odd_pages = invariant;
  odd_pages.kv_layout = MakeKvLayout(plan_, KvFormat::kBF16, {7, 5});
  ExpectSameBits(whole, RunChunks(odd_pages, ids, {16}), "odd pages");
}

TEST_P(CudaExecutorTest, EveryModeStaysWithinBf16Noise) {
  MakeDummy();
  const std::vector<int32_t> ids = Tokens(1, 90);
  const Logits expected = CpuLogits(ids);
  const double noise = 1.5 * ReferenceBf16Error(GetParam(), "long");
  for (const std::vector<int>& chunks :
       std::vector<std::vector<int>>{{90}, {1}, {7, 1, 13, 2}, {3, 50}}) {
    EXPECT_LT(MedianRowError(RunChunks({}, ids, chunks), expected.data()), noise);
  }
  EXPECT_LT(MedianRowError(RunChunks({.ple_placement = cuda::PlePlacement::kHost}, ids, {20}),
                           expected.data()),
            noise);
}

TEST_P(CudaExecutorTest, PositionsBeyondAHundredThousandAreTheCpuExecutors) {
  MakeDummy();
  plan_.max_context = 1 << 17;
  constexpr int32_t kPast = 256;
  constexpr int32_t kHigh = 100'032;
  const std::vector<int32_t> past = Tokens(5, kPast);
  const std::vector<int32_t> ids = Tokens(6, 24);
  const auto on_cpu = [&](int32_t position) {
    cpu::CpuExecutorOptions options;
    options.num_pages = 400;
    options.kv_layout = MakeKvLayout(plan_, KvFormat::kF32, {16, 64});
    auto executor = cpu::CpuExecutor::Create(plan_, source_, options).value();
    return RunAtPosition(*executor, past, position, ids, {24});
  };
  const auto error_at = [&](int32_t position, const Logits& expected,
                            const std::vector<int>& chunks) {
    const double error = MedianRowError(RunAtPosition(*MakeExecutor(), past, position, ids, chunks),
                                        expected.data());
    std::printf("%s at %d in chunks of %d: median row error %.4f\n", GetParam().c_str(), position,
                chunks[0], error);
    return error;
  };
  // Rounding, measured where nothing is repeated and positions are low.
  const double tolerance = 2.0 * error_at(kPast, on_cpu(kPast), {24});
  const Logits expected = on_cpu(kHigh);
  for (const std::vector<int>& chunks : std::vector<std::vector<int>>{{24}, {1}, {5, 1, 8}}) {
    EXPECT_LT(error_at(kHigh, expected, chunks), tolerance) << "chunks of " << chunks[0];
  }
  // A position whose upper half is lost would show.
  EXPECT_GT(MedianRowError(on_cpu(kHigh % 65'536), expected.data()), 2 * tolerance);
  const cuda::CudaExecutorOptions invariant{.batch_invariant = true};
  ExpectSameBits(RunAtPosition(*MakeExecutor(invariant), past, kHigh, ids, {24}),
                 RunAtPosition(*MakeExecutor(invariant), past, kHigh, ids, {7, 1}),
                 "high positions");
}

TEST_P(CudaExecutorTest, TheTableOnTheHostGivesTheSameBits) {
  MakeDummy();
  const std::vector<int32_t> ids = Tokens(4, 60);
  ExpectSameBits(RunChunks({}, ids, {20}),
                 RunChunks({.ple_placement = cuda::PlePlacement::kHost}, ids, {20}), "--ple host");
}

TEST_P(CudaExecutorTest, WeightsMadeOnTheDeviceAreTheHosts) {
  MakeDummy();
  const std::vector<int32_t> ids = Tokens(5, 40);
  const Logits uploaded = RunChunks({}, ids, {40});
  source_ = nullptr;
  ExpectSameBits(uploaded, RunChunks({.dummy_seed = 3}, ids, {40}), "dummy weights");
}

TEST_P(CudaExecutorTest, TheShortcutForUnneededRowsDoesNotChangeABit) {
  MakeDummy();
  const std::vector<int32_t> ids = Tokens(3, 70);
  std::vector<Logits> last_rows;
  for (const bool skip : {true, false}) {
    auto executor = MakeExecutor({.skip_unneeded_rows = skip, .batch_invariant = true});
    last_rows.push_back(RunWithUnneededRows(*executor, ids));
  }
  ExpectSameBits(last_rows[0], last_rows[1], "shortcut on and off");
}

TEST_P(CudaExecutorTest, GraphsGiveTheTokensOfEagerSteps) {
  MakeDummy();
  std::vector<std::vector<int32_t>> prompts;
  std::vector<SamplingParams> params;
  for (int idx = 0; idx < 5; ++idx) {
    prompts.push_back(Tokens(20 + idx, 3 + 17 * idx));
    SamplingParams sampling{.temperature = idx % 2 == 0 ? 1.0f : 0.0f, .seed = uint64_t(idx)};
    if (idx == 2) sampling.top_k = 20;
    if (idx == 3) sampling.repetition_penalty = 1.3f;
    if (idx == 4) sampling.top_p = 0.8f;
    params.push_back(sampling);
  }
  for (const bool batch_invariant : {false, true}) {
    auto eager = MakeExecutor(
        {.batch_invariant = batch_invariant, .use_graphs = false, .dependent_launches = 0});
    auto graphs = MakeExecutor({.batch_invariant = batch_invariant, .dependent_launches = 31});
    const auto expected = Decode(*eager, prompts, params, 40);
    EXPECT_EQ(Decode(*graphs, prompts, params, 40), expected);
    EXPECT_GT(graphs->num_graphs_for_test(), 0);
    EXPECT_EQ(eager->num_graphs_for_test(), 0);
    if (!batch_invariant) continue;
    for (size_t idx = 0; idx < prompts.size(); ++idx) {  // alone = in a batch
      EXPECT_EQ(Decode(*graphs, {prompts[idx]}, {params[idx]}, 40)[0], expected[idx]) << idx;
    }
  }
}

TEST_P(CudaExecutorTest, SampledTokensAreTheHostSamplersOnTheSameLogits) {
  MakeDummy();
  auto executor = MakeExecutor();
  Sampler sampler(plan_.vocab_size);
  std::mt19937 random(8);
  for (int round = 0; round < 10; ++round) {
    PagePool pool(executor->num_pages());
    std::vector<SequencePages> pages;
    StepBatch batch;
    batch.return_logits = true;
    constexpr int kSequences = 4;
    pages.reserve(kSequences);
    std::vector<SamplingParams> all_params;
    std::vector<PenaltyState> histories(kSequences);
    for (int idx = 0; idx < kSequences; ++idx) {
      pages.emplace_back(plan_, executor->kv_layout(), pool);
      SamplingParams params{.temperature = 1.0f, .seed = random()};
      params.num_logprobs = 4;
      if (idx == 1) params.frequency_penalty = 1.0f;
      if (idx == 2) params.top_k = 10;
      if (idx == 3) params.logit_bias = {{5, 3.0f}};
      all_params.push_back(params);
      const std::vector<int32_t> prompt = Tokens(static_cast<int>(random() % 1000), 5 + idx);
      histories[idx].AddPrompt(prompt);
      batch.bindings.push_back(Binding(idx, params, prompt));
      AddStep(pages.back(), prompt, 1, idx, batch);
      batch.sequences.back().samples = true;
    }
    const StepOutput output = executor->Run(std::move(batch));
    for (int idx = 0; idx < kSequences; ++idx) {
      const std::span<const float> row(output.logits.data() + int64_t{idx} * plan_.vocab_size,
                                       static_cast<size_t>(plan_.vocab_size));
      const auto expected = sampler.Sample(row, all_params[idx], histories[idx], /*position=*/0);
      ASSERT_TRUE(expected.ok());
      const SampledToken& token = output.sequences[idx].tokens.at(0);
      EXPECT_EQ(token.id, expected->id);
      EXPECT_NEAR(token.logprob, expected->logprob, 1e-5);
      EXPECT_EQ(token.top[3].id, expected->top[3].id);
    }
    pages.clear();
  }
}

TEST_P(CudaExecutorTest, DraftsAreAcceptedExactlyWhereTheyAreTheSampledTokens) {
  MakeDummy();
  const std::vector<int32_t> prompt = Tokens(6, 30);
  const SamplingParams params{.temperature = 0.8f, .seed = 5};
  auto executor = MakeExecutor({.batch_invariant = true});
  const std::vector<int32_t> expected = Decode(*executor, {prompt}, {params}, 12)[0];
  for (const int wrong_at : {0, 2, 4, 99}) {
    PagePool pool(executor->num_pages());
    SequencePages pages(plan_, executor->kv_layout(), pool, /*slack=*/32);
    StepBatch first;
    first.bindings.push_back(Binding(0, params, prompt));
    AddStep(pages, prompt, 1, 0, first);
    first.sequences[0].samples = true;
    ASSERT_EQ(executor->Run(std::move(first)).sequences[0].tokens.at(0).id, expected[0]);
    pages.Commit(static_cast<int32_t>(prompt.size()));
    constexpr int kDrafts = 4;
    std::vector<int32_t> rows = {kTokenFromSlot};
    for (int idx = 0; idx < kDrafts; ++idx) {
      const int32_t draft = expected[1 + idx];
      rows.push_back(idx == wrong_at ? (draft + 1) % plan_.vocab_size : draft);
    }
    StepBatch verify;
    AddStep(pages, rows, kDrafts + 1, 0, verify);
    verify.sequences[0].num_drafts = kDrafts;
    verify.sequences[0].samples = true;
    const StepOutput output = executor->Run(std::move(verify));
    const int accepted = std::min(wrong_at, kDrafts) + 1;
    ASSERT_EQ(static_cast<int>(output.sequences[0].tokens.size()), accepted);
    for (int idx = 0; idx < accepted; ++idx) {
      EXPECT_EQ(output.sequences[0].tokens[idx].id, expected[1 + idx]);
    }
    pages.Commit(accepted);
    StepBatch next;  // The slot holds the last accepted token.
    AddStep(pages, std::vector<int32_t>{kTokenFromSlot}, 1, 0, next);
    next.sequences[0].samples = true;
    EXPECT_EQ(executor->Run(std::move(next)).sequences[0].tokens.at(0).id, expected[1 + accepted]);
  }
}

// The host plans a step before it knows how many drafts of the last one were right, and guesses
// drafts from there: some are accepted, some rejected, and attention's items cover lengths that
// turn out not to be.
TEST_P(CudaExecutorTest, TwoVerifyStepsInFlightGiveTheTokensOfPlainDecoding) {
  MakeDummy();
  constexpr int kDrafts = 3;
  constexpr int kTokens = 60;
  std::vector<std::vector<int32_t>> prompts;
  std::vector<SamplingParams> params;
  for (int idx = 0; idx < 3; ++idx) {
    prompts.push_back(Tokens(60 + idx, 5 + 40 * idx));
    params.push_back({.temperature = idx == 1 ? 0.0f : 0.9f, .seed = uint64_t(idx)});
    if (idx == 2) params.back().frequency_penalty = 0.5f;
  }
  for (const bool use_graphs : {false, true}) {
    auto executor = MakeExecutor({.batch_invariant = true, .use_graphs = use_graphs});
    const auto expected = Decode(*executor, prompts, params, kTokens + 4 * (kDrafts + 1));
    PagePool pool(executor->num_pages());
    std::vector<SequencePages> pages;
    std::vector<std::vector<int32_t>> tokens(prompts.size());
    std::mt19937 random(3);
    const auto submit = [&](bool is_first) {
      StepBatch batch;
      for (size_t idx = 0; idx < prompts.size(); ++idx) {
        std::vector<int32_t> ids = {kTokenFromSlot};
        // Where the step in flight ends is a guess.
        const size_t guess = tokens[idx].size() + 1 + random() % (kDrafts + 1);
        for (int draft = 0; draft < kDrafts; ++draft) {
          ids.push_back(expected[idx][std::min(guess + draft, expected[idx].size() - 1)]);
        }
        if (is_first) {
          ids = prompts[idx];
          pages.emplace_back(plan_, executor->kv_layout(), pool, 2 * (kDrafts + 1));
          batch.bindings.push_back(Binding(idx, params[idx], prompts[idx]));
        }
        SequenceStep step;
        step.slot = static_cast<int32_t>(idx);
        step.num_cached = pages[idx].max_length();
        step.num_uncertain = pages[idx].num_uncertain();
        step.num_rows = static_cast<int32_t>(ids.size());
        step.num_drafts = is_first ? 0 : kDrafts;
        step.num_outputs = step.num_drafts + 1;
        step.samples = true;
        ASSERT_TRUE(pages[idx].Reserve(step.num_rows, step.num_drafts));
        pages[idx].TakeTableChanges(step.slot, batch.table_entries);
        batch.token_ids.insert(batch.token_ids.end(), ids.begin(), ids.end());
        batch.sequences.push_back(step);
        pages[idx].Commit(step.num_rows, step.num_drafts);
      }
      executor->Submit(std::move(batch));
    };
    int num_accepted = 0;
    int num_rejected = 0;
    const auto collect = [&](bool is_first) {
      const StepOutput output = executor->Collect();
      for (size_t idx = 0; idx < prompts.size(); ++idx) {
        ASSERT_FALSE(output.sequences[idx].error);
        for (const SampledToken& token : output.sequences[idx].tokens) {
          tokens[idx].push_back(token.id);
        }
        if (is_first) continue;
        const int accepted = static_cast<int>(output.sequences[idx].tokens.size()) - 1;
        pages[idx].Settle(accepted, kDrafts - accepted);
        num_accepted += accepted;
        num_rejected += kDrafts - accepted;
      }
    };
    const auto is_done = [&] {
      return std::all_of(tokens.begin(), tokens.end(),
                         [](const auto& own) { return own.size() >= kTokens; });
    };
    submit(true);
    for (bool is_first = true; !is_done(); is_first = false) {
      submit(false);
      collect(is_first);
    }
    collect(false);
    for (size_t idx = 0; idx < prompts.size(); ++idx) {
      const size_t count = std::min(tokens[idx].size(), expected[idx].size());
      EXPECT_TRUE(
          std::equal(tokens[idx].begin(), tokens[idx].begin() + count, expected[idx].begin()))
          << "sequence " << idx << (use_graphs ? ", graphs" : "");
    }
    EXPECT_GT(num_accepted, 20);
    EXPECT_GT(num_rejected, 20);
    EXPECT_EQ(executor->num_graphs_for_test() > 0, use_graphs);
  }
}

TEST_P(CudaExecutorTest, ExpertsAreCountedWithoutPadding) {
  MakeDummy();
  if (!plan_.moe) return;
  cuda::CudaExecutorOptions options;
  options.skip_unneeded_rows = false;
  options.expert_counts = std::make_shared<ExpertCounts>();
  // Three sequences decode as a graph of more, replayed from the third step on.
  const std::vector<std::vector<int32_t>> prompts = {Tokens(1, 7), Tokens(2, 9), Tokens(3, 5)};
  constexpr int kCount = 6;
  Decode(*MakeExecutor(options), prompts, std::vector<SamplingParams>(prompts.size()), kCount);
  const uint64_t rows = 7 + 9 + 5 + prompts.size() * (kCount - 1);
  for (int layer = 0; layer < plan_.num_layers; ++layer) {
    uint64_t sum = 0;
    for (int expert = 0; expert < plan_.moe->num_experts; ++expert) {
      sum += options.expert_counts->Get(layer, expert);
    }
    EXPECT_EQ(sum, rows * plan_.moe->top_k) << layer;
  }
}

// Where nothing waits, kernels start early, steps are graphs and dense branches run beside experts.
TEST_P(CudaExecutorTest, BlockingLaunchesGiveTheSameTokens) {
  MakeDummy();
  for (const int num_sequences : {1, 12}) {
    std::vector<std::vector<int32_t>> prompts;
    for (int idx = 0; idx < num_sequences; ++idx) prompts.push_back(Tokens(1 + idx, 20 - idx));
    const std::vector<SamplingParams> params(num_sequences);
    const auto expected = Decode(*MakeExecutor({.synchronous = true}), prompts, params, 24);
    EXPECT_EQ(Decode(*MakeExecutor(), prompts, params, 24), expected);
    EXPECT_EQ(Decode(*MakeExecutor({.use_graphs = false}), prompts, params, 24), expected);
  }
}

// With logprobs the logits of many rows are capped, without them the likeliest is taken as they
// are.
TEST_P(CudaExecutorTest, TheCapDoesNotChangeTheLikeliestToken) {
  MakeDummy();
  constexpr int kSequences = 100;
  std::vector<std::vector<int32_t>> prompts;
  for (int idx = 0; idx < kSequences; ++idx) prompts.push_back(Tokens(idx, 2));
  const cuda::CudaExecutorOptions options{.max_num_seqs = kSequences};
  const auto decode = [&](int num_logprobs) {
    const SamplingParams params{.temperature = 0.0f, .num_logprobs = num_logprobs};
    return Decode(*MakeExecutor(options), prompts, std::vector(kSequences, params), 8);
  };
  EXPECT_EQ(decode(-1), decode(0));
}

INSTANTIATE_TEST_SUITE_P(Models, CudaExecutorTest,
                         testing::Values("tiny-e", "tiny-moe", "tiny-dense"), ModelTestName);

TEST(CudaExecutorErrorTest, HeadSizesWithoutAKernelAreRefused) {
  const ModelPlan plan =
      MakeModelPlan(ParseModelConfig(TestConfig("odd-window"), "odd-window").value()).value();
  const auto executor = cuda::CudaExecutor::Create(plan, nullptr, {});
  ASSERT_FALSE(executor.ok());
  EXPECT_NE(executor.error().message.find("use --device cpu"), std::string::npos);
}

TEST(CudaExecutorErrorTest, TooSmallAShareOfMemoryIsExplained) {
  LAPIDARY_SKIP_WITHOUT_GPU();
  const ModelPlan plan =
      MakeModelPlan(ParseModelConfig(TestConfig("tiny-e"), "tiny-e").value()).value();
  const auto executor = cuda::CudaExecutor::Create(plan, nullptr, {.memory = {.share = 0.0001}});
  ASSERT_FALSE(executor.ok());
  EXPECT_NE(executor.error().message.find("--gpu-memory-utilization"), std::string::npos);
}

}  // namespace
}  // namespace lapidary
