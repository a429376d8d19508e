#include "executor/cpu/cpu_executor.h"

#include <algorithm>
#include <deque>

#include "base/check.h"
#include "base/memory_reserve.h"
#include "executor/draft_rounds.h"
#include "model/converted_source.h"
#include "ops/cpu/linear_tiles.h"
#include "sampling/accept.h"
#include "sampling/simulated_acceptance.h"

namespace lapidary::cpu {
namespace {

// What a thread may do for the text that a step drafts.
constexpr int64_t kDraftSteps = grammar::Work::kStepsPerMillisecond;

constexpr const char* kHasFailed = "the sequence has failed in an earlier step";

std::shared_ptr<const SamplingParams> DraftSampling(const SamplingParams& request, DraftDraw draw) {
  auto sampling = std::make_shared<SamplingParams>(request);
  sampling->num_logprobs = -1;
  if (draw == DraftDraw::kLikeliest) sampling->temperature = 0.0f;
  return sampling;
}

bool AllowsToken(const SamplingParams& sampling, int32_t id) {
  const auto holds = [id](const std::vector<int32_t>& ids) {
    return std::ranges::find(ids, id) != ids.end();
  };
  return (sampling.allowed_tokens.empty() || holds(sampling.allowed_tokens)) &&
         !holds(sampling.suppress_tokens);
}

ThreadPlacement PlacementOf(const CpuExecutorOptions& options) {
  if (options.placement) return *options.placement;
  return PlaceThreads(CpuTopology::OfThisMachine(), options.num_threads, NumaMode::kOff,
                      /*pin=*/false);
}

// The part of each rank, in the formats that it reads.
Result<std::vector<RankWeights>> SplitWeights(const ModelPlan& plan,
                                              std::shared_ptr<const TensorSource> source,
                                              const CpuExecutorOptions& options,
                                              ThreadPool& threads) {
  CutUnits units;
  if (options.num_ranks > 1) {
    ASSIGN_OR_RETURN(units, CutUnitsOf(RequiredTensors(plan), *source));
  }
  // Several ranks read what each of them has whole.
  const bool releases_repacked = options.release_repacked && options.num_ranks == 1;
  std::vector<RankWeights> ranks;
  for (int idx = 0; idx < options.num_ranks; ++idx) {
    RankWeights rank;
    ASSIGN_OR_RETURN(rank.shard, ShardOf(plan, idx, options.num_ranks, units));
    rank.source = source;
    if (options.num_ranks > 1) {
      ASSIGN_OR_RETURN(rank.source, ShardSource::Make(rank.shard.tensors, source, threads));
    }
    if (options.fast_math) {
      // Panels are made by the threads that will read them. FP8 and NVFP4 have no products of
      // integers; as bf16 they have AMX.
      ASSIGN_OR_RETURN(const WeightPlan panels,
                       WeightPlan::Make(RequiredTensors(rank.shard.plan), rank.source.get(),
                                        {.reader = WeightReader::kCpuIntegers,
                                         .rounds_float_codes = HasTiles()}));
      ASSIGN_OR_RETURN(rank.source, ConvertedSource::Wrap(panels, std::move(rank.source), threads,
                                                          releases_repacked));
    }
    ASSIGN_OR_RETURN(rank.weights, BindWeights(rank.shard.plan, *rank.source));
    ranks.push_back(std::move(rank));
  }
  return ranks;
}

}  // namespace

Result<std::unique_ptr<CpuExecutor>> CpuExecutor::Create(const ModelPlan& plan,
                                                         std::shared_ptr<const TensorSource> source,
                                                         const CpuExecutorOptions& options) {
  ASSIGN_OR_RETURN(const Shard first, ShardOf(plan, 0, options.num_ranks));
  KvLayout layout =
      options.kv_layout ? *options.kv_layout : MakeKvLayout(first.plan, KvFormat::kF32);
  auto executor = std::unique_ptr<CpuExecutor>(new CpuExecutor(plan, std::move(layout), options));
  RETURN_IF_ERROR(executor->MakeRanks(std::move(source), options));
  executor->worker_ = std::thread([raw = executor.get()] { raw->WorkerLoop(); });
  return executor;
}

CpuExecutor::CpuExecutor(const ModelPlan& plan, KvLayout layout, const CpuExecutorOptions& options)
    : plan_(plan),
      drafter_options_(options.drafter),
      lookup_(options.lookup),
      expert_counts_(options.expert_counts),
      layout_(std::move(layout)),
      num_pages_(options.num_pages),
      threads_(PlacementOf(options)),
      mask_steps_(options.mask_steps) {
  if (expert_counts_ && plan_.moe) {
    expert_counts_->Resize(plan_.num_layers, plan_.moe->num_experts);
  }
  for (int thread_idx = 0; thread_idx < threads_.num_threads(); ++thread_idx) {
    samplers_.push_back(std::make_unique<Sampler>(plan_.vocab_size));
    masks_.emplace_back();
  }
}

Status CpuExecutor::MakeRanks(std::shared_ptr<const TensorSource> source,
                              const CpuExecutorOptions& options) {
  ASSIGN_OR_RETURN(std::vector<RankWeights> weights,
                   SplitWeights(plan_, std::move(source), options, threads_));
  ASSIGN_OR_RETURN(
      ranks_, CpuRanks::Make(std::move(weights), plan_, layout_, tables_, threads_,
                             {.num_pages = options.num_pages,
                              .bf16_math = options.fast_math ? Bf16Math::kTiles : Bf16Math::kExact,
                              .skip_unneeded_rows = options.skip_unneeded_rows,
                              .expert_counts = expert_counts_.get()}));
  if (drafter_options_) {
    ASSIGN_OR_RETURN(drafter_, CpuDraftRanks::Make(*drafter_options_, *ranks_, threads_));
  }
  return {};
}

CpuExecutor::~CpuExecutor() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  if (worker_.joinable()) worker_.join();
}

void CpuExecutor::Submit(StepBatch batch) {
  {
    const std::lock_guard lock(mutex_);
    CHECK_LT(num_uncollected_, 2);
    if (!failure_) submitted_.push_back(std::move(batch));
    ++num_uncollected_;
  }
  changed_.notify_all();
}

StepOutput CpuExecutor::Collect() {
  std::unique_lock lock(mutex_);
  CHECK_GT(num_uncollected_, 0);
  changed_.wait(lock, [&] { return !finished_.empty() || failure_; });
  --num_uncollected_;
  if (finished_.empty()) {
    const std::exception_ptr failure = failure_;
    if (num_uncollected_ == 0) failure_ = nullptr;
    std::rethrow_exception(failure);
  }
  StepOutput output = std::move(finished_.front());
  finished_.pop_front();
  return output;
}

void CpuExecutor::ForgetSlots() {
  const std::lock_guard lock(mutex_);
  CHECK_EQ(num_uncollected_, 0);
  for (Request& request : requests_) request = {};
  constraints_.Clear();
}

void CpuExecutor::WorkerLoop() {
  threads_.BindCaller();
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return stopping_ || !submitted_.empty(); });
    if (stopping_) return;
    StepBatch batch = std::move(submitted_.front());
    submitted_.pop_front();
    lock.unlock();
    std::optional<StepOutput> output;
    std::exception_ptr failure;
    try {
      output = RunStep(batch);
    } catch (const std::exception&) {
      failure = std::current_exception();
    }
    lock.lock();
    if (output) {
      Insist([&] { finished_.push_back(std::move(*output)); });
    } else {
      failure_ = failure;
      submitted_.clear();
    }
    changed_.notify_all();
  }
}

void CpuExecutor::BindSlots(const StepBatch& batch) {
  int32_t end_slot = static_cast<int32_t>(requests_.size());
  for (const SlotBinding& binding : batch.bindings) end_slot = std::max(end_slot, binding.slot + 1);
  for (const SequenceStep& step : batch.sequences) end_slot = std::max(end_slot, step.slot + 1);
  requests_.resize(end_slot);
  slot_states_.resize(end_slot);
  constraints_.Reserve(end_slot);
  if (drafter_) last_hidden_.resize(end_slot);
  if (lookup_ && end_slot > std::ssize(texts_)) texts_.resize(end_slot, RepeatedText(*lookup_));
  for (const SlotBinding& binding : batch.bindings) {
    Request& request = requests_[binding.slot];
    request = {.sampling = binding.sampling,
               .draft_sampling = {},
               .history = {},
               .num_score_top = binding.num_score_top,
               .prompt_len = binding.prompt_len,
               .media = binding.media,
               .adapter = binding.adapter};
    CHECK(!request.adapter || takes_adapters());
    if (drafter_ && binding.sampling) {
      request.draft_sampling = DraftSampling(*binding.sampling, drafter_options_->draw);
    }
    const auto prompt = std::span(binding.tokens)
                            .first(std::min<size_t>(binding.tokens.size(), binding.prompt_len));
    const auto outputs = std::span(binding.tokens).subspan(prompt.size());
    if (binding.sampling != nullptr && binding.sampling->has_penalties()) {
      request.history.AddPrompt(prompt);
      for (const int32_t id : outputs) request.history.AddOutput(id);
    }
    constraints_.Bind(binding);
    if (lookup_) texts_[binding.slot].Assign(binding.tokens);
    slot_states_[binding.slot] = {};
    tables_.Forget(binding.slot);
  }
  tables_.Set(batch.table_entries);
}

StepRows CpuExecutor::MakeRows(const StepBatch& batch) const {
  StepRows rows = FlattenBatch(batch, slot_states_);
  for (size_t idx = 0; idx < batch.sequences.size(); ++idx) {
    const auto& media = requests_[batch.sequences[idx].slot].media;
    if (media) PlaceSoftTokens(plan_, *media, idx, rows);
    const auto& adapter = requests_[batch.sequences[idx].slot].adapter;
    if (!adapter) continue;
    rows.adapters.resize(rows.num_rows());
    std::fill(rows.adapters.begin() + rows.sequence_begin[idx],
              rows.adapters.begin() + rows.sequence_begin[idx + 1], adapter.get());
  }
  return rows;
}

StepOutput CpuExecutor::RunStep(StepBatch& batch) {
  BindSlots(batch);
  for (const PageCopy& copy : batch.page_copies) ranks_->CopyPage(copy);
  StepOutput output;
  output.sequences.resize(batch.sequences.size());
  LeaveOutFailed(slot_states_, batch);
  for (size_t idx = 0; idx < batch.sequences.size(); ++idx) {
    const bool has_failed = slot_states_[batch.sequences[idx].slot].has_failed;
    if (has_failed) output.sequences[idx].error = kHasFailed;
  }
  if (batch.token_ids.empty()) return output;
  DraftText(batch, output);
  if (drafter_) DraftTokens(batch, output);
  ranks_->Run(MakeRows(batch));
  const std::span<const float> logits = ranks_->logits();
  ScoreOutputs(batch, logits, output);
  SampleOutputs(batch, logits, output);
  if (batch.return_logits) output.logits.assign(logits.begin(), logits.end());
  return output;
}

void CpuExecutor::DraftText(StepBatch& batch, StepOutput& output) {
  const auto has_quota = [](const SequenceStep& sequence) { return sequence.quota.has_value(); };
  if (std::ranges::none_of(batch.sequences, has_quota)) return;
  std::vector<int32_t> end_row;
  int32_t num_rows = 0;
  for (const SequenceStep& sequence : batch.sequences) {
    end_row.push_back(num_rows += sequence.num_rows);
  }
  std::deque<grammar::Work> works;  // by thread
  while (std::ssize(works) < threads_.num_threads()) works.emplace_back(kDraftSteps);
  std::vector<int32_t> num_drafts(batch.sequences.size());
  threads_.ParallelFor(
      std::ssize(batch.sequences), 1, [&](int64_t begin, int64_t end, int thread_idx) {
        for (int64_t idx = begin; idx < end; ++idx) {
          const SequenceStep& sequence = batch.sequences[idx];
          if (!sequence.quota || sequence.num_drafts == 0) continue;
          CHECK_EQ(sequence.num_drafts, sequence.quota->most());
          SequenceOutput& result = output.sequences[idx];
          std::vector<int32_t> text;
          if (constraints_.IsActive(sequence.slot)) {
            text =
                constraints_.LikelyTokens(sequence.slot, sequence.quota->forced, works[thread_idx]);
            result.draft_source = DraftSource::kForced;
          }
          if (text.empty() && lookup_) {
            RepeatedText::Proposal proposal =
                texts_[sequence.slot].Propose(sequence.quota->ngram, sequence.quota->least_match);
            text = std::move(proposal.tokens);
            result.draft_source = DraftSource::kNgram;
            result.match_length = proposal.match_length;
          }
          if (text.empty()) result.draft_source = DraftSource::kAssistant;
          std::ranges::copy(text, batch.token_ids.begin() + end_row[idx] - sequence.num_drafts);
          num_drafts[idx] =
              text.empty() ? sequence.quota->assistant : static_cast<int32_t>(text.size());
          result.num_drafts = num_drafts[idx];
        }
      });
  ShortenRounds(num_drafts, batch);
}

void CpuExecutor::DraftTokens(StepBatch& batch, StepOutput& output) {
  // The round of one sequence.
  struct Round {
    int32_t slot = 0;
    std::span<int32_t> ids;  // to be filled
    size_t first_draft = 0;  // of all that the step asks the drafter for
    PenaltyState history;
  };
  std::vector<Round> rounds;
  int64_t end_row = 0;
  size_t num_drafts = 0;
  for (const SequenceStep& sequence : batch.sequences) {
    end_row += sequence.num_rows;
    const auto ids =
        std::span(batch.token_ids).subspan(end_row - sequence.num_drafts, sequence.num_drafts);
    if (ids.empty() || ids[0] != kTokenFromDrafter) continue;
    // A round goes on from what the target has computed in this slot.
    CHECK_EQ(batch.token_ids[end_row - sequence.num_rows], kTokenFromSlot);
    CHECK_EQ(sequence.num_rows, 1 + sequence.num_drafts);
    const Request& request = requests_[sequence.slot];
    rounds.push_back({sequence.slot, ids, num_drafts, {}});
    if (request.sampling->has_penalties()) rounds.back().history = request.history;
    num_drafts += sequence.num_drafts;
  }
  if (rounds.empty()) return;
  const size_t vocab_size = static_cast<size_t>(plan_.vocab_size);
  if (batch.return_drafts) {
    output.draft_ids.resize(num_drafts);
    output.draft_logits.resize(num_drafts * vocab_size);
  }

  // The longest first, so that those still drafting are the first so many.
  std::stable_sort(rounds.begin(), rounds.end(),
                   [](const Round& a, const Round& b) { return a.ids.size() > b.ids.size(); });
  std::vector<DraftStart> starts;
  for (const Round& round : rounds) {
    const SlotState& slot = slot_states_[round.slot];
    starts.push_back({round.slot, slot.length, slot.last_token, last_hidden_[round.slot]});
  }
  drafter_->Begin(starts);
  std::vector<int32_t> drafted;
  for (size_t draft_idx = 0; draft_idx < rounds[0].ids.size(); ++draft_idx) {
    while (rounds.back().ids.size() <= draft_idx) rounds.pop_back();
    drafter_->KeepFirst(std::ssize(rounds));
    const std::span<const float> logits = drafter_->NextLogits();
    drafted.resize(rounds.size());
    threads_.ParallelFor(std::ssize(rounds), 1, [&](int64_t begin, int64_t end, int thread_idx) {
      for (int64_t idx = begin; idx < end; ++idx) {
        Round& round = rounds[idx];
        const Request& request = requests_[round.slot];
        const auto row = logits.subspan(idx * vocab_size, vocab_size);
        // Draft i is compared with the token of the round's row i.
        const int32_t position = slot_states_[round.slot].length + static_cast<int32_t>(draft_idx);
        const auto token = samplers_[thread_idx]->Sample(
            row, *request.draft_sampling, round.history, DrawNumber(position, request.prompt_len));
        // Where the request allows nothing that was scored, any draft does.
        drafted[idx] = token.ok() ? token->id : 0;
        round.ids[draft_idx] = drafted[idx];
        if (request.sampling->has_penalties()) round.history.AddOutput(drafted[idx]);
        if (batch.return_drafts) {
          const size_t at = round.first_draft + draft_idx;
          output.draft_ids[at] = drafted[idx];
          std::copy(row.begin(), row.end(), output.draft_logits.begin() + at * vocab_size);
        }
      }
    });
    drafter_->Feed(drafted);
  }
}

void CpuExecutor::ScoreOutputs(const StepBatch& batch, std::span<const float> logits,
                               StepOutput& output) {
  struct Row {
    size_t sequence_idx;
    int32_t score_idx;   // of the sequence
    int64_t output_idx;  // of all
  };
  std::vector<Row> rows;  // as batch.scored_ids
  int64_t first_output = 0;
  for (size_t idx = 0; idx < batch.sequences.size(); ++idx) {
    const SequenceStep& sequence = batch.sequences[idx];
    output.sequences[idx].scores.resize(sequence.num_scored);
    for (int32_t score_idx = 0; score_idx < sequence.num_scored; ++score_idx) {
      rows.push_back({idx, score_idx, first_output + score_idx});
    }
    first_output += sequence.num_outputs;
  }
  CHECK_EQ(rows.size(), batch.scored_ids.size());
  if (rows.empty()) return;
  const size_t vocab_size = static_cast<size_t>(plan_.vocab_size);
  std::vector<std::string> errors(rows.size());
  threads_.ParallelFor(
      static_cast<int64_t>(rows.size()), 1, [&](int64_t begin, int64_t end, int thread_idx) {
        for (int64_t idx = begin; idx < end; ++idx) {
          const auto& [sequence_idx, score_idx, output_idx] = rows[idx];
          const SequenceStep& sequence = batch.sequences[sequence_idx];
          auto score = samplers_[thread_idx]->Score(
              logits.subspan(static_cast<size_t>(output_idx) * vocab_size, vocab_size),
              batch.scored_ids[idx], requests_[sequence.slot].num_score_top);
          if (score.ok()) {
            output.sequences[sequence_idx].scores[score_idx] = *score;
          } else {
            errors[idx] = score.error().message;
          }
        }
      });
  for (size_t idx = 0; idx < rows.size(); ++idx) {
    if (errors[idx].empty()) continue;
    output.sequences[rows[idx].sequence_idx].error = errors[idx];
    slot_states_[batch.sequences[rows[idx].sequence_idx].slot].has_failed = true;
  }
}

Result<SampledToken> CpuExecutor::SampleMasked(const Request& request, const RowMasks& masks,
                                               int32_t row, std::span<const float> logits,
                                               uint64_t draw_number, Sampler& sampler) {
  if (row >= masks.num_made) return masks.error;
  const SamplingParams& sampling = *request.sampling;
  const int32_t only = masks.only[row];
  if (only < 0 || !AllowsToken(sampling, only)) {
    return sampler.Sample(logits, sampling, request.history, draw_number, masks.Mask(row));
  }
  if (sampling.num_logprobs >= 0) return sampler.Score(logits, only, sampling.num_logprobs);
  SampledToken token;
  token.id = only;
  return token;
}

void CpuExecutor::SampleSequence(const SequenceStep& sequence, int32_t first_position,
                                 const float* rows, const float* hidden_rows, const int32_t* drafts,
                                 Sampler& sampler, grammar::Work& mask_work, RowMasks& masks,
                                 SequenceOutput& output) {
  Request& request = requests_[sequence.slot];
  SlotState& slot = slot_states_[sequence.slot];
  const bool has_penalties = request.sampling->has_penalties();
  const int32_t first_sampled = first_position + sequence.num_rows - sequence.num_sampled();
  const bool is_constrained = constraints_.IsActive(sequence.slot);
  if (is_constrained) {
    constraints_.MakeMasks(sequence.slot, {drafts, static_cast<size_t>(sequence.num_drafts)},
                           mask_work, &masks);
  }
  const auto fail = [&](const Error& error) {
    slot.has_failed = true;
    output.is_late = error.kind == ErrorKind::kBusy;
    if (output.is_late) return;
    output.error = error.message;
    output.blames_request = error.kind == ErrorKind::kInvalid;
  };
  // A row is sampled only if it counts, so the first draft that is not accepted ends the round.
  bool counts = true;
  for (int32_t row = 0; counts; ++row) {
    const uint64_t draw_number = DrawNumber(first_sampled + row, request.prompt_len);
    const std::span logits(rows + int64_t{row} * plan_.vocab_size,
                           static_cast<size_t>(plan_.vocab_size));
    auto token = is_constrained
                     ? SampleMasked(request, masks, row, logits, draw_number, sampler)
                     : sampler.Sample(logits, *request.sampling, request.history, draw_number);
    if (!token.ok()) return fail(token.error());
    counts = row < sequence.num_drafts && AcceptsDraft(token->id, drafts[row]);
    if (drafter_ && !is_constrained && output.draft_source == DraftSource::kAssistant &&
        row < std::ssize(drafter_options_->simulated_rates)) {
      counts = row < sequence.num_drafts && SimulatesAccept(drafter_options_->simulated_rates[row],
                                                            request.sampling->seed, draw_number);
      if (counts) token->id = drafts[row];
    }
    // Behind the end nothing is under the grammar; the rows there were drafted before it was seen.
    if (constraints_.IsActive(sequence.slot)) {
      const Status moved = constraints_.Advance(sequence.slot, token->id, mask_work);
      if (!moved.ok()) return fail(moved.error());
    }
    output.tokens.push_back(*token);
    if (lookup_) texts_[sequence.slot].Append(token->id);
    slot.last_token = token->id;
    slot.length = LengthAfter(first_position, sequence.num_rows, sequence.num_sampled(), row + 1);
    if (has_penalties) request.history.AddOutput(token->id);
    if (drafter_ && !counts) {
      const float* hidden = hidden_rows + int64_t{row} * plan_.hidden_size;
      last_hidden_[sequence.slot].assign(hidden, hidden + plan_.hidden_size);
    }
  }
}

void CpuExecutor::SampleOutputs(const StepBatch& batch, std::span<const float> logits,
                                StepOutput& output) {
  const StepRows& rows = ranks_->rows();
  std::vector<int64_t> end_output;  // of each sequence
  int64_t num_outputs = 0;
  for (size_t idx = 0; idx < batch.sequences.size(); ++idx) {
    const SequenceStep& sequence = batch.sequences[idx];
    CHECK_LE(sequence.num_scored + sequence.num_sampled(), sequence.num_outputs);
    CHECK(!sequence.samples || requests_[sequence.slot].sampling != nullptr);
    end_output.push_back(num_outputs += sequence.num_outputs);
    slot_states_[sequence.slot].length = LengthAfter(rows.first_position[idx], sequence.num_rows,
                                                     sequence.num_sampled(), /*num_accepted=*/0);
  }
  std::deque<grammar::Work> mask_works;  // by thread
  while (std::ssize(mask_works) < threads_.num_threads()) {
    mask_works.emplace_back(mask_steps_);
  }
  threads_.ParallelFor(
      static_cast<int64_t>(batch.sequences.size()), 1,
      [&](int64_t begin, int64_t end, int thread_idx) {
        grammar::Work& mask_work = mask_works[thread_idx];
        for (int64_t idx = begin; idx < end; ++idx) {
          const SequenceStep& sequence = batch.sequences[idx];
          if (!sequence.samples || output.sequences[idx].error) continue;
          const int64_t first_output = end_output[idx] - sequence.num_sampled();
          const int32_t end_row = rows.sequence_begin[idx + 1];
          SampleSequence(
              sequence, rows.first_position[idx], logits.data() + first_output * plan_.vocab_size,
              ranks_->head_inputs().data() + first_output * plan_.hidden_size,
              rows.token_ids.data() + end_row - sequence.num_drafts, *samplers_[thread_idx],
              mask_work, masks_[thread_idx], output.sequences[idx]);
        }
      });
}

}  // namespace lapidary::cpu
