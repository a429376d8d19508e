#include "base/result.h"
#include "ops/cuda/drafting/drafting.h"

namespace lapidary::cuda {

Status OrderedHeadSupports(int num_centroids, int top_k) {
  if (num_centroids >= 1 && num_centroids <= kMaxCentroids && top_k >= 1 &&
      top_k <= num_centroids) {
    return {};
  }
  return MakeError("an ordered head of the best {} of {} centroids; {} is the most", top_k,
                   num_centroids, kMaxCentroids);
}

}  // namespace lapidary::cuda
