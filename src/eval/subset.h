// A stratified sample of an evaluation's items, where not all are asked.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace lapidary {

// `count` of the items, in their order, drawn by `seed` alone: the same on every machine. The draw
// is stratified: `task_of` names each item's task, and every task keeps its share, rounded. All
// items when `count` is not below their number.
std::vector<size_t> StratifiedSubset(const std::vector<std::string>& task_of, size_t count,
                                     uint64_t seed);

}  // namespace lapidary
