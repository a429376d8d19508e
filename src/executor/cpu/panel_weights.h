// The matrices of a decoder repacked for products of integers (--fast-math).
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "base/thread_pool.h"
#include "model/weights.h"

namespace lapidary::cpu {

// Owns the panels, a second copy of what the source holds.
class PanelWeights {
 public:
  // Replaces the matrices of block formats by their panels. As they are stay tables of which rows
  // are read, and matrices whose rows, of each expert, are no whole panels.
  void Repack(const ModelPlan& plan, ThreadPool& threads, ModelWeights& weights);

 private:
  // `unit`: rows that are used together.
  MatrixRef Panels(const MatrixRef& matrix, int64_t unit, ThreadPool& threads);

  std::vector<std::unique_ptr<std::byte[]>> memory_;
};

}  // namespace lapidary::cpu
