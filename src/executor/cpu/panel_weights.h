// The matrices of a decoder repacked for products of integers (--fast-math).
#pragma once

#include <cstddef>
#include <cstdlib>
#include <memory>

#include "base/thread_pool.h"
#include "model/weights.h"

namespace lapidary::cpu {

// Owns the panels. With `release`, memory of a matrix goes back to the system once it is repacked:
// nobody may read it from the source again. Without, panels are a second copy.
class PanelWeights {
 public:
  explicit PanelWeights(bool release) : release_(release) {}

  // Replaces the matrices of block formats by their panels, the embeddings too where they are the
  // head. As they are stay other tables, and matrices whose rows, of each expert, are no whole
  // panels.
  void Repack(const ModelPlan& plan, ThreadPool& threads, ModelWeights& weights);

 private:
  struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
  };

  bool release_;
  // Of all matrices: of one piece, so that all of it can be in huge pages.
  std::unique_ptr<std::byte[], Free> memory_;
};

}  // namespace lapidary::cpu
