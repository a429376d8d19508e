// Logits to a token: a pure function of the row, the settings, the history and the position.
//
// The order is that of Hugging Face transformers:
//
//   allowed (a grammar's mask), allowed_tokens, suppress_tokens, logit_bias
//   -> repetition penalty (prompt and output), frequency and presence penalties (output)
//   -> temperature -> top-k -> top-p (of what top-k left) -> min-p -> draw (draw.h)
//
// (vLLM runs min-p before top-k; the two differ only in the total that top-p takes its share of.)
//
// Ties: the lower id wins an argmax, and top-k and top-p keep the lower ids among equal logits, so
// the kept sets are exact. A draw depends on the row, the seed and the position alone: not on the
// batch, the calls before it or the instruction set. Speculation rests on this: the token of
// position t is the same whether its row was computed for one token or to verify a draft.
//
// Logprobs are log-softmax of the raw row, before any of the above (vLLM's default), so they
// describe the model and not the settings. A logit of -inf gives -inf.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "sampling/penalty_state.h"
#include "sampling/row_kernels.h"
#include "sampling/sampling_params.h"

namespace lapidary {

struct TokenLogprob {
  int32_t id = -1;
  float logprob = 0;
};

struct SampledToken {
  int32_t id = -1;
  float logprob = 0;                             // Set when num_logprobs >= 0.
  int32_t num_top = 0;                           // min(num_logprobs, vocabulary).
  std::array<TokenLogprob, kMaxLogprobs> top{};  // The likeliest first.

  std::span<const TokenLogprob> top_logprobs() const {
    return std::span(top).first(static_cast<size_t>(num_top));
  }
};

// Owns scratch only (up to 4 MiB at 262,144 once used), so a call allocates nothing in the long
// run. Not thread-safe: one per thread.
class Sampler {
 public:
  explicit Sampler(int32_t vocab_size);
  Sampler(const Sampler&) = delete;
  Sampler& operator=(const Sampler&) = delete;

  // `logits` [vocab_size]; `params` validated for this vocabulary; `position` counts the tokens of
  // the sequence and never repeats within it. An error if the row holds NaN or +inf, or nothing
  // that could be drawn. `allowed` [(vocab_size + 31) / 32], if not empty: only tokens whose bits
  // are set may be drawn.
  Result<SampledToken> Sample(std::span<const float> logits, const SamplingParams& params,
                              const PenaltyState& history, uint64_t position,
                              std::span<const uint32_t> allowed = {});

  // The logprob of a given token and of the `num_top` likeliest, as Sample gives them; nothing is
  // drawn. An error as there.
  Result<SampledToken> Score(std::span<const float> logits, int32_t id, int32_t num_top);

  int32_t vocab_size() const { return vocab_size_; }

 private:
  // The row as penalties and biases leave it: `logits` itself where there are none.
  std::span<const float> Adjust(std::span<const float> logits, const SamplingParams& params,
                                const PenaltyState& history, std::span<const uint32_t> allowed);
  int32_t ArgMax(std::span<const float> row, float max) const;
  int32_t Draw(std::span<const float> row, const RowScan& scan, const SamplingParams& params,
               uint64_t position);
  Cutoff SelectTopK(std::span<const float> row, int32_t k);
  Cutoff SelectTopP(std::span<const float> row, const RaceSettings& race, float top_p,
                    bool has_candidates);
  // SelectCutoff among candidates_, which then holds the kept ones only.
  template <typename Measure>
  Cutoff Cut(std::span<const float> row, uint64_t target, const Measure& measure);
  // candidates_ := ids of logits >= bound, ascending; needs block_max_ of this row.
  void Collect(std::span<const float> row, float bound);
  Status AddLogprobs(std::span<const float> logits, int32_t num_top, SampledToken& token);

  int32_t vocab_size_;
  std::vector<float> adjusted_;     // [vocab_size], once an adjustment was asked for.
  std::vector<float> weights_;      // [vocab_size], of the candidates at least.
  std::vector<float> block_max_;    // [NumRowBlocks(vocab_size)]
  std::vector<int32_t> id_buffer_;  // [vocab_size]; sized once, as growing would clear it.
  std::vector<int32_t> scratch_ids_;
  std::span<int32_t> candidates_;  // Head of id_buffer_: what the filters left, if they listed it.
};

}  // namespace lapidary
