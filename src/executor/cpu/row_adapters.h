// What LoRA adapters add to the products of a step, row by row, in f32.
//
// A row's values depend on the row and its adapter alone, so they are the same bits alone and in
// any batch. Rows without an adapter are not touched.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "adapter/adapter.h"
#include "base/thread_pool.h"
#include "ops/cpu/moe.h"

namespace lapidary::cpu {

class RowAdapters {
 public:
  explicit RowAdapters(ThreadPool& threads) : threads_(threads) {}

  // `of_row`: by row of the step, empty where no row has one. `active`: the rows that are computed
  // from here on, which operations count from 0.
  void Begin(std::span<const Adapter* const> of_row, std::span<const int32_t> active);
  // No active row has one.
  bool empty() const { return groups_.empty(); }

  // y[row] += scale * B (A x[row]) where the row's adapter has a delta of this matrix.
  //   x [active, x_cols], y [active, y_cols]
  void AddTo(AdapterSite site, int layer, const float* x, int64_t x_cols, float* y, int64_t y_cols);

  // The same of a layer's experts.
  class OfExperts : public ExpertDeltas {
   public:
    OfExperts(std::span<const Adapter* const> of_active, int layer)
        : of_active_(of_active), layer_(layer) {}
    bool empty() const { return of_active_.empty(); }
    void AddToGateUp(int64_t row, int expert, const float* x, float* y) const override;
    void AddToDown(int64_t row, int expert, const float* x, float* y) const override;

   private:
    void Add(AdapterSite site, int64_t row, int expert, const float* x, float* y) const;

    const std::span<const Adapter* const> of_active_;
    const int layer_;
  };
  // Valid until the next Begin; empty where no adapter has any.
  OfExperts ExpertsOf(int layer) const;

 private:
  // Active rows of one adapter.
  struct Group {
    const Adapter* adapter;
    std::vector<int32_t> rows;
  };

  ThreadPool& threads_;
  std::vector<const Adapter*> of_active_;  // null: none
  std::vector<Group> groups_;
  std::vector<float> inputs_;    // [rows of a group, x_cols]
  std::vector<float> shrunk_;    // [rows of a group, rank]
  std::vector<float> expanded_;  // [rows of a group, rows of B]
};

}  // namespace lapidary::cpu
