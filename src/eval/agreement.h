// The agreement of answers to the Pebble set with a reference's: token for token, and by the
// judge's verdict.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/json_fields.h"
#include "eval/pebble_items.h"
#include "text/tokenizer.h"

namespace lapidary {

struct Agreement {
  // An item whose answer has other tokens than the reference's.
  struct Difference {
    PebbleAnswer ours;
    PebbleAnswer reference;
    int64_t position = 0;  // of the first token that differs; one answer may end there
    std::string continuation;
    std::string reference_continuation;  // text from there on

    bool same_verdict() const { return ours.is_right == reference.is_right; }
  };
  int64_t count = 0;
  std::vector<Difference> differences;

  int64_t same_answer() const { return count - std::ssize(differences); }
  // Both right or both wrong; equal answers always are.
  int64_t same_verdict() const;

  // {"count", "same_answer", "same_verdict", "differences": [...]}
  Json ToJson() const;
  // A line with both numbers and `where`, then the differing items; with `verbose` whole answers.
  std::string ToText(const std::string& where, bool verbose) const;
};

// Both lists hold the same items in the same order, judged by the same judge.
Agreement CompareAnswers(const Tokenizer& tokenizer, const std::vector<PebbleAnswer>& ours,
                         const std::vector<PebbleAnswer>& references);

}  // namespace lapidary
