// How a loop over equal items is cut into pieces for the threads of a pool.
#pragma once

#include <algorithm>
#include <cstdint>

namespace lapidary {

// Items of a piece, a multiple of `unit`: at least four pieces for each thread where there are as
// many units, so that a thread that others hold up is helped; and so many that no thread is left
// with a piece when the others are done. 64 pieces for 14 threads would take as long as 70.
inline int64_t EvenGrain(int64_t count, int64_t unit, int num_threads) {
  const int64_t num_units = (count + unit - 1) / unit;
  const int64_t largest = std::max<int64_t>(num_units / (int64_t{4} * num_threads), 1);
  const int64_t smallest = std::max<int64_t>(largest / 3, 1);
  int64_t best = largest;
  int64_t best_cost = INT64_MAX;
  for (int64_t grain = largest; grain >= smallest; --grain) {
    // The last piece may be shorter; it counts where it begins a round of its own.
    const int64_t num_whole = num_units / grain;
    const int64_t num_rounds = (num_whole + num_threads - 1) / num_threads;
    const int64_t rest = num_whole % num_threads == 0 ? num_units % grain : 0;
    constexpr int64_t kUnitCost = 32;  // of the start of a piece
    const int64_t cost = (num_rounds * grain + rest) * kUnitCost + num_rounds;
    if (cost >= best_cost) continue;
    best = grain;
    best_cost = cost;
  }
  return best * unit;
}

}  // namespace lapidary
