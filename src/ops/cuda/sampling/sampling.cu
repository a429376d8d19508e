// A row goes through at most six kernels: adjust in place, scan, draw, put back what was adjusted,
// logprobs, accept. The scan keeps the maximum of every 64 logits; a draw then looks only where a
// token can matter. Selections are radix selects over order-preserving bits with integer sums, as
// on the CPU.
#include "base/check.h"
#include "ops/cuda/sampling/sampling.h"
#include "ops/cuda/sampling/sampling_select.cuh"
#include "ops/cuda/sampling/store_draft.cuh"
#include "sampling/accept.h"
#include "sampling/simulated_acceptance.h"

namespace lapidary::cuda {
namespace {

constexpr int kScanThreads = 256;
constexpr int kScanBlocksPerCta = 128;  // row blocks of one scanning CTA

// The sampled row that a row of the call draws for, and its place among them.
struct CallRow {
  int index;
  SamplingRow spec;
};
__device__ CallRow RowOfCall(const SamplingCall& call, int row) {
  if (call.draft.rounds == nullptr) return {row, call.spec[row]};
  CallRow at;
  at.index = call.draft.rounds[row].first_sampled + call.draft.draft_idx;
  at.spec = call.spec[at.index];
  at.spec.logits_row = row;
  at.spec.mask_row = -1;
  return at;
}

__device__ bool IsHere(const SamplingCall& call, const SamplingRow& spec) {
  return spec.logits_row >= call.first_logits_row &&
         spec.logits_row < call.first_logits_row + call.num_logits_rows;
}

__device__ float* RowLogits(const SamplingCall& call, const SamplingRow& spec) {
  return call.logits + int64_t{spec.logits_row - call.first_logits_row} * call.vocab_size;
}

__device__ LogitRow RowToDraw(const SamplingCall& call, const SamplingRow& spec) {
  const int64_t words = MaskWords(call.vocab_size);
  return {RowLogits(call, spec), spec.mask_row < 0 ? nullptr : call.masks + spec.mask_row * words};
}

__device__ bool WantsLogprobs(const SamplingCall& call, const SamplingRow& spec) {
  return spec.scored_id >= 0 || call.slots[spec.slot].num_logprobs >= 0;
}

__device__ float* BlockMaxima(const SamplingCall& call, const SamplingRow& spec) {
  return static_cast<float*>(call.scratch) +
         int64_t{spec.logits_row - call.first_logits_row} * RowScratchWords(call.vocab_size);
}

// ---- adjusting ---------------------------------------------------------------------------------

__device__ float Penalize(const SamplingSlot& slot, float logit, int output_count) {
  using namespace draw;
  logit = logit > 0 ? Div(logit, slot.repetition_penalty) : Mul(logit, slot.repetition_penalty);
  if (output_count == 0) return logit;
  logit = Add(logit, -Mul(slot.frequency_penalty, static_cast<float>(output_count)));
  return Add(logit, -slot.presence_penalty);
}

__device__ const SamplingBias* Biases(const SamplingCall& call, const SamplingSlot& slot) {
  return reinterpret_cast<const SamplingBias*>(call.lists + slot.biases_begin);
}
__device__ SamplingHistory* History(const SamplingCall& call, const SamplingSlot& slot) {
  return reinterpret_cast<SamplingHistory*>(call.lists + slot.history_begin);
}

// The values that a row's adjustments replaced: counts, then tokens that its slot's history does
// not hold (drafts of earlier rows of the round) with their values, then one for every list entry.
struct Replaced {
  int32_t* words;
  const SamplingSlot& slot;

  __device__ Replaced(const SamplingCall& call, const SamplingRow& spec, const SamplingSlot& slot_)
      : words(call.replaced + spec.replaced_begin), slot(slot_) {}
  __device__ int32_t& num_history() const { return words[0]; }
  __device__ int32_t& num_unlisted() const { return words[1]; }
  __device__ int32_t& unlisted_id(int idx) const { return words[2 + idx]; }
  __device__ float& unlisted(int idx) const { return At(2 + kMaxDrafts + idx); }
  __device__ float& suppressed(int idx) const { return At(kLists + idx); }
  __device__ float& bias(int idx) const { return At(kLists + slot.num_suppressed + idx); }
  __device__ float& history(int idx) const {
    return At(kLists + slot.num_suppressed + slot.num_biases + idx);
  }

 private:
  static constexpr int kLists = 2 + 2 * kMaxDrafts;
  __device__ float& At(int word) const { return reinterpret_cast<float*>(words)[word]; }
};

__global__ void __launch_bounds__(kScanThreads) AdjustKernel(SamplingCall call) {
  AllowNextKernel();
  WaitForPreviousKernel();
  const auto [row_idx, spec] = RowOfCall(call, blockIdx.x);
  if (!IsHere(call, spec) || spec.scored_id >= 0) return;
  const SamplingSlot& slot = call.slots[spec.slot];
  const Replaced replaced(call, spec, slot);
  float* row = RowLogits(call, spec);
  // Lists may name an id twice: each keeps what it saw, and the restoring goes backwards.
  if (threadIdx.x == 0) {
    for (int idx = 0; idx < slot.num_suppressed; ++idx) {
      const int32_t id = call.lists[slot.suppressed_begin + idx];
      replaced.suppressed(idx) = row[id];
      row[id] = -kInfinity;
    }
  }
  __syncthreads();
  const SamplingBias* biases = Biases(call, slot);
  for (int idx = threadIdx.x; idx < slot.num_biases; idx += kScanThreads) {
    const int32_t id = biases[idx].id;
    replaced.bias(idx) = row[id];
    if (idx > 0 && biases[idx - 1].id == id) continue;  // The first of equals adds them all.
    float logit = row[id];
    for (int same = idx; same < slot.num_biases && biases[same].id == id; ++same) {
      logit = draw::Add(logit, biases[same].bias);
    }
    row[id] = logit;
  }
  __syncthreads();
  if (!slot.has_penalties) return;

  // What earlier rows of the round stand for counts as said.
  __shared__ int32_t drafts[kMaxDrafts];
  __shared__ int is_listed[kMaxDrafts];
  const int num_drafts = spec.rows_before;
  if (threadIdx.x < num_drafts) {
    drafts[threadIdx.x] = call.spec[row_idx - num_drafts + threadIdx.x].draft;
    is_listed[threadIdx.x] = 0;
  }
  __syncthreads();
  const SamplingHistory* history = History(call, slot);
  const int num_history = call.states[spec.slot].num_history;
  for (int idx = threadIdx.x; idx < num_history; idx += kScanThreads) {
    const SamplingHistory entry = history[idx];
    int output_count = entry.output_count;
    for (int draft = 0; draft < num_drafts; ++draft) {
      if (drafts[draft] != entry.id) continue;
      ++output_count;
      is_listed[draft] = 1;
    }
    replaced.history(idx) = row[entry.id];
    row[entry.id] = Penalize(slot, row[entry.id], output_count);
  }
  __syncthreads();
  if (threadIdx.x != 0) return;
  int num_unlisted = 0;
  for (int draft = 0; draft < num_drafts; ++draft) {
    if (is_listed[draft]) continue;
    const int32_t id = drafts[draft];
    int output_count = 0;
    for (int same = draft; same < num_drafts; ++same) {
      if (drafts[same] != id) continue;
      ++output_count;
      is_listed[same] = 1;
    }
    replaced.unlisted_id(num_unlisted) = id;
    replaced.unlisted(num_unlisted++) = row[id];
    row[id] = Penalize(slot, row[id], output_count);
  }
  replaced.num_history() = num_history;
  replaced.num_unlisted() = num_unlisted;
}

__global__ void __launch_bounds__(kScanThreads) RestoreKernel(SamplingCall call) {
  AllowNextKernel();
  WaitForPreviousKernel();
  const SamplingRow spec = RowOfCall(call, blockIdx.x).spec;
  if (!IsHere(call, spec) || spec.scored_id >= 0) return;
  const SamplingSlot& slot = call.slots[spec.slot];
  const Replaced replaced(call, spec, slot);
  float* row = RowLogits(call, spec);
  if (slot.has_penalties) {
    for (int idx = threadIdx.x; idx < replaced.num_unlisted(); idx += kScanThreads) {
      row[replaced.unlisted_id(idx)] = replaced.unlisted(idx);
    }
    const SamplingHistory* history = History(call, slot);
    const int num_history = replaced.num_history();
    for (int idx = threadIdx.x; idx < num_history; idx += kScanThreads) {
      row[history[idx].id] = replaced.history(idx);
    }
    __syncthreads();
  }
  const SamplingBias* biases = Biases(call, slot);
  for (int idx = threadIdx.x; idx < slot.num_biases; idx += kScanThreads) {
    if (idx > 0 && biases[idx - 1].id == biases[idx].id) continue;
    row[biases[idx].id] = replaced.bias(idx);
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    for (int idx = slot.num_suppressed - 1; idx >= 0; --idx) {
      row[call.lists[slot.suppressed_begin + idx]] = replaced.suppressed(idx);
    }
  }
}

// ---- accepting ---------------------------------------------------------------------------------

// Counts a token as said; all threads of the block.
__device__ void AddToHistory(const SamplingCall& call, const SamplingSlot& slot, SlotState& state,
                             int32_t id) {
  SamplingHistory* history = History(call, slot);
  const int num_history = state.num_history;
  bool is_listed = false;
  for (int idx = threadIdx.x; idx < num_history; idx += blockDim.x) {
    if (history[idx].id != id) continue;
    ++history[idx].output_count;
    is_listed = true;
  }
  if (__syncthreads_or(is_listed)) return;
  if (threadIdx.x == 0 && num_history < slot.history_capacity) {
    history[num_history] = {id, 1};
    state.num_history = num_history + 1;
  }
  __syncthreads();
}

// Rows of a round that count by the dice; the drafts among them become its tokens.
__device__ int SimulateAcceptance(const SamplingCall& call, int row, const SamplingSlot& slot) {
  const auto draft_of = [&](int idx) { return call.spec[row + idx].draft; };
  const auto token_of = [&](int idx) {
    const uint64_t number = DrawNumber(call.spec[row + idx].position, slot.prompt_len);
    const bool accepts =
        idx < call.num_simulated && SimulatesAccept(call.simulated_rates[idx], slot.seed, number);
    return accepts ? draft_of(idx) : -1;
  };
  const int num_accepted = NumAcceptedRows(call.spec[row].num_drafts, token_of, draft_of);
  for (int idx = threadIdx.x; idx + 1 < num_accepted; idx += blockDim.x) {
    call.out[row + idx].id = draft_of(idx);
  }
  __syncthreads();
  return num_accepted;
}

__device__ int AcceptTokens(const SamplingCall& call, int row) {
  return NumAcceptedRows(
      call.spec[row].num_drafts, [&](int idx) { return call.out[row + idx].id; },
      [&](int idx) { return call.spec[row + idx].draft; });
}

// Moves a slot on behind the rows of a round that count; all threads of the block, which see the
// round's results. `row` is its first.
__device__ void AcceptRound(const SamplingCall& call, int row) {
  const SamplingRow& first = call.spec[row];
  const int num_accepted = call.simulated_rates != nullptr && first.mask_row < 0
                               ? SimulateAcceptance(call, row, call.slots[first.slot])
                               : AcceptTokens(call, row);
  const SamplingSlot& slot = call.slots[first.slot];
  SlotState& state = call.states[first.slot];
  if (slot.has_penalties) {
    for (int idx = 0; idx < num_accepted; ++idx) {
      const int32_t id = call.out[row + idx].id;
      if (id >= 0) AddToHistory(call, slot, state, id);
    }
  }
  if (threadIdx.x != 0) return;
  const int32_t last = call.out[row + num_accepted - 1].id;
  state.last_token = last < 0 ? 0 : last;
  state.length =
      LengthAfter(first.position, first.num_drafts + 1, first.num_drafts + 1, num_accepted);
  call.out[row].num_accepted = num_accepted;
}

// ---- scanning ----------------------------------------------------------------------------------

// The maximum of every 64 logits; NaN where one of them is NaN. A warp takes two blocks at a time:
// sixteen lanes with four logits each. `only_logprobs`: rows that want none are skipped, and what
// may not come counts as any other.
__global__ void __launch_bounds__(kScanThreads) ScanKernel(SamplingCall call, bool only_logprobs) {
  AllowNextKernel();
  WaitForPreviousKernel();
  const SamplingRow spec = RowOfCall(call, blockIdx.y).spec;
  if (!IsHere(call, spec)) return;
  if (only_logprobs && !WantsLogprobs(call, spec)) return;
  const float* row = RowLogits(call, spec);
  const uint32_t* mask = only_logprobs ? nullptr : RowToDraw(call, spec).mask;
  float* maxima = BlockMaxima(call, spec);
  const int num_blocks = NumRowBlocks(call.vocab_size);
  const int half = threadIdx.x / (kWarpSize / 2);
  const int lane = threadIdx.x % (kWarpSize / 2);
  constexpr int kHalves = kScanThreads / (kWarpSize / 2);
  const bool aligned = call.vocab_size % 4 == 0;
#pragma unroll 4
  for (int idx = half; idx < kScanBlocksPerCta; idx += kHalves) {
    const int block = blockIdx.x * kScanBlocksPerCta + idx;
    float best = -kInfinity;
    bool has_nan = false;
    const int first = block * kRowBlock + lane * 4;
    float values[4];
    if (aligned && first + 4 <= call.vocab_size) {
      const float4 loaded = *reinterpret_cast<const float4*>(row + first);
      values[0] = loaded.x;
      values[1] = loaded.y;
      values[2] = loaded.z;
      values[3] = loaded.w;
    } else {
      for (int at = 0; at < 4; ++at) {
        values[at] = first + at < call.vocab_size ? row[first + at] : -kInfinity;
      }
    }
    if (mask != nullptr && first < call.vocab_size) {
      const uint32_t bits = mask[first / 32] >> (first % 32);
      for (int at = 0; at < 4; ++at) {
        if ((bits >> at & 1) == 0) values[at] = -kInfinity;
      }
    }
    for (const float value : values) {
      has_nan |= isnan(value);
      best = fmaxf(best, value);
    }
    if (has_nan) best = kInfinity;  // NaN and +inf are refused alike.
    for (int offset = kWarpSize / 4; offset > 0; offset /= 2) {
      best = fmaxf(best, __shfl_xor_sync(0xffffffffu, best, offset));
    }
    if (lane == 0 && block < num_blocks) maxima[block] = best;
  }
}

// ---- drawing -----------------------------------------------------------------------------------

// The id with the largest score over the block, the lower id among equals; -1 without any.
__device__ int32_t BlockWinner(float score, int32_t id, DrawShared& shared) {
  const auto better = [](float a_score, int32_t a_id, float b_score, int32_t b_id) {
    if (a_id < 0) return false;
    if (b_id < 0) return true;
    return a_score > b_score || (a_score == b_score && a_id < b_id);
  };
  for (int offset = kWarpSize / 2; offset > 0; offset /= 2) {
    const float other_score = __shfl_xor_sync(0xffffffffu, score, offset);
    const int32_t other_id = __shfl_xor_sync(0xffffffffu, id, offset);
    if (better(other_score, other_id, score, id)) {
      score = other_score;
      id = other_id;
    }
  }
  __syncthreads();
  if (threadIdx.x % kWarpSize == 0) {
    shared.scores[threadIdx.x / kWarpSize] = score;
    shared.ids[threadIdx.x / kWarpSize] = id;
  }
  __syncthreads();
  score = shared.scores[0];
  id = shared.ids[0];
  for (int warp = 1; warp < kDrawWarps; ++warp) {
    if (better(shared.scores[warp], shared.ids[warp], score, id)) {
      score = shared.scores[warp];
      id = shared.ids[warp];
    }
  }
  return id;
}

struct Race {
  float max;
  float inv_temperature;
  float min_weight;
  Cutoff cutoff;
  uint64_t seed;
  uint64_t position;
};

// The whole row, four neighbours to a Philox block.
__device__ int32_t RaceRow(const LogitRow& row, int vocab_size, const Race& race,
                           DrawShared& shared) {
  float best_score = 0.0f;
  int32_t best_id = -1;
  for (int group = threadIdx.x; group * 4 < vocab_size; group += kDrawThreads) {
    float weights[4];
    bool any = false;
    for (int at = 0; at < 4; ++at) {
      const int id = group * 4 + at;
      weights[at] = 0.0f;
      if (id >= vocab_size) continue;
      const float weight = TokenWeight(row[id], race.max, race.inv_temperature);
      if (weight < race.min_weight || !race.cutoff.Keeps(row[id], id)) continue;
      weights[at] = weight;
      any |= weight > 0.0f;
    }
    if (!any) continue;
    const PhiloxCounter bits = Philox(DrawCounter(group, race.position), DrawKey(race.seed));
    const uint32_t words[4] = {bits.v0, bits.v1, bits.v2, bits.v3};
#pragma unroll
    for (int at = 0; at < 4; ++at) {
      const float score = draw::Div(weights[at], ExponentialFromBits(words[at]));
      if (score > best_score) {
        best_score = score;
        best_id = group * 4 + at;
      }
    }
  }
  return BlockWinner(best_score, best_id, shared);
}

__device__ int32_t RaceList(const Candidates& candidates, const Race& race, DrawShared& shared) {
  float best_score = 0.0f;
  int32_t best_id = -1;
  candidates.ForEach([&](float x, int32_t id) {
    const float weight = TokenWeight(x, race.max, race.inv_temperature);
    if (weight < race.min_weight || !race.cutoff.Keeps(x, id)) return;
    const float score = RaceScore(weight, id, race.seed, race.position);
    if (score > best_score || (score == best_score && best_id >= 0 && id < best_id)) {
      best_score = score;
      best_id = id;
    }
  });
  return BlockWinner(best_score, best_id, shared);
}

// The nucleus among the candidates that `cutoff` keeps; their whole mass is the measure of one.
__device__ Cutoff SelectTopP(Candidates& candidates, const Race& race, float top_p,
                             bool has_candidates, int32_t* list, DrawShared& shared) {
  const auto mass = [&](float x, int32_t id) -> unsigned long long {
    if (!race.cutoff.Keeps(x, id)) return 0;
    return TokenMass(TokenWeight(x, race.max, race.inv_temperature));
  };
  unsigned long long own = 0;
  candidates.ForEach([&](float x, int32_t id) { own += mass(x, id); });
  const unsigned long long total = BlockTotal(own, shared.select);
  if (!has_candidates) {
    // Tokens lighter than (1 - top_p) * total / vocabulary hold less than 1 - top_p between them.
    const double total_weight = static_cast<double>(total) / draw::kMassScale;
    const double least = 0.5 * (1.0 - top_p) * total_weight / candidates.vocab_size;
    const float bound = static_cast<float>(race.max + log(least) / race.inv_temperature);
    candidates.bound = nextafterf(bound, -kInfinity);
    Collect(candidates, list, shared);
  }
  const double share = ceil(static_cast<double>(top_p) * static_cast<double>(total));
  unsigned long long target = static_cast<unsigned long long>(share);
  target = min(max(target, 1ull), total);
  return SelectCutoff(candidates, target, mass, shared);
}

__device__ int32_t Draw(const SamplingCall& call, const SamplingRow& spec, const SamplingSlot& slot,
                        const LogitRow& row, const float* maxima, float max, int32_t* list,
                        DrawShared& shared) {
  Race race{max,        slot.inv_temperature,
            slot.min_p, {},
            slot.seed,  DrawNumber(spec.position, slot.prompt_len)};
  const bool use_top_k = slot.top_k > 0 && slot.top_k < call.vocab_size;
  const bool use_top_p = slot.top_p < 1.0f;
  if (!use_top_k && !use_top_p && slot.num_allowed == 0) {
    return RaceRow(row, call.vocab_size, race, shared);
  }
  Candidates candidates{row, maxima, call.vocab_size, -kInfinity, nullptr, -1};
  const bool is_listed = slot.num_allowed > 0;
  if (is_listed) {
    candidates.list = call.lists + slot.allowed_begin;
    candidates.count = slot.num_allowed;
  }
  if (use_top_k && (!is_listed || slot.top_k < slot.num_allowed)) {
    if (!is_listed) CollectTop(candidates, slot.top_k, list, shared);
    const auto one = [](float, int32_t) { return 1ull; };
    if (candidates.count < 0 || candidates.count > slot.top_k) {
      race.cutoff = SelectCutoff(candidates, slot.top_k, one, shared);
    }
  }
  if (use_top_p) {
    race.cutoff = SelectTopP(candidates, race, slot.top_p, use_top_k || is_listed, list, shared);
  }
  return candidates.count >= 0 ? RaceList(candidates, race, shared)
                               : RaceRow(row, call.vocab_size, race, shared);
}

__global__ void __launch_bounds__(kDrawThreads) DrawKernel(SamplingCall call) {
  __shared__ DrawShared shared;
  AllowNextKernel();
  WaitForPreviousKernel();
  const auto [row_idx, spec] = RowOfCall(call, blockIdx.x);
  if (!IsHere(call, spec)) return;
  const SamplingSlot& slot = call.slots[spec.slot];
  const bool is_draft = call.draft.rounds != nullptr;
  const LogitRow row = RowToDraw(call, spec);
  const float* maxima = BlockMaxima(call, spec);
  const int num_blocks = NumRowBlocks(call.vocab_size);
  int32_t* list = reinterpret_cast<int32_t*>(BlockMaxima(call, spec) + num_blocks);
  const int num_allowed = spec.scored_id < 0 ? slot.num_allowed : 0;
  const int32_t* allowed = call.lists + slot.allowed_begin;
  const float max = num_allowed > 0 ? ListMax(row, allowed, num_allowed, shared)
                                    : RowMax(maxima, num_blocks, shared);

  SamplingStatus status = SamplingStatus::kOk;
  if (max == kInfinity) status = SamplingStatus::kNotFinite;
  if (max == -kInfinity) status = SamplingStatus::kNothingToDraw;
  int32_t id = spec.scored_id;
  const bool is_greedy = slot.greedy || (is_draft && call.draft.likeliest);
  if (status == SamplingStatus::kOk && id < 0) {
    if (is_greedy && num_allowed > 0) {
      int32_t found = -1;
      for (int idx = threadIdx.x; idx < num_allowed; idx += kDrawThreads) {
        if (row[allowed[idx]] == max && (found < 0 || allowed[idx] < found)) found = allowed[idx];
      }
      id = BlockWinner(0.0f, found, shared);
    } else if (is_greedy) {
      // The first block that holds the maximum, and the first place in it.
      int32_t first = -1;
      for (int block = threadIdx.x; block < num_blocks; block += kDrawThreads) {
        if (maxima[block] == max && first < 0) first = block;
      }
      const int32_t block = BlockWinner(0.0f, first, shared);
      int32_t found = -1;
      if (threadIdx.x < kRowBlock) {
        const int at = block * kRowBlock + static_cast<int>(threadIdx.x);
        if (at < call.vocab_size && row[at] == max) found = at;
      }
      id = BlockWinner(0.0f, found, shared);
    } else {
      id = Draw(call, spec, slot, row, maxima, max, list, shared);
    }
  }
  if (is_draft) {
    // Where nothing may be drawn, any draft does.
    if (threadIdx.x == 0) StoreDraft(call.draft, blockIdx.x, id < 0 ? 0 : id);
    return;
  }
  if (threadIdx.x == 0) {
    SampledRow& out = call.out[row_idx];
    out.id = id;
    out.status = status;
    out.num_accepted = 0;
    out.logprob = 0.0f;
    out.num_top = 0;
  }
  // Rounds with drafts wait for all their rows.
  if (spec.scored_id >= 0 || spec.num_drafts > 0) return;
  __syncthreads();
  AcceptRound(call, blockIdx.x);
}

// A block for each row; those of a round's first accept it.
__global__ void __launch_bounds__(kScanThreads) AcceptKernel(SamplingCall call) {
  AllowNextKernel();
  WaitForPreviousKernel();
  const SamplingRow& spec = call.spec[blockIdx.x];
  if (spec.scored_id >= 0 || spec.rows_before != 0 || spec.num_drafts == 0) return;
  AcceptRound(call, blockIdx.x);
}

// ---- logprobs ----------------------------------------------------------------------------------

__global__ void __launch_bounds__(kDrawThreads) LogprobKernel(SamplingCall call) {
  __shared__ DrawShared shared;
  __shared__ int32_t top_ids[kMaxTopLogprobs];
  __shared__ int num_top;
  AllowNextKernel();
  WaitForPreviousKernel();
  const SamplingRow spec = call.spec[blockIdx.x];
  if (!IsHere(call, spec) || !WantsLogprobs(call, spec)) return;
  SampledRow& out = call.out[blockIdx.x];
  const float* row = RowLogits(call, spec);
  const float* maxima = BlockMaxima(call, spec);
  const int num_blocks = NumRowBlocks(call.vocab_size);
  const float max = RowMax(maxima, num_blocks, shared);
  if (max == kInfinity || max == -kInfinity) {
    if (threadIdx.x == 0) out.status = SamplingStatus::kNotFinite;
    return;
  }
  Candidates candidates{{row, nullptr}, maxima, call.vocab_size, -kInfinity, nullptr, -1};
  unsigned long long own = 0;
  candidates.ForEach([&](float x, int32_t) { own += TokenMass(TokenWeight(x, max, 1.0f)); });
  const double total = static_cast<double>(BlockTotal(own, shared.select)) / draw::kMassScale;
  const double log_total = log(total);
  const auto logprob = [&](int32_t id) {
    return static_cast<float>(static_cast<double>(row[id]) - max - log_total);
  };
  const SamplingSlot& slot = call.slots[spec.slot];
  const int num_logprobs = spec.scored_id >= 0 ? slot.num_score_top : slot.num_logprobs;
  const int wanted = min(min(num_logprobs, call.vocab_size), kMaxTopLogprobs);
  if (wanted > 0) {
    int32_t* list = reinterpret_cast<int32_t*>(BlockMaxima(call, spec) + num_blocks);
    CollectTop(candidates, wanted, list, shared);
    const auto one = [](float, int32_t) { return 1ull; };
    const Cutoff cutoff = SelectCutoff(candidates, wanted, one, shared);
    if (threadIdx.x == 0) num_top = 0;
    __syncthreads();
    candidates.ForEach([&](float x, int32_t id) {
      if (cutoff.Keeps(x, id)) top_ids[atomicAdd(&num_top, 1)] = id;
    });
    __syncthreads();
    if (threadIdx.x < wanted) {  // The rank of a token is the number of better ones.
      const int32_t id = top_ids[threadIdx.x];
      int rank = 0;
      for (int idx = 0; idx < wanted; ++idx) {
        const int32_t other = top_ids[idx];
        rank += row[other] > row[id] || (row[other] == row[id] && other < id);
      }
      out.top_ids[rank] = id;
      out.top_logprobs[rank] = logprob(id);
    }
  }
  if (threadIdx.x == 0) {
    out.num_top = wanted;
    out.logprob = out.id >= 0 ? logprob(out.id) : 0.0f;
  }
}

// ---- binding -----------------------------------------------------------------------------------

// A block for each binding.
__global__ void __launch_bounds__(kScanThreads) BindSlotsKernel(SlotBindingsCall call) {
  AllowNextKernel();
  WaitForPreviousKernel();
  const SlotBindingRecord& binding = call.bindings[blockIdx.x];
  for (int idx = threadIdx.x; idx < binding.num_words; idx += kScanThreads) {
    call.lists[binding.lists_begin + idx] = call.words[binding.words_begin + idx];
  }
  if (threadIdx.x != 0) return;
  call.slots[binding.slot] = binding.sampling;
  call.states[binding.slot] = {.num_history = binding.num_history};
}

}  // namespace

void RunSampling(const LaunchContext& context, const SamplingCall& call) {
  static_assert(kMaxSampledVocab == 1 << kIdBits);
  CHECK_OK(SamplingSupports(call.vocab_size));
  const dim3 rows(call.rows);
  const int scan_ctas = (NumRowBlocks(call.vocab_size) + kScanBlocksPerCta - 1) / kScanBlocksPerCta;
  const dim3 scan_grid(scan_ctas, call.rows);
  if (call.needs.adjustments) Launch(context, AdjustKernel, rows, dim3(kScanThreads), 0, call);
  Launch(context, ScanKernel, scan_grid, dim3(kScanThreads), 0, call, false);
  Launch(context, DrawKernel, rows, dim3(kDrawThreads), 0, call);
  if (call.needs.adjustments) Launch(context, RestoreKernel, rows, dim3(kScanThreads), 0, call);
  if (call.needs.logprobs) {
    if (call.needs.adjustments || call.needs.masks) {
      Launch(context, ScanKernel, scan_grid, dim3(kScanThreads), 0, call, true);
    }
    Launch(context, LogprobKernel, rows, dim3(kDrawThreads), 0, call);
  }
}

void RunAccept(const LaunchContext& context, const SamplingCall& call) {
  Launch(context, AcceptKernel, dim3(call.rows), dim3(kScanThreads), 0, call);
}

void RunBindSlots(const LaunchContext& context, const SlotBindingsCall& call) {
  if (call.num_bindings == 0) return;
  Launch(context, BindSlotsKernel, dim3(call.num_bindings), dim3(kScanThreads), 0, call);
}

}  // namespace lapidary::cuda
