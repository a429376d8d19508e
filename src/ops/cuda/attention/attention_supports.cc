#include "base/result.h"
#include "ops/cuda/attention/attention.h"
#include "ops/cuda/attention/kv_entries.h"

namespace lapidary::cuda {

Status QueryEntrySupports(int head_dim) {
  if (head_dim != 256 && head_dim != 512) {
    return MakeError("heads of {} dims, not 256 or 512", head_dim);
  }
  return {};
}

Status AttentionSupports(const KvEntryPlan& entry, int heads_per_kv_head) {
  const auto is = [&](int value_len, int key_offset, int key_len) {
    return entry == KvEntryPlan{value_len, key_offset, key_len, key_offset + key_len};
  };
  if (entry.k_is_v() && !is(512, 128, 512)) {
    return MakeError(
        "heads of {} dims whose keys are their values but for {} dims, not 512 and 128",
        entry.value_len, entry.key_offset);
  }
  if (!entry.k_is_v() && !is(256, 256, 256) && !is(512, 512, 512)) {
    return MakeError("heads of {} dims, not 256 or 512", entry.value_len);
  }
  if (heads_per_kv_head < 1 || heads_per_kv_head > kMaxHeadsPerKvHead) {
    return MakeError("{} query heads for one KV head, more than {}", heads_per_kv_head,
                     kMaxHeadsPerKvHead);
  }
  return {};
}

}  // namespace lapidary::cuda
