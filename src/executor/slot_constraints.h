// The grammars of an executor's slots: where each stands, and which tokens the rows of a step may
// be sampled from.
//
//   before the step:  LikelyTokens(slot)        // to be drafted
//   before sampling:  MakeMasks(slot, drafts)   // masks of the token behind the slot's end and of
//                                               // those behind each draft
//   after it:         Advance(slot, token)      // for each that came out and counts
//
// Nothing but the sampler needs the masks, so an executor makes them while its forward pass runs,
// once it knows the tokens of the step before and this step's drafts. A step does not wait for a
// mask that takes long: what a thread may do for a step's masks is on an account, and a sequence
// whose mask does not come out of it is late (SequenceOutput::is_late).
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <vector>

#include "executor/step_batch.h"
#include "grammar/matcher.h"
#include "grammar/work.h"

namespace lapidary {

// Of one thread for all masks of a step: a few milliseconds. Ordinary forms need much less, even
// for the first mask of a state.
inline constexpr int64_t kMaskStepsPerThread = 8 * grammar::Work::kStepsPerMillisecond;

// The masks of a sequence's sampled rows. Kept between steps, so that it allocates nothing in the
// long run.
struct RowMasks {
  int32_t num_words = 0;
  std::vector<uint32_t> words;  // [rows, num_words]; bit t % 32 of word t / 32: token t may come
  // The token that alone may come, and so need not be sampled; -1: there are more.
  std::vector<int32_t> only;
  // Rows from here on have no mask because of `error`, which counts if one of them counts. Of kind
  // kBusy: the mask is late, and comes another time.
  int32_t num_made = 0;
  Error error;

  bool is_late() const { return error.kind == ErrorKind::kBusy; }

  std::span<const uint32_t> Mask(int32_t row) const {
    return std::span(words).subspan(static_cast<size_t>(row) * num_words, num_words);
  }
};

// Different slots may be used by different threads at once.
class SlotConstraints {
 public:
  // Slots below `num_slots` may be used.
  void Reserve(size_t num_slots);
  // Gives up all grammars.
  void Clear() {
    for (Slot& slot : slots_) slot = {};
  }
  // Takes the binding's grammar, if any, and reads the tokens that were generated before.
  void Bind(const SlotBinding& binding);

  // Whether the slot's next token is under a grammar. Behind an answer's end it is not: rows there
  // were planned before the end was seen.
  bool IsActive(int32_t slot) const;

  // For active slots. Row i + 1 comes behind drafts[i]. Behind a draft that is not allowed nothing
  // counts: masks there allow every token.
  void MakeMasks(int32_t slot, std::span<const int32_t> drafts, grammar::Work& work,
                 RowMasks* masks);
  // For an active slot: what most likely comes behind its end (Matcher::LikelyTokens), at most so
  // many tokens.
  std::vector<int32_t> LikelyTokens(int32_t slot, int32_t max_tokens, grammar::Work& work);
  // A token of the mask was sampled and counts. Not behind the end.
  Status Advance(int32_t slot, int32_t token, grammar::Work& work);

 private:
  struct Slot {
    std::optional<grammar::Matcher> matcher;
    // Count, but the matcher has not taken them yet, for it takes its time.
    std::deque<int32_t> unread;
  };

  static Status ReadTokens(Slot& slot, grammar::Work& work);

  std::vector<Slot> slots_;
};

}  // namespace lapidary
