// The tensors that the encoders of a plan have: names as in the files (prefix stripped), shapes.
//
// One list serves loading and `synth`, as the decoder's does (model/tensor_specs.h). Clip bounds
// (roles kClipMin and kClipMax) may be missing from a file: then nothing is clipped.
#pragma once

#include <vector>

#include "model/tensor_specs.h"
#include "towers/tower_plan.h"

namespace lapidary {

std::vector<TensorSpec> VisionTensors(const TowersPlan& plan);
std::vector<TensorSpec> AudioTensors(const TowersPlan& plan);

inline bool MayBeMissing(const TensorSpec& spec) {
  return spec.role == TensorRole::kClipMin || spec.role == TensorRole::kClipMax;
}

}  // namespace lapidary
