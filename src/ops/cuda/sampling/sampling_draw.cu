// One token of every row. The scan has the maximum of every 64 logits; a draw then looks only where
// a token can matter. Selections are radix selects over order-preserving bits with integer sums, as
// on the CPU.
#include "ops/cuda/sampling/accept_round.cuh"
#include "ops/cuda/sampling/sampling_kernels.h"
#include "ops/cuda/sampling/sampling_top.cuh"
#include "ops/cuda/sampling/store_draft.cuh"

namespace lapidary::cuda {
namespace {

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

// The whole row, four neighbours to a Philox block. Most tokens lose by the first bits of their
// variate: it is at least v, the number that -log(1 - v) is taken of (kRoom: and its rounding).
__device__ int32_t RaceRow(const LogitRow& row, int vocab_size, const Race& race,
                           DrawShared& shared) {
  constexpr float kRoom = 0.9999f;
  float best_score = 0.0f;
  int32_t best_id = -1;
  ForEachFour(row, vocab_size, [&](int first_id, const float(&logits)[4]) {
    float weights[4];
    bool any = false;
#pragma unroll
    for (int at = 0; at < 4; ++at) {
      const float weight = TokenWeight(logits[at], race.max, race.inv_temperature);
      const bool is_in = weight >= race.min_weight && race.cutoff.Keeps(logits[at], first_id + at);
      weights[at] = is_in ? weight : 0.0f;
      any |= weights[at] > 0.0f;
    }
    if (!any) return;
    const PhiloxCounter bits = Philox(DrawCounter(first_id / 4, race.position), DrawKey(race.seed));
    const uint32_t words[4] = {bits.v0, bits.v1, bits.v2, bits.v3};
#pragma unroll
    for (int at = 0; at < 4; ++at) {
      const float least = static_cast<float>(words[at] >> 1) * (kRoom * draw::kUniformScale);
      if (weights[at] <= best_score * least) continue;
      const float score = draw::Div(weights[at], ExponentialFromBits(words[at]));
      if (score > best_score) {
        best_score = score;
        best_id = first_id + at;
      }
    }
  });
  return BlockWinner(best_score, best_id, shared);
}

// The best of a thread's tokens, one behind the other.
struct BestToken {
  float score = 0.0f;
  int32_t id = -1;

  __device__ void Take(const Race& race, float logit, int32_t token) {
    const float weight = TokenWeight(logit, race.max, race.inv_temperature);
    if (weight < race.min_weight) return;
    const float own = RaceScore(weight, token, race.seed, race.position);
    if (own > score || (own == score && id >= 0 && token < id)) {
      score = own;
      id = token;
    }
  }
};

__device__ int32_t RaceList(const Candidates& candidates, const Race& race, DrawShared& shared) {
  BestToken best;
  candidates.ForEach([&](float x, int32_t id) {
    if (race.cutoff.Keeps(x, id)) best.Take(race, x, id);
  });
  return BlockWinner(best.score, best.id, shared);
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
  return SelectCutoff(candidates, NucleusTarget(top_p, total), mass, shared);
}

// A draw among the best top_k tokens, if those are few: -1 where they are not.
__device__ int32_t DrawFromTop(const SamplingCall& call, const SamplingSlot& slot,
                               const LogitRow& row, const float* maxima, const Race& race,
                               DrawShared& shared, TopShared& top) {
  if (!FindTop(row, maxima, call.vocab_size, race.max, slot.top_k, top)) return -1;
  int num_kept = min(top.num_keys, slot.top_k);
  if (slot.top_p < 1.0f) {
    const auto mass = [&](float logit) -> unsigned long long {
      return TokenMass(TokenWeight(logit, race.max, race.inv_temperature));
    };
    const auto target = [&](unsigned long long all) { return NucleusTarget(slot.top_p, all); };
    num_kept = NumUntilMass(num_kept, mass, target, top, shared.select);
  }
  BestToken best;
  for (int at = threadIdx.x; at < num_kept; at += kDrawThreads) {
    best.Take(race, TopLogit(top.keys[at]), TopId(top.keys[at]));
  }
  return BlockWinner(best.score, best.id, shared);
}

// A draw from the nucleus of a whole row: -1 where its end was not found.
__device__ int32_t DrawFromNucleus(const SamplingCall& call, const SamplingSlot& slot,
                                   const LogitRow& row, const float* maxima, const Race& race,
                                   DrawShared& shared, TopShared& top) {
  Cutoff cutoff;
  if (!CutNucleus(row, maxima, call.vocab_size, race.max, race.inv_temperature, slot.top_p,
                  shared.select, top, cutoff)) {
    return -1;
  }
  BestToken best;
  ForEachInBlocks(
      row, maxima, call.vocab_size, [&](float most) { return most >= cutoff.logit; }, top,
      [&](float logit, int32_t id) {
        if (cutoff.Keeps(logit, id)) best.Take(race, logit, id);
      });
  return BlockWinner(best.score, best.id, shared);
}

__device__ int32_t Draw(const SamplingCall& call, const SamplingRow& spec, const SamplingSlot& slot,
                        const LogitRow& row, const float* maxima, float max, int32_t* list,
                        DrawShared& shared, TopShared& top) {
  Race race{max,        slot.inv_temperature,
            slot.min_p, {},
            slot.seed,  DrawNumber(spec.position, slot.prompt_len)};
  const bool use_top_k = slot.top_k > 0 && slot.top_k < call.vocab_size;
  const bool use_top_p = slot.top_p < 1.0f;
  if (!use_top_k && !use_top_p && slot.num_allowed == 0) {
    return RaceRow(row, call.vocab_size, race, shared);
  }
  if (slot.num_allowed == 0) {
    const int32_t id = use_top_k ? DrawFromTop(call, slot, row, maxima, race, shared, top)
                                 : DrawFromNucleus(call, slot, row, maxima, race, shared, top);
    if (id >= 0) return id;
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
  __shared__ TopShared top;
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
      id = Draw(call, spec, slot, row, maxima, max, list, shared, top);
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

}  // namespace

void RunDraw(const LaunchContext& context, const SamplingCall& call) {
  static_assert(kMaxSampledVocab == 1 << kIdBits);
  Launch(context, DrawKernel, dim3(call.rows), dim3(kDrawThreads), 0, call);
}

}  // namespace lapidary::cuda
