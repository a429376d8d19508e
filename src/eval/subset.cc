#include "eval/subset.h"

#include <algorithm>
#include <map>
#include <numeric>

namespace lapidary {
namespace {

// splitmix64: written out, since the standard library's shuffles differ between implementations.
uint64_t Mix(uint64_t value) {
  value += 0x9E3779B97F4A7C15;
  value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9;
  value = (value ^ (value >> 27)) * 0x94D049BB133111EB;
  return value ^ (value >> 31);
}

}  // namespace

std::vector<size_t> StratifiedSubset(const std::vector<std::string>& task_of, size_t count,
                                     uint64_t seed) {
  std::vector<size_t> chosen(task_of.size());
  std::iota(chosen.begin(), chosen.end(), size_t{0});
  if (count >= task_of.size()) return chosen;

  std::map<std::string, std::vector<size_t>> by_task;
  for (const size_t idx : chosen) by_task[task_of[idx]].push_back(idx);
  const auto draw = [&](size_t idx) { return std::pair(Mix(Mix(seed) ^ idx), idx); };
  // The r-th drawn of a task's m items ranks at (r + 1/2) / m among those of all tasks, so the
  // first `count` hold every task's share.
  std::vector<double> rank(task_of.size());
  for (auto& [task, items] : by_task) {
    std::sort(items.begin(), items.end(), [&](size_t a, size_t b) { return draw(a) < draw(b); });
    for (size_t place = 0; place < items.size(); ++place) {
      rank[items[place]] = (static_cast<double>(place) + 0.5) / static_cast<double>(items.size());
    }
  }
  std::sort(chosen.begin(), chosen.end(), [&](size_t a, size_t b) {
    return rank[a] != rank[b] ? rank[a] < rank[b] : draw(a) < draw(b);
  });
  chosen.resize(count);
  std::sort(chosen.begin(), chosen.end());
  return chosen;
}

}  // namespace lapidary
