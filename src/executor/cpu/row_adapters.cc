#include "executor/cpu/row_adapters.h"

#include <algorithm>

#include "ops/cpu/elementwise.h"
#include "ops/cpu/linear.h"
#include "ops/cpu/thread_buffer.h"

namespace lapidary::cpu {

void RowAdapters::Begin(std::span<const Adapter* const> of_row, std::span<const int32_t> active) {
  groups_.clear();
  of_active_.clear();
  if (of_row.empty()) return;
  for (const int32_t row : active) {
    const Adapter* const adapter = of_row[row];
    of_active_.push_back(adapter);
    if (adapter == nullptr) continue;
    auto group = std::ranges::find(groups_, adapter, &Group::adapter);
    if (group == groups_.end()) group = groups_.insert(group, {adapter, {}});
    group->rows.push_back(static_cast<int32_t>(of_active_.size()) - 1);
  }
}

void RowAdapters::AddTo(AdapterSite site, int layer, const float* x, int64_t x_cols, float* y,
                        int64_t y_cols) {
  for (const Group& group : groups_) {
    const LoraDelta* const delta = group.adapter->Find(site, layer);
    if (delta == nullptr) continue;
    const int64_t num_rows = std::ssize(group.rows);
    const int64_t rank = delta->a.rows;
    const int64_t num_out = delta->b.rows;
    inputs_.resize(num_rows * x_cols);
    for (int64_t idx = 0; idx < num_rows; ++idx) {
      std::copy_n(x + group.rows[idx] * x_cols, x_cols, inputs_.data() + idx * x_cols);
    }
    shrunk_.resize(num_rows * rank);
    Linear(inputs_.data(), num_rows, delta->a, shrunk_.data(), rank, threads_);
    expanded_.resize(num_rows * num_out);
    Linear(shrunk_.data(), num_rows, delta->b, expanded_.data(), num_out, threads_);
    threads_.ParallelFor(num_rows, 1, [&](int64_t begin, int64_t end, int) {
      for (int64_t idx = begin; idx < end; ++idx) {
        MulAddTo(expanded_.data() + idx * num_out, delta->scale, num_out,
                 y + group.rows[idx] * y_cols + delta->first_row);
      }
    });
  }
}

RowAdapters::OfExperts RowAdapters::ExpertsOf(int layer) const {
  const bool has_any = std::ranges::any_of(
      groups_, [layer](const Group& group) { return group.adapter->has_experts(layer); });
  return {has_any ? std::span<const Adapter* const>(of_active_) : std::span<const Adapter* const>(),
          layer};
}

void RowAdapters::OfExperts::Add(AdapterSite site, int64_t row, int expert, const float* x,
                                 float* y) const {
  const Adapter* const adapter = of_active_[row];
  if (adapter == nullptr) return;
  thread_local ThreadBuffer<float> shrunk_buffer;
  thread_local ThreadBuffer<float> expanded_buffer;
  for (const LoraDelta& delta : adapter->OfExpert(site, layer_, expert)) {
    const int64_t rank = delta.a.rows;
    const int64_t num_out = delta.b.rows;
    float* const shrunk = shrunk_buffer.Get(rank);
    float* const expanded = expanded_buffer.Get(num_out);
    LinearColumns(x, 1, delta.a, 0, rank, shrunk, rank);
    LinearColumns(shrunk, 1, delta.b, 0, num_out, expanded, num_out);
    MulAddTo(expanded, delta.scale, num_out, y + delta.first_row);
  }
}

void RowAdapters::OfExperts::AddToGateUp(int64_t row, int expert, const float* x, float* y) const {
  Add(AdapterSite::kExpertGateUp, row, expert, x, y);
}

void RowAdapters::OfExperts::AddToDown(int64_t row, int expert, const float* x, float* y) const {
  Add(AdapterSite::kExpertDown, row, expert, x, y);
}

}  // namespace lapidary::cpu
