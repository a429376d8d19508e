#include "executor/cuda/cuda_options.h"

namespace lapidary::cuda {

Result<std::unique_ptr<Executor>> MakeCudaExecutor(const ModelPlan&, const TensorSource*,
                                                   const CudaExecutorOptions&) {
  return MakeError("this build has no CUDA part (build with LAPIDARY_CUDA=1)");
}

}  // namespace lapidary::cuda
