#include "base/result.h"
#include "ops/cuda/sampling/sampling.h"

namespace lapidary::cuda {

Status SamplingSupports(int vocab_size) {
  if (vocab_size > kMaxSampledVocab) {
    return MakeError("a vocabulary of {} tokens, more than {}", vocab_size, kMaxSampledVocab);
  }
  return {};
}

}  // namespace lapidary::cuda
