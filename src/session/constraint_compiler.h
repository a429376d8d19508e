// Constraints to grammars for one model, remembered by content.
#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <mutex>

#include "base/result.h"
#include "front/text_model.h"
#include "grammar/constraint.h"

namespace lapidary {

// Every method may be called from many threads at once; never from the engine's.
class ConstraintCompiler {
 public:
  // `jump_forward`: text that must come is spelled as the tokenizer does it, so that it need not be
  // sampled.
  ConstraintCompiler(std::shared_ptr<const TextModel> text, int32_t vocab_size,
                     bool jump_forward = false);

  // The first call sorts the vocabulary (about a second for 262,144 tokens).
  Result<std::shared_ptr<const grammar::CompiledGrammar>> Compile(
      const grammar::Constraint& constraint);

 private:
  static constexpr size_t kMaxKept = 256;

  struct Kept {
    std::shared_ptr<const grammar::CompiledGrammar> grammar;
    std::list<const grammar::Constraint*>::iterator use;
  };

  Result<grammar::CompileContext> Context();

  const std::shared_ptr<const TextModel> text_;
  const int32_t vocab_size_;
  const bool jump_forward_;
  std::mutex vocabulary_mutex_;
  std::shared_ptr<const grammar::TokenVocabulary> vocabulary_;  // guarded by vocabulary_mutex_
  std::mutex mutex_;
  std::map<grammar::Constraint, Kept> kept_;      // guarded by mutex_
  std::list<const grammar::Constraint*> by_use_;  // keys of kept_, the latest first
};

}  // namespace lapidary
