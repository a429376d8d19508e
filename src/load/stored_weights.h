// The weights that a user names, as they are stored.
#pragma once

#include <memory>

#include "load/model_directory.h"
#include "model/weights.h"

namespace lapidary {

// As they are stored; nothing but headers is read. An error for a preset, which has none.
Result<std::shared_ptr<const TensorSource>> OpenStoredWeights(const ModelDescription& model);

// The same to plan with: null for a preset, and for a directory that has a config alone.
Result<std::shared_ptr<const TensorSource>> FindStoredWeights(const ModelDescription& model);

}  // namespace lapidary
