// The lower bound of a decode step: the bytes that it must read, and so the least time it can take.
#pragma once

#include <cstdint>

#include "model/footprint.h"
#include "model/kv_format.h"

namespace lapidary::bench {

// Bytes read by one step that decodes a token for each of `batch_size` sequences of `context`
// tokens: every weight but the gathered tables once (of the experts, as many as so many tokens are
// expected to choose, choosing at random), and what each layer sees of the KV cache. `weights` are
// counted in bytes.
double DecodeStepBytes(const ModelPlan& plan, const Footprint& weights, int batch_size,
                       int64_t context, KvFormat kv_format);

}  // namespace lapidary::bench
