// Tensor parallel: how a model is split over ranks, which compute its products together.
//
// A rank has some attention heads with their KV heads, a part of the width of every MLP and of
// every expert, and a part of the vocabulary. Its plan is the model's with these numbers, so
// whoever works from a plan works for a rank: tensors, KV layout, memory, kernels. What has no part
// is whole on every rank and computed by each: norms, the router, per-layer embeddings, the head
// and the MLP of an assistant.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "model/plan.h"
#include "model/tensor_specs.h"
#include "model/weights.h"
#include "tensor/matrix_cut.h"

namespace lapidary {

inline constexpr int kMaxRanks = 8;

// What a rank holds of a tensor.
struct TensorCut {
  TensorSpec whole;
  // Of the matrix [all rows, last dim]; several ranges where each expert has a part. Ascending.
  std::vector<IndexRange> rows;
  IndexRange cols;

  bool is_whole() const;
  bool has_all_cols() const { return cols.begin == 0 && cols.end == whole.shape.back(); }
};

// By the tensor's name; those that are missing can be cut anywhere.
using CutUnits = std::map<std::string, CutUnit, std::less<>>;
// Of how the tensors are stored. Rows of several formats: what all of them allow.
Result<CutUnits> CutUnitsOf(const std::vector<TensorSpec>& specs, const TensorSource& source);

struct Shard {
  int rank = 0;
  int size = 1;
  ModelPlan plan;       // what the rank has of everything
  int first_token = 0;  // plan.vocab_size rows of the embedding and of the head from here on
  std::vector<TensorCut> tensors = {};  // as RequiredTensors(plan)
};

// Refused with the sizes that work where heads do not divide, or stored formats cannot be cut so
// often. Widths and the vocabulary are shared out in what `units` has; parts may differ by one.
Result<Shard> ShardOf(const ModelPlan& plan, int rank, int size, const CutUnits& units = {});

// An assistant's heads lie where the KV heads that they read are; all else is whole on every rank.
struct AssistantShard {
  AssistantPlan plan;
  std::vector<TensorCut> tensors;
};
Result<AssistantShard> ShardOf(const AssistantPlan& plan, int rank, int size,
                               const CutUnits& units = {});

// Up to kMaxRanks, 1 among them.
std::vector<int> ShardSizes(const ModelPlan& plan, const CutUnits& units = {});

}  // namespace lapidary
