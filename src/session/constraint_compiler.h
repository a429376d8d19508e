// Constraints to grammars for one model, remembered by content as long as there is room.
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

// Bytes of compiled grammars that stay for later requests. Those in use count, and may take as much
// again; then they grow no more.
inline constexpr size_t kDefaultGrammarBytes = size_t{256} << 20;

struct GrammarStats {
  size_t num_grammars = 0;
  size_t num_bytes = 0;  // of all, in use or kept
  uint64_t num_hits = 0;
  uint64_t num_misses = 0;
  uint64_t num_evictions = 0;
};

// Every method may be called from many threads at once; never from the engine's.
class ConstraintCompiler {
 public:
  ConstraintCompiler(std::shared_ptr<const TextModel> text, int32_t vocab_size,
                     size_t max_bytes = kDefaultGrammarBytes);

  // Null: it has to be compiled.
  std::shared_ptr<const grammar::CompiledGrammar> Find(const grammar::Constraint& constraint);
  // The first call sorts the vocabulary (about a second for 262,144 tokens). Errors of kind kBusy:
  // the account of `work` is empty, or the grammars in use leave no memory for another.
  Result<std::shared_ptr<const grammar::CompiledGrammar>> Compile(
      const grammar::Constraint& constraint, grammar::Work* work = nullptr);

  GrammarStats stats();

 private:
  struct Kept {
    std::shared_ptr<const grammar::CompiledGrammar> grammar;
    std::list<const grammar::Constraint*>::iterator use;
    std::unique_ptr<grammar::MemoryShare> key_bytes;
  };

  Result<grammar::CompileContext> Context();
  // Those that are not in use, the longest unused first, until there is room. Under mutex_.
  void Evict();
  // Gives what was evicted back to the system, where it is worth it.
  void ReleaseEvicted();

  const std::shared_ptr<const TextModel> text_;
  const int32_t vocab_size_;
  const size_t max_bytes_;
  const std::shared_ptr<grammar::GrammarMemory> memory_;
  std::mutex vocabulary_mutex_;
  std::shared_ptr<const grammar::TokenVocabulary> vocabulary_;  // guarded by vocabulary_mutex_
  std::mutex mutex_;                                            // guards all below
  std::map<grammar::Constraint, Kept> kept_;
  std::list<const grammar::Constraint*> by_use_;  // keys of kept_, the latest first
  uint64_t num_hits_ = 0;
  uint64_t num_misses_ = 0;
  uint64_t num_evictions_ = 0;
  size_t num_evicted_bytes_ = 0;  // that the allocator may still have
};

}  // namespace lapidary
