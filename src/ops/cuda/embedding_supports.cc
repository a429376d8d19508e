#include "base/result.h"
#include "ops/cuda/embedding.h"

namespace lapidary::cuda {

Status EmbedSupports(int hidden, int num_rope_tables) {
  if (hidden % 8 != 0) return MakeError("a hidden size of {} is not a multiple of 8", hidden);
  if (num_rope_tables > kMaxRopeTables) {
    return MakeError("there are {} kinds of rotary embedding, and at most {} may differ",
                     num_rope_tables, kMaxRopeTables);
  }
  return {};
}

Status PerLayerInputsSupports(int width) {
  if (width % 8 != 0 || width > kMaxPerLayerWidth) {
    return MakeError("per-layer embeddings of width {} are no multiple of 8 up to {}", width,
                     kMaxPerLayerWidth);
  }
  return {};
}

}  // namespace lapidary::cuda
