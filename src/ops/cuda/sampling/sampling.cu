// A row goes through at most five kernels: adjust in place, scan, draw, put back what was adjusted,
// logprobs. The scan keeps the maximum of every 64 logits; a draw then looks only where a token can
// matter. Selections are radix selects over order-preserving bits with integer sums, as on the CPU.
#include "base/check.h"
#include "ops/cuda/sampling/sampling.h"
#include "ops/cuda/sampling/sampling_select.cuh"

namespace lapidary::cuda {
namespace {

constexpr int kScanThreads = 256;
constexpr int kScanBlocksPerCta = 128;  // row blocks of one scanning CTA

// Per logits row: block maxima, then the candidate list.
__host__ __device__ int64_t RowScratchWords(int vocab_size) {
  return NumRowBlocks(vocab_size) + kMaxListed;
}

__device__ bool IsHere(const SamplingCall& call, const SamplingRow& spec) {
  return spec.logits_row >= call.first_logits_row &&
         spec.logits_row < call.first_logits_row + call.num_logits_rows;
}

__device__ float* RowLogits(const SamplingCall& call, const SamplingRow& spec) {
  return call.logits + int64_t{spec.logits_row - call.first_logits_row} * call.vocab_size;
}

__device__ float* BlockMaxima(const SamplingCall& call, const SamplingRow& spec) {
  return static_cast<float*>(call.scratch) +
         int64_t{spec.logits_row - call.first_logits_row} * RowScratchWords(call.vocab_size);
}

// ---- adjusting ---------------------------------------------------------------------------------

__device__ float Penalize(const SamplingRow& spec, float logit, int output_count) {
  using namespace draw;
  logit = logit > 0 ? Div(logit, spec.repetition_penalty) : Mul(logit, spec.repetition_penalty);
  if (output_count == 0) return logit;
  logit = Add(logit, -Mul(spec.frequency_penalty, static_cast<float>(output_count)));
  return Add(logit, -spec.presence_penalty);
}

// Tokens said that the uploaded history does not hold: the slot's last token where it was not
// collected yet, and the drafts that earlier rows of the sequence stand for.
struct Unlisted {
  static constexpr int kMax = 32;
  int32_t ids[kMax];
  int count = 0;

  __device__ void Fill(const SamplingCall& call, int row, const SamplingRow& spec) {
    count = 0;
    if (!spec.has_penalties) return;
    if (spec.pending_slot >= 0) ids[count++] = call.last_tokens[spec.pending_slot];
    for (int before = spec.rows_before; before > 0 && count < kMax; --before) {
      ids[count++] = call.spec[row - before].draft;
    }
  }
};

__global__ void __launch_bounds__(kScanThreads) AdjustKernel(SamplingCall call) {
  AllowNextKernel();
  WaitForPreviousKernel();
  const SamplingRow spec = call.spec[blockIdx.x];
  if (!IsHere(call, spec) || spec.scored_id >= 0) return;
  float* row = RowLogits(call, spec);
  // Lists may name an id twice: each keeps what it saw, and the restoring goes backwards.
  if (threadIdx.x == 0) {
    for (int idx = 0; idx < spec.num_suppressed; ++idx) {
      const int at = spec.suppress_begin + idx;
      call.replaced_suppressed[at] = row[call.suppressed[at]];
      row[call.suppressed[at]] = -kInfinity;
    }
  }
  __syncthreads();
  for (int idx = threadIdx.x; idx < spec.num_biases; idx += kScanThreads) {
    const int at = spec.bias_begin + idx;
    const int32_t id = call.biases[at].id;
    call.replaced_biases[at] = row[id];
    if (idx > 0 && call.biases[at - 1].id == id) continue;  // The first of equals adds them all.
    float logit = row[id];
    for (int same = idx; same < spec.num_biases; ++same) {
      const SamplingBias& bias = call.biases[spec.bias_begin + same];
      if (bias.id != id) break;
      logit = draw::Add(logit, bias.bias);
    }
    row[id] = logit;
  }
  __syncthreads();
  if (!spec.has_penalties) return;

  __shared__ Unlisted unlisted;
  __shared__ int is_listed[Unlisted::kMax];
  if (threadIdx.x == 0) {
    unlisted.Fill(call, blockIdx.x, spec);
    for (int& flag : is_listed) flag = 0;
  }
  __syncthreads();
  for (int idx = threadIdx.x; idx < spec.num_history; idx += kScanThreads) {
    const int at = spec.history_begin + idx;
    const SamplingHistory entry = call.history[at];
    int output_count = entry.output_count;
    for (int extra = 0; extra < unlisted.count; ++extra) {
      if (unlisted.ids[extra] != entry.id) continue;
      ++output_count;
      is_listed[extra] = 1;
    }
    call.replaced_history[at] = row[entry.id];
    row[entry.id] = Penalize(spec, row[entry.id], output_count);
  }
  __syncthreads();
  if (threadIdx.x != 0) return;
  SampledRow& out = call.out[blockIdx.x];
  out.num_top = 0;
  for (int extra = 0; extra < unlisted.count; ++extra) {
    if (is_listed[extra]) continue;
    int output_count = 0;
    for (int same = extra; same < unlisted.count; ++same) {
      if (unlisted.ids[same] != unlisted.ids[extra]) continue;
      ++output_count;
      is_listed[same] = 1;
    }
    // Few: their old values wait in the result, which has not been written yet.
    if (out.num_top == kMaxTopLogprobs) break;
    out.top_ids[out.num_top] = unlisted.ids[extra];
    out.top_logprobs[out.num_top++] = row[unlisted.ids[extra]];
    row[unlisted.ids[extra]] = Penalize(spec, row[unlisted.ids[extra]], output_count);
  }
}

__global__ void __launch_bounds__(kScanThreads) RestoreKernel(SamplingCall call) {
  AllowNextKernel();
  WaitForPreviousKernel();
  const SamplingRow spec = call.spec[blockIdx.x];
  if (!IsHere(call, spec) || spec.scored_id >= 0) return;
  float* row = RowLogits(call, spec);
  if (spec.has_penalties) {
    SampledRow& out = call.out[blockIdx.x];
    if (threadIdx.x == 0) {
      for (int idx = 0; idx < out.num_top; ++idx) row[out.top_ids[idx]] = out.top_logprobs[idx];
      out.num_top = 0;
    }
    for (int idx = threadIdx.x; idx < spec.num_history; idx += kScanThreads) {
      const int at = spec.history_begin + idx;
      row[call.history[at].id] = call.replaced_history[at];
    }
    __syncthreads();
  }
  for (int idx = threadIdx.x; idx < spec.num_biases; idx += kScanThreads) {
    const int at = spec.bias_begin + idx;
    if (idx > 0 && call.biases[at - 1].id == call.biases[at].id) continue;
    row[call.biases[at].id] = call.replaced_biases[at];
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    for (int idx = spec.num_suppressed - 1; idx >= 0; --idx) {
      row[call.suppressed[spec.suppress_begin + idx]] =
          call.replaced_suppressed[spec.suppress_begin + idx];
    }
  }
}

// ---- scanning ----------------------------------------------------------------------------------

// The maximum of every 64 logits; NaN where one of them is NaN. A warp takes two blocks at a time:
// sixteen lanes with four logits each. `only_logprobs`: rows that want none are skipped.
__global__ void __launch_bounds__(kScanThreads) ScanKernel(SamplingCall call, bool only_logprobs) {
  AllowNextKernel();
  WaitForPreviousKernel();
  const SamplingRow spec = call.spec[blockIdx.y];
  if (!IsHere(call, spec)) return;
  if (only_logprobs && spec.num_logprobs < 0) return;
  const float* row = RowLogits(call, spec);
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
__device__ int32_t RaceRow(const float* row, int vocab_size, const Race& race, DrawShared& shared) {
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

__device__ int32_t Draw(const SamplingCall& call, const SamplingRow& spec, const float* row,
                        const float* maxima, float max, int32_t* list, DrawShared& shared) {
  Race race{max, spec.inv_temperature, spec.min_p, {}, spec.seed, spec.position};
  const bool use_top_k = spec.top_k > 0 && spec.top_k < call.vocab_size;
  const bool use_top_p = spec.top_p < 1.0f;
  if (!use_top_k && !use_top_p && spec.num_allowed == 0) {
    return RaceRow(row, call.vocab_size, race, shared);
  }
  Candidates candidates{row, maxima, call.vocab_size, -kInfinity, nullptr, -1};
  const bool is_listed = spec.num_allowed > 0;
  if (is_listed) {
    candidates.list = call.suppressed + spec.allowed_begin;
    candidates.count = spec.num_allowed;
  }
  if (use_top_k && (!is_listed || spec.top_k < spec.num_allowed)) {
    if (!is_listed) CollectTop(candidates, spec.top_k, list, shared);
    const auto one = [](float, int32_t) { return 1ull; };
    race.cutoff = SelectCutoff(candidates, spec.top_k, one, shared);
  }
  if (use_top_p) {
    race.cutoff = SelectTopP(candidates, race, spec.top_p, use_top_k || is_listed, list, shared);
  }
  return candidates.count >= 0 ? RaceList(candidates, race, shared)
                               : RaceRow(row, call.vocab_size, race, shared);
}

__global__ void __launch_bounds__(kDrawThreads) DrawKernel(SamplingCall call) {
  __shared__ DrawShared shared;
  AllowNextKernel();
  WaitForPreviousKernel();
  const SamplingRow spec = call.spec[blockIdx.x];
  if (!IsHere(call, spec)) return;
  SampledRow& out = call.out[blockIdx.x];
  const float* row = RowLogits(call, spec);
  const float* maxima = BlockMaxima(call, spec);
  const int num_blocks = NumRowBlocks(call.vocab_size);
  int32_t* list = reinterpret_cast<int32_t*>(BlockMaxima(call, spec) + num_blocks);
  const int32_t* allowed = call.suppressed + spec.allowed_begin;
  const float max = spec.num_allowed > 0 ? ListMax(row, allowed, spec.num_allowed, shared)
                                         : RowMax(maxima, num_blocks, shared);

  SamplingStatus status = SamplingStatus::kOk;
  if (max == kInfinity) status = SamplingStatus::kNotFinite;
  if (max == -kInfinity) status = SamplingStatus::kNothingToDraw;
  int32_t id = spec.scored_id;
  if (status == SamplingStatus::kOk && id < 0) {
    if (spec.greedy && spec.num_allowed > 0) {
      int32_t found = -1;
      for (int idx = threadIdx.x; idx < spec.num_allowed; idx += kDrawThreads) {
        if (row[allowed[idx]] == max && (found < 0 || allowed[idx] < found)) found = allowed[idx];
      }
      id = BlockWinner(0.0f, found, shared);
    } else if (spec.greedy) {
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
      id = Draw(call, spec, row, maxima, max, list, shared);
    }
  }
  if (threadIdx.x != 0) return;
  out.id = id;
  out.status = status;
  out.logprob = 0.0f;
  if (!(call.needs.adjustments && spec.has_penalties)) out.num_top = 0;
  // Sequences without drafts end here; those with drafts wait for all their rows.
  if (spec.scored_id < 0 && spec.draft < 0 && spec.rows_before == 0) {
    call.last_tokens[spec.slot] = id < 0 ? 0 : id;
  }
}

// One thread per sequence with drafts: the last row whose predecessors all drew their drafts.
__global__ void AcceptKernel(SamplingCall call) {
  AllowNextKernel();
  WaitForPreviousKernel();
  const int row = blockIdx.x * blockDim.x + threadIdx.x;
  if (row >= call.rows) return;
  const SamplingRow& first = call.spec[row];
  if (first.scored_id >= 0 || first.rows_before != 0 || first.draft < 0) return;
  int last = row;
  while (call.spec[last].draft >= 0 && call.spec[last].draft == call.out[last].id) ++last;
  call.last_tokens[first.slot] = call.out[last].id < 0 ? 0 : call.out[last].id;
}

// ---- logprobs ----------------------------------------------------------------------------------

__global__ void __launch_bounds__(kDrawThreads) LogprobKernel(SamplingCall call) {
  __shared__ DrawShared shared;
  __shared__ int32_t top_ids[kMaxTopLogprobs];
  __shared__ int num_top;
  AllowNextKernel();
  WaitForPreviousKernel();
  const SamplingRow spec = call.spec[blockIdx.x];
  if (!IsHere(call, spec) || spec.num_logprobs < 0) return;
  SampledRow& out = call.out[blockIdx.x];
  const float* row = RowLogits(call, spec);
  const float* maxima = BlockMaxima(call, spec);
  const int num_blocks = NumRowBlocks(call.vocab_size);
  const float max = RowMax(maxima, num_blocks, shared);
  if (max == kInfinity || max == -kInfinity) {
    if (threadIdx.x == 0) out.status = SamplingStatus::kNotFinite;
    return;
  }
  Candidates candidates{row, maxima, call.vocab_size, -kInfinity, nullptr, -1};
  unsigned long long own = 0;
  candidates.ForEach([&](float x, int32_t) { own += TokenMass(TokenWeight(x, max, 1.0f)); });
  const double total = static_cast<double>(BlockTotal(own, shared.select)) / draw::kMassScale;
  const double log_total = log(total);
  const auto logprob = [&](int32_t id) {
    return static_cast<float>(static_cast<double>(row[id]) - max - log_total);
  };
  const int wanted = min(min(spec.num_logprobs, call.vocab_size), kMaxTopLogprobs);
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

}  // namespace

int64_t SamplingScratchBytes(int num_logits_rows, int vocab_size) {
  return int64_t{num_logits_rows} * RowScratchWords(vocab_size) *
         static_cast<int64_t>(sizeof(float));
}

void RunSampling(const LaunchContext& context, const SamplingCall& call) {
  CHECK_LE(call.vocab_size, 1 << kIdBits);
  const dim3 rows(call.rows);
  const int scan_ctas = (NumRowBlocks(call.vocab_size) + kScanBlocksPerCta - 1) / kScanBlocksPerCta;
  const dim3 scan_grid(scan_ctas, call.rows);
  if (call.needs.adjustments) Launch(context, AdjustKernel, rows, dim3(kScanThreads), 0, call);
  Launch(context, ScanKernel, scan_grid, dim3(kScanThreads), 0, call, false);
  Launch(context, DrawKernel, rows, dim3(kDrawThreads), 0, call);
  if (call.needs.adjustments) Launch(context, RestoreKernel, rows, dim3(kScanThreads), 0, call);
  if (call.needs.logprobs) {
    if (call.needs.adjustments) {
      Launch(context, ScanKernel, scan_grid, dim3(kScanThreads), 0, call, true);
    }
    Launch(context, LogprobKernel, rows, dim3(kDrawThreads), 0, call);
  }
  if (call.needs.drafts) {
    Launch(context, AcceptKernel, dim3((call.rows + 127) / 128), dim3(128), 0, call);
  }
}

}  // namespace lapidary::cuda
