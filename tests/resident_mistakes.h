// Models and mistakes for the step as one kernel: whether an implementation makes one of them, told
// from its logits alone.
//
// Arithmetic in bf16 moves logits by some percent, and many a mistake by no more. But a mistake
// moves them in a direction that is known: from the reference to the reference with the mistake.
// How far an implementation has gone that way is 1 where it makes the mistake and about 0 where it
// does not, since rounding goes all ways at once. Only what moves logits by a twentieth of the
// rounding stays hidden, as gelu by erf would.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "executor/cpu/naive_decoder.h"
#include "model/tensor_sources.h"
#include "tests/step_testing.h"

namespace lapidary {

// Small ones of every form that the kernel knows. The wide ones give a block to every SM, each with
// other constants of the kernel.
struct MistakeModel {
  std::string preset;
  int hidden = 96;

  bool is_wide() const { return hidden > 96; }
  std::string Name() const;  // as GoogleTest wants it
};
std::vector<MistakeModel> MistakeModels();
ModelPlan MakeMistakePlan(const MistakeModel& model);

// A slip, or what a block might leave out: a part of one matrix.
struct PossibleMistake {
  Mistake slip = Mistake::kNone;
  std::string lost = {};  // a tensor's name

  std::string Name() const;
};

class MistakeFinder {
 public:
  // An implementation that has gone half the way of a mistake makes it.
  static constexpr double kFound = 0.5;

  explicit MistakeFinder(const MistakeModel& model);

  const ModelPlan& plan() const { return plan_; }
  std::shared_ptr<const TensorSource> source() const { return source_; }
  const std::vector<int32_t>& tokens() const { return tokens_; }
  const std::vector<PossibleMistake>& mistakes() const { return mistakes_; }

  // Logits of the reference, of every position.
  Logits Run(const PossibleMistake& mistake, NaiveDecoder::Rounding rounding) const;
  // Weights with a part lost.
  std::shared_ptr<const TensorSource> SourceWithout(const std::string& lost) const;

  // |logits - exact| / |exact|.
  double Distance(const Logits& logits) const;
  // How far the logits have gone the way of each mistake, in the order of mistakes().
  std::vector<double> Shares(const Logits& logits) const;

 private:
  const ModelPlan plan_;
  std::shared_ptr<const TensorSource> source_;
  NaiveTensors tensors_;
  std::vector<int32_t> tokens_;
  std::vector<PossibleMistake> mistakes_;
  Logits exact_;
  std::vector<Logits> ways_;  // by mistake: wrong - exact
};

}  // namespace lapidary
