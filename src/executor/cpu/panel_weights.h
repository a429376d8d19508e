// The matrices of a decoder repacked for products of integers (--fast-math).
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

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
  // `unit`: rows that are used together.
  MatrixRef Panels(const MatrixRef& matrix, int64_t unit, ThreadPool& threads);

  bool release_;
  std::vector<std::unique_ptr<std::byte[]>> memory_;
};

}  // namespace lapidary::cpu
