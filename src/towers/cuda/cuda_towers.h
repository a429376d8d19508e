// The encoders on a GPU as the rest of the program sees them: a factory, no CUDA types.
#pragma once

#include <memory>

#include "towers/media_towers.h"
#include "towers/tower_plan.h"
#include "towers/tower_tensors.h"

namespace lapidary::cuda {

// An error that names the shape our kernels do not know, or says that this build has no CUDA part.
Status CudaTowersSupport(const TowersPlan& plan);

// Weights and everything that encoding needs are allocated here, in bf16. The tensors are those of
// what is wanted (null: not wanted) and are not needed afterwards.
Result<std::unique_ptr<MediaTowers>> MakeCudaTowers(const TowersPlan& plan,
                                                    const TowerTensors* vision,
                                                    const TowerTensors* audio, int gpu_ordinal);

}  // namespace lapidary::cuda
