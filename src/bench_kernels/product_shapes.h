// The matrix products of a model's step, as the CUDA executor calls them.
#pragma once

#include <string>
#include <vector>

#include "model/plan.h"
#include "ops/cuda/linear/linear.h"

namespace lapidary {

struct ProductShape {
  std::string name;  // "e2b gate_up"
  int in_dim = 0;
  int out_dim = 0;
  cuda::Epilogue epilogue = cuda::Epilogue::kStore;
  bool residual = false;  // the input is the residual stream after an update
  WeightFormat weights{};

  bool f32_output() const { return epilogue == cuda::Epilogue::kSoftcap; }
};

// Each once, in the order of a step.
std::vector<ProductShape> ProductShapes(const std::string& model, const ModelPlan& plan,
                                        const WeightFormat& weights = {});

}  // namespace lapidary
