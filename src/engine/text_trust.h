// Whether text that a sequence repeats is worth verifying: as long as the first draft of a round is
// accepted now and then.
#pragma once

#include <cstdint>

namespace lapidary {

class TextTrust {
 public:
  // Drafts for the next step: all, or none while they are hardly ever right. Then a round now and
  // then shows whether that is still so.
  int32_t Choose(int32_t most) const {
    return rate_ >= kLeastRate || num_steps_ >= kStepsBetween ? most : 0;
  }
  // A step has ended,
  void AddStep() { ++num_steps_; }
  // and it verified a round; `is_right`: its first draft was accepted.
  void AddRound(bool is_right) {
    rate_ += kNewest * ((is_right ? 1.0f : 0.0f) - rate_);
    num_steps_ = 0;
  }

 private:
  static constexpr float kNewest = 0.1f;
  static constexpr float kLeastRate = 0.2f;
  static constexpr int32_t kStepsBetween = 32;

  float rate_ = 0.5f;
  int32_t num_steps_ = 0;  // since the last round
};

}  // namespace lapidary
