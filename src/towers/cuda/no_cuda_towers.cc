#include "towers/cuda/cuda_towers.h"

namespace lapidary::cuda {

Status CudaTowersSupport(const TowersPlan&) { return MakeError("this build has no CUDA part"); }

Result<std::unique_ptr<MediaTowers>> MakeCudaTowers(const TowersPlan&, const TowerTensors*,
                                                    const TowerTensors*, int) {
  return MakeError("this build has no CUDA part");
}

}  // namespace lapidary::cuda
