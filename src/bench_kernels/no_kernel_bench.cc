// A build without CUDA has no kernels to time.
#include "bench_kernels/kernel_bench.h"

namespace lapidary {
namespace {

Error NoKernels() {
  return MakeError("this program was built without CUDA, so it has no kernels to time");
}

}  // namespace

Result<KernelBenchResult> BenchKernels(const std::string&, const ModelPlan&,
                                       const KernelBenchOptions&) {
  return NoKernels();
}

Result<AlgorithmSearch> SearchAlgorithms(const std::vector<NamedPlan>&, int,
                                         const std::function<void(int64_t, int64_t)>&) {
  return NoKernels();
}

}  // namespace lapidary
