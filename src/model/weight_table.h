// The formats of a model's weights as a table for people: a row for each kind of tensor and pair of
// formats, stored and in memory. `inspect`, the log at start and /metrics show it.
#pragma once

#include <string>
#include <vector>

#include "model/weight_plan.h"

namespace lapidary {

struct WeightRow {
  std::string tensors;  // "attention", "experts"
  std::string stored;   // FormatName
  std::string loaded;
  std::string kernels;  // what reads them: "4-bit codes", "bf16", "gathered rows"
  int num_tensors = 0;
  int64_t stored_bytes = 0;
  int64_t loaded_bytes = 0;
};

// Matrices only, in the order of the tensors of a model.
std::vector<WeightRow> TabulateWeights(const WeightPlan& plan);

}  // namespace lapidary
